package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"sort"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/tidemark/tidemark/relations"
)

// valueOf reads a counter or gauge.
func valueOf(t testing.TB, m prometheus.Metric) float64 {
	t.Helper()
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		t.Fatal(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}

func TestPanic(t *testing.T) {
	secret := "device-a of u7"
	for name, before := range map[string]func(){
		"text":          func() { panic(secret) },
		"error":         func() { panic(errors.New(secret)) },
		"runtime error": func() { _ = []byte(secret)[len(secret):][0] },
	} {
		t.Run(name, func(t *testing.T) {
			ta := newTestAPI(t, &fakeStore{before: before})
			r := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED","deviceId":"device-a"}`)
			r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
			expectProblem(t, ta, r, 500, "internal", "")
			if got := valueOf(t, ta.api.measures.panics); got != 1 {
				t.Errorf("%v panics counted", got)
			}
			log := ta.log.String()
			if strings.Contains(log, "device-a") || strings.Contains(log, "u7") || strings.Contains(log, "V9001") {
				t.Errorf("the log has what the client sent: %s", log)
			}
			if !strings.Contains(log, "0af7651916cd43dd8448eb211c80319c") || !strings.Contains(log, "fake_test.go") {
				t.Errorf("the log has no trace or stack: %s", log)
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.put(likePath, "op-1", `{"desiredState":"LIKED"}`, 200, nil)
	ta.put(likePath, "op-1", `{}`, 400, nil)
	ta.do(request(t, http.MethodGet, "/v1/nothing/u7", ""), 404, nil)
	ta.do(request(t, http.MethodGet, likePath, ""), 405, nil)
	families, err := ta.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range families {
		if f.GetName() != "tidemark_api_request_duration_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			got = append(got, strings.Join(labels, " "))
		}
	}
	sort.Strings(got)
	want := []string{"2xx PUT /v1/videos/{id}/like-relation", "4xx PUT /v1/videos/{id}/like-relation", "4xx unmatched"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("series %q, want %q", got, want)
	}
	if n := valueOf(t, ta.api.measures.inFlight); n != 0 {
		t.Errorf("%v requests in flight", n)
	}
}

func TestTraceParent(t *testing.T) {
	const id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	good := TraceParent{TraceID: id, ParentID: parent, Flags: "01"}
	for header, want := range map[string]TraceParent{
		"00-" + id + "-" + parent + "-01":   good,
		"":                                  {},
		"00-" + id + "-" + parent + "-01-x": {},
		"01-" + id + "-" + parent + "-01":   {},
		"00-" + strings.ToUpper(id) + "-" + parent + "-01":     {},
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01": {},
		"00-" + id + "-" + strings.Repeat("0", 16) + "-01":     {},
		"00-" + id + "-" + parent + "-0g":                      {},
		"00_" + id + "-" + parent + "-01":                      {},
		strings.Repeat("赞", 18) + "a":                          {},
	} {
		if got := parseTraceParent(header); got != want {
			t.Errorf("%q: %+v", header, got)
		}
	}
}

// waitingStore waits until its caller's time is over.
type waitingStore struct {
	fakeStore
	trace TraceParent
}

func (s *waitingStore) Set(ctx context.Context, _ relations.Command) (relations.Result, error) {
	s.trace, _ = TraceOf(ctx)
	<-ctx.Done()
	return relations.Result{}, ctx.Err()
}

func TestRequestTimeout(t *testing.T) {
	v, err := NewVerifier(AuthConfig{HS256Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Verifier: v, RequestTimeout: 1})
	if err != nil {
		t.Fatal(err)
	}
	store := &waitingStore{}
	RegisterCommands(a, store)
	r := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`)
	r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	expectProblem(t, &testAPI{t: t, api: a}, r, 503, "store-unavailable", "")
	if store.trace.TraceID == "" {
		t.Error("the store does not see the trace")
	}
}

// A process may serve one half only.
func TestHalves(t *testing.T) {
	v, err := NewVerifier(AuthConfig{HS256Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	make := func(register func(*API)) *testAPI {
		a, err := New(Config{Verifier: v})
		if err != nil {
			t.Fatal(err)
		}
		register(a)
		return &testAPI{t: t, api: a}
	}
	s := &fakeStore{}
	put := func() *http.Request { return request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`) }
	query := func() *http.Request { return request(t, http.MethodPost, likeBatch, `{"videoIds":["V1"]}`) }
	commands := make(func(a *API) { RegisterCommands(a, s) })
	commands.do(put(), 200, nil)
	commands.do(query(), 404, nil)
	queries := make(func(a *API) { RegisterQueries(a, s, s) })
	queries.do(put(), 404, nil)
	queries.do(query(), 200, nil)
	for _, ta := range []*testAPI{commands, queries} {
		w := httptest.NewRecorder()
		ta.api.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
		if w.Body.String() != string(document) {
			t.Error("the document served is not the committed one")
		}
	}
}

func TestNewNeedsAVerifier(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an API without identity was made")
	}
}
