package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// flatStore answers at once, so that only the API's own work is measured.
type flatStore struct{}

func (flatStore) States(_ context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error) {
	facts := make([]relations.Fact, len(targets))
	for i, t := range targets {
		facts[i] = relations.Fact{Relation: topology.Relation{Kind: kind, User: user, Target: t}, State: topology.Liked, Version: 11, StateChangedAt: testTime}
	}
	return facts, nil
}

func (flatStore) Count(topology.Kind, string) (views.Count, error) { return views.Count{}, nil }

func (flatStore) Counts(kind topology.Kind, targets []string) ([]views.Count, error) {
	counts := make([]views.Count, len(targets))
	for i, t := range targets {
		counts[i] = views.Count{Kind: kind, Target: t, Counts: topology.Counts{Raw: 8721}, Found: true, GeneratedAt: testTime}
	}
	return counts, nil
}

func (flatStore) Set(_ context.Context, c relations.Command) (relations.Result, error) {
	f := relations.Fact{Relation: c.Relation, State: c.Desired, Version: 11, StateChangedAt: testTime}
	return relations.Result{Operation: relations.OperationResult{Outcome: relations.Applied, State: c.Desired, Version: 11, DecidedAt: testTime}, Current: f}, nil
}

func (flatStore) Operation(context.Context, string, string) (relations.Operation, error) {
	return relations.Operation{}, relations.ErrOperationNotFound
}

// nowhere is a response that goes nowhere.
type nowhere struct {
	header http.Header
	status int
}

func (w *nowhere) Header() http.Header         { return w.header }
func (w *nowhere) WriteHeader(status int)      { w.status = status }
func (w *nowhere) Write(b []byte) (int, error) { return len(b), nil }

// rewound is a body that is read again and again.
type rewound struct {
	text string
	at   int
}

func (b *rewound) Read(p []byte) (int, error) {
	if b.at == len(b.text) {
		return 0, io.EOF
	}
	n := copy(p, b.text[b.at:])
	b.at += n
	return n, nil
}

func (b *rewound) Close() error { return nil }

func benchmark(b *testing.B, method, path, text string) {
	v, err := NewVerifier(AuthConfig{HS256Key: testKey})
	if err != nil {
		b.Fatal(err)
	}
	a, err := New(Config{Verifier: v, Registerer: prometheus.NewRegistry()})
	if err != nil {
		b.Fatal(err)
	}
	RegisterCommands(a, flatStore{})
	RegisterQueries(a, flatStore{}, flatStore{})
	r := request(b, method, path, text)
	body := &rewound{text: text}
	r.Body = body
	w := &nowhere{header: http.Header{}}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		body.at, w.status = 0, 200
		clear(w.header)
		a.ServeHTTP(w, r)
		if w.status != 200 {
			b.Fatalf("status %d", w.status)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
}

func BenchmarkBatchQuery(b *testing.B) {
	for _, n := range []int{1, 20, 50, 200} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ids := make([]string, n)
			for i := range ids {
				ids[i] = fmt.Sprintf("video-%08d", i*7919)
			}
			text, err := json.Marshal(map[string]any{"videoIds": ids})
			if err != nil {
				b.Fatal(err)
			}
			benchmark(b, http.MethodPost, likeBatch, string(text))
		})
	}
}

func BenchmarkCommand(b *testing.B) {
	benchmark(b, http.MethodPut, likePath, `{"desiredState":"LIKED","baseVersion":10,"deviceId":"device-a","clientSequence":81}`)
}
