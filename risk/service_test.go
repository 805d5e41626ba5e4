package risk

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// serve answers questions with handle.
func serve(t *testing.T, handle http.HandlerFunc) *ServiceConfig {
	t.Helper()
	s := httptest.NewServer(handle)
	t.Cleanup(s.Close)
	return &ServiceConfig{URL: s.URL + "/v1/verdicts", Timeout: 5 * time.Second, InFlight: 4}
}

func answers(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

var hiddenByService = Verdict{Action: Hide, By: topology.HiddenByRisk, Reason: "device-farm", Source: ByService}

// What the service is sent is documented in docs/risk.md.
func TestTheServiceIsAsked(t *testing.T) {
	var asked []byte
	var header http.Header
	cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked, _ = io.ReadAll(r.Body)
		header = r.Header
		answers(`{"verdict":"hide","by":"risk","reason":"device-farm","score":0.93}`)(w, r)
	})
	cfg.Secret = "s3cret"
	d, _, _ := newDecider(t, Config{Service: cfg})
	sequence := uint64(81)
	if v := d.Decide(t.Context(), like(func(q *Question) { q.Sequence = &sequence })); v != hiddenByService || v.Hiding() != (topology.Hiding{By: topology.HiddenByRisk, Reason: "device-farm"}) {
		t.Errorf("%+v", v)
	}
	const want = `{"userId":"u7","targetId":"V9001","kind":"like","desiredState":"LIKED","clientClass":"subscriber","deviceId":"device-a","clientSequence":81,"address":"203.0.113.7","requestedAt":"2026-07-01T12:00:00Z"}`
	if string(asked) != want {
		t.Errorf("asked %s", asked)
	}
	if header.Get("Authorization") != "Bearer s3cret" || header.Get("Content-Type") != "application/json" {
		t.Errorf("header %v", header)
	}
	d.Decide(t.Context(), like(func(q *Question) { q.Device, q.Address, q.Class = "", netip.Addr{}, Unknown }))
	var fields map[string]any
	if err := json.Unmarshal(asked, &fields); err != nil || len(fields) != 6 || fields["clientClass"] != "unknown" {
		t.Errorf("of an unknown client %s, %v", asked, err)
	}
}

func TestAnswers(t *testing.T) {
	for text, want := range map[string]Verdict{
		`{"verdict":"allow"}`:                                 {Source: ByService},
		`{"verdict":"allow","reason":"known.good"}`:           {Reason: "known.good", Source: ByService},
		`{"verdict":"refuse","reason":"script"}`:              {Action: Refuse, Reason: "script", Source: ByService},
		`{"verdict":"hide","by":"policy","reason":"rules.7"}`: {Action: Hide, By: topology.HiddenByPolicy, Reason: "rules.7", Source: ByService},
	} {
		if v, err := readAnswer(strings.NewReader(text)); err != nil || v != want {
			t.Errorf("%s: %+v, %v", text, v, err)
		}
	}
	for _, text := range []string{
		``, `{}`, `null`, `[]`, `{"verdict":"allow"} {}`, `{"verdict":"deny"}`, `{"verdict":1}`, `{"verdict":"hide","reason":"x"}`, `{"verdict":"hide","by":"risk"}`,
		`{"verdict":"hide","by":"risk","reason":"Not a code"}`, `{"verdict":"refuse"}`, `{"verdict":"refuse","by":"risk","reason":"x"}`, `{"verdict":"allow","reason":"A"}`,
		`{"verdict":"allow","pad":"` + strings.Repeat("x", MaxAnswerBytes) + `"}`,
	} {
		if v, err := readAnswer(strings.NewReader(text)); err == nil {
			t.Errorf("%.60s: %+v", text, v)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"verdict":"hide","by":"risk","reason":"device-farm"}`))
	f.Add([]byte(`{"verdict":"allow"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := readAnswer(bytes.NewReader(b))
		if err == nil && (v.Source != ByService || v.Hiding().Check() != nil || v.Action == Refuse && v.Reason == "") {
			t.Errorf("%q is %+v", b, v)
		}
	})
}

// Without an answer the configuration decides, whatever it was that went wrong;
// and nothing of a question is in a log or a detail.
func TestWithoutAnAnswer(t *testing.T) {
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") })
	for name, handle := range map[string]http.HandlerFunc{
		"status": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "u7 V9001", http.StatusInternalServerError)
		},
		"words":    answers("u7 likes V9001"),
		"too long": answers(strings.Repeat(" ", MaxAnswerBytes+1)),
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
		"cut off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		for unavailable, want := range map[Action]Verdict{
			Allow:  {Reason: ReasonUnavailable, Source: Unavailable},
			Refuse: {Action: Refuse, Reason: ReasonUnavailable, Source: Unavailable},
			Hide:   {Action: Hide, By: topology.HiddenByRisk, Reason: ReasonUnavailable, Source: Unavailable},
		} {
			d, _, log := newDecider(t, Config{Service: serve(t, handle), Unavailable: unavailable})
			if v := d.Decide(t.Context(), like(nil)); v != want || v.Hiding().Check() != nil {
				t.Errorf("%s, %s: %+v", name, unavailable, v)
			}
			said := log.String() + d.Detail()
			if !strings.Contains(said, "no answer") {
				t.Errorf("%s: nobody is told: %s", name, said)
			}
			for _, secret := range []string{"u7", "V9001", "device-a", "203.0.113.7"} {
				if strings.Contains(said, secret) {
					t.Errorf("%s: %s is in %s", name, secret, said)
				}
			}
		}
	}
}

