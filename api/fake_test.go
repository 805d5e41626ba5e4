package api

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var testKey = []byte("0123456789abcdef0123456789abcdef")

var testTime = time.Date(2026, 8, 19, 10, 20, 30, 123456000, time.UTC)

// fakeStore is a relation store and a count view in memory, with the rules of
// relations.Store.
type fakeStore struct {
	mu       sync.Mutex
	facts    map[topology.Relation]relations.Fact
	commands map[string]relations.Operation
	counts   map[string]views.Count
	err      error // of everything about relations
	countErr error
	before   func()     // runs first in Set, if set
	asked    [][]string // targets of each States call
}

func (s *fakeStore) fact(r topology.Relation) relations.Fact {
	if f, ok := s.facts[r]; ok {
		return f
	}
	return relations.Fact{Relation: r, State: r.Kind.Initial()}
}

func (s *fakeStore) Set(_ context.Context, c relations.Command) (relations.Result, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.before != nil {
		s.before()
	}
	if s.err != nil {
		return relations.Result{}, s.err
	}
	f := s.fact(c.Relation)
	if op, ok := s.commands[c.OperationID]; ok {
		if op.Command.Relation != c.Relation || op.Command.Desired != c.Desired {
			return relations.Result{}, relations.ErrOperationConflict
		}
		return relations.Result{Operation: op.Result, Current: f, Replayed: true}, nil
	}
	outcome := relations.Applied
	switch {
	case c.BaseVersion != nil && *c.BaseVersion != f.Version:
		outcome = relations.Rejected
	case c.Desired == f.State:
		outcome = relations.Unchanged
	default:
		f.State, f.Version, f.StateChangedAt = c.Desired, f.Version+1, testTime
	}
	if s.facts == nil {
		s.facts, s.commands = map[topology.Relation]relations.Fact{}, map[string]relations.Operation{}
	}
	s.facts[c.Relation] = f
	res := relations.OperationResult{Outcome: outcome, State: f.State, Version: f.Version, DecidedAt: testTime}
	s.commands[c.OperationID] = relations.Operation{Command: c, Result: res}
	return relations.Result{Operation: res, Current: f}, nil
}

func (s *fakeStore) Operation(_ context.Context, user, id string) (relations.Operation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	op, ok := s.commands[id]
	switch {
	case s.err != nil:
		return op, s.err
	case !ok || op.Command.Relation.User != user:
		return op, relations.ErrOperationNotFound
	}
	op.Current = s.fact(op.Command.Relation)
	return op, nil
}

func (s *fakeStore) States(_ context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	s.asked = append(s.asked, targets)
	out := make([]relations.Fact, len(targets))
	for i, t := range targets {
		out[i] = s.fact(topology.Relation{Kind: kind, User: user, Target: t})
	}
	return out, nil
}

func (s *fakeStore) Count(kind topology.Kind, target string) (views.Count, error) {
	c, err := s.Counts(kind, []string{target})
	if err != nil {
		return views.Count{}, err
	}
	return c[0], nil
}

func (s *fakeStore) Counts(kind topology.Kind, targets []string) ([]views.Count, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.countErr != nil {
		return nil, s.countErr
	}
	out := make([]views.Count, len(targets))
	for i, t := range targets {
		out[i] = s.counts[topology.TargetKey(kind, t)]
	}
	return out, nil
}

// testAPI is an API over a fakeStore.
type testAPI struct {
	t     testing.TB
	api   *API
	store *fakeStore
	lists *fakeLists
	reg   *prometheus.Registry
	log   *strings.Builder

	exports *fakeExports
	visible *fakeVisibility
}

func newTestAPI(t testing.TB, store *fakeStore) *testAPI {
	t.Helper()
	v, err := NewVerifier(AuthConfig{HS256Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	ta := &testAPI{t: t, store: store, lists: &fakeLists{}, reg: prometheus.NewRegistry(), log: &strings.Builder{}, visible: &fakeVisibility{}}
	ta.api, err = New(Config{Verifier: v, Visibility: ta.visible, Registerer: ta.reg, Logger: slog.New(slog.NewJSONHandler(ta.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	RegisterCommands(ta.api, store)
	RegisterQueries(ta.api, store, store)
	RegisterLists(ta.api, ta.lists.sources(t, store))
	ta.exports = newFakeExports(t)
	RegisterExports(ta.api, ta.exports, ta.exports.dir)
	RegisterPrivacyEvents(ta.api, ta.visible, ta.visible)
	return ta
}

func mint(t testing.TB, user string) string {
	t.Helper()
	token, err := MintToken(testKey, user, "", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// request makes a request of user u7 with an Idempotency-Key.
func request(t testing.TB, method, path, body string) *http.Request {
	t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+mint(t, "u7"))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "op-101")
	return r
}

func (ta *testAPI) serve(r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	ta.api.ServeHTTP(w, r)
	return w.Result()
}

// do sends a request and reads an answer of the wanted status.
func (ta *testAPI) do(r *http.Request, status int, into any) {
	ta.t.Helper()
	res := ta.serve(r)
	body, _ := io.ReadAll(res.Body)
	if res.StatusCode != status {
		ta.t.Fatalf("%s %s: status %d, want %d: %s", r.Method, r.URL, res.StatusCode, status, body)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(body, into); err != nil {
		ta.t.Fatalf("%s %s: %v: %s", r.Method, r.URL, err, body)
	}
}

// put sends a command of user u7.
func (ta *testAPI) put(path, key, body string, status int, into any) {
	ta.t.Helper()
	r := request(ta.t, http.MethodPut, path, body)
	r.Header.Set("Idempotency-Key", key)
	ta.do(r, status, into)
}