// A service that answers too late costs its timeout, and after some failures
// nothing; once it answers, it is asked again.
func TestASlowServiceIsLeftAlone(t *testing.T) {
	var slow atomic.Bool
	var asked atomic.Int64
	slow.Store(true)
	cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		_, _ = io.Copy(io.Discard, r.Body) // else the server does not see that the client goes
		if slow.Load() {
			<-r.Context().Done()
			return
		}
		answers(`{"verdict":"refuse","reason":"script"}`)(w, r)
	})
	cfg.Timeout = 20 * time.Millisecond
	d, registry, log := newDecider(t, Config{Service: cfg})
	for range 20 {
		if v := d.Decide(t.Context(), like(nil)); v.Source != Unavailable {
			t.Fatalf("%+v", v)
		}
	}
	if n := asked.Load(); n >= 20 {
		t.Errorf("all %d questions were asked", n)
	}
	slow.Store(false)
	d.service.cfg.Timeout = 5 * time.Second
	for deadline := time.Now().Add(10 * time.Second); d.Decide(t.Context(), like(nil)).Action != Refuse; {
		if time.Now().After(deadline) {
			t.Fatal("it is never asked again")
		}
	}
	if text := log.String(); strings.Count(text, "no answer") != 1 || strings.Count(text, "answers again") != 1 {
		t.Errorf("the log:\n%s", text)
	}
	for _, result := range []string{"timeout", "open", "answer"} {
		if len(gathered(t, registry, "tidemark_risk_service_seconds", result)) != 1 {
			t.Errorf("result %s is not measured", result)
		}
	}
}

// No more questions are asked at a time than may; the others wait, up to the
// timeout.
func TestQuestionsAtATime(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		<-leave
		answers(`{"verdict":"allow"}`)(w, r)
	})
	cfg.InFlight = 1
	d, _, _ := newDecider(t, Config{Service: cfg, Unavailable: Refuse})
	first := make(chan Verdict)
	go func() { first <- d.Decide(context.Background(), like(nil)) }()
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if v := d.Decide(ctx, like(nil)); v.Source != Unavailable {
		t.Errorf("the second: %+v", v)
	}
	if d.service.breaker.Open() {
		t.Error("a client that went away opened the breaker")
	}
	close(leave)
	if v := <-first; v.Source != ByService {
		t.Errorf("the first: %+v", v)
	}
}

// With ask: always the stricter verdict stands, and a rule's needs no answer.
func TestAskAlways(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write(t, path, `
rules:
  - {name: a, action: allow, reason: partner, when: {users: [u1]}}
  - {name: b, action: hide, by: policy, reason: rules.25, when: {users: [u2]}}
  - {name: c, action: refuse, reason: script, when: {users: [u3]}}
`)
	by := func(user string) Question { return like(func(q *Question) { q.Relation.User = user }) }
	away := &ServiceConfig{URL: "http://127.0.0.1:1", Timeout: time.Second, InFlight: 1}
	always, _, _ := newDecider(t, Config{RulesFile: path, Service: serve(t, answers(`{"verdict":"hide","by":"risk","reason":"device-farm"}`)), AskAlways: true})
	alone, _, _ := newDecider(t, Config{RulesFile: path, Service: away, AskAlways: true, Unavailable: Refuse})
	undecided, _, _ := newDecider(t, Config{RulesFile: path, Service: serve(t, answers(`{"verdict":"refuse","reason":"other"}`))})
	for user, want := range map[string][3]string{
		"u1": {"device-farm", "partner", "partner"}, "u2": {"rules.25", "rules.25", "rules.25"}, "u3": {"script", "script", "script"},
		"u4": {"device-farm", ReasonUnavailable, "other"},
	} {
		got := [3]string{always.Decide(t.Context(), by(user)).Reason, alone.Decide(t.Context(), by(user)).Reason, undecided.Decide(t.Context(), by(user)).Reason}
		if got != want {
			t.Errorf("%s: %v, want %v", user, got, want)
		}
	}
}

func TestTheSecretIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	write(t, path, "one\n")
	var said atomic.Value
	cfg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		said.Store(r.Header.Get("Authorization"))
		answers(`{"verdict":"allow"}`)(w, r)
	})
	cfg.SecretFile = path
	d, _, log := newDecider(t, Config{Service: cfg})
	for _, step := range []struct{ text, want string }{{"", "Bearer one"}, {"two\n", "Bearer two"}, {"not one word", "Bearer two"}} {
		if step.text != "" {
			write(t, path, step.text)
			d.renew()
		}
		d.Decide(t.Context(), like(nil))
		if got := said.Load(); got != step.want {
			t.Errorf("%q: the service got %q", step.text, got)
		}
	}
	if text := log.String() + d.Detail(); !strings.Contains(text, "secret of the risk service") || strings.Contains(text, "not one word") {
		t.Errorf("told: %s", text)
	}
}
