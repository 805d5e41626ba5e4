package load

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is the commands' contract in memory: one relation state, versions,
// operation results, stale base versions refused. It notes what clients must
// not do.
type server struct {
	*httptest.Server
	lastCommitWins bool
	// before may answer a request itself (true). Called without the lock.
	before func(w http.ResponseWriter, r *http.Request) bool
	// after may cut the connection of an answered command (true).
	after func(r *http.Request) bool

	mu         sync.Mutex
	relations  map[topology.Relation]fact
	operations map[string]result
	inFlight   map[topology.Relation]string
	history    map[topology.Relation][]topology.State
	reads      []int
	faults     []string
}

type fact struct {
	state   topology.State
	version uint64
}

type result struct {
	relation topology.Relation
	body     string
	status   int
}

func newServer(t *testing.T) *server {
	s := &server{
		relations: map[topology.Relation]fact{}, operations: map[string]result{},
		inFlight: map[topology.Relation]string{}, history: map[topology.Relation][]topology.State{},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /v1/videos/{id}/like-relation", s.command(topology.Like))
	mux.HandleFunc("PUT /v1/videos/{id}/favorite-relation", s.command(topology.Favorite))
	mux.HandleFunc("PUT /v1/users/{id}/follow-relation", s.command(topology.Follow))
	mux.HandleFunc("POST /v1/like-relations/batch-query", s.query)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *server) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

// check fails the test for each thing that a client must not do.
func (s *server) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults[:min(10, len(s.faults))] {
		t.Error(f)
	}
	if len(s.faults) > 10 {
		t.Errorf("and %d more", len(s.faults)-10)
	}
}

func userOf(r *http.Request) string {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer token of ")
	user, _, _ := strings.Cut(token, "#")
	return user
}

func (s *server) command(k topology.Kind) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		relation := topology.Relation{Kind: k, User: userOf(r), Target: r.PathValue("id")}
		body, _ := io.ReadAll(r.Body)
		if !s.enter(relation, key) {
			return
		}
		defer s.leave(relation)
		if s.before != nil && s.before(w, r) {
			return
		}
		status, answer := s.decide(relation, key, string(body))
		if s.after != nil && s.after(r) {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// enter notes two operations of one relation at the same time (seed 5.4).
func (s *server) enter(r topology.Relation, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, busy := s.inFlight[r]; busy && other != key {
		s.fault("%s: operation %s while %s is undecided", r.Key(), key, other)
	}
	s.inFlight[r] = key
	return true
}

func (s *server) leave(r topology.Relation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.inFlight, r)
}

type commandBody struct {
	DesiredState   string  `json:"desiredState"`
	BaseVersion    *uint64 `json:"baseVersion"`
	DeviceID       string  `json:"deviceId"`
	ClientSequence *uint64 `json:"clientSequence"`
}

func (s *server) decide(r topology.Relation, key, raw string) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var body commandBody
	decoder := json.NewDecoder(strings.NewReader(raw))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(&body)
	desired, stateErr := topology.ParseState(r.Kind, body.DesiredState)
	if err != nil || stateErr != nil || r.Check() != nil || body.BaseVersion == nil || body.ClientSequence == nil || body.DeviceID == "" || len(key) != 36 {
		s.fault("%s: key %q, body %s: %v, %v, %v", r.Key(), key, raw, err, stateErr, r.Check())
		return 400, problem("invalid-request", nil)
	}
	if old, ok := s.operations[key]; ok {
		if old.relation != r || old.body != raw {
			s.fault("operation %s was %s %s, now %s %s", key, old.relation.Key(), old.body, r.Key(), raw)
			return 422, problem("idempotency-key-reused", nil)
		}
		return old.status, s.answer(r, old.status)
	}
	now := s.now(r)
	status := 200
	switch {
	case *body.BaseVersion != now.version && !s.lastCommitWins:
		status = 409
	case desired != now.state:
		s.relations[r] = fact{desired, now.version + 1}
		s.history[r] = append(s.history[r], desired)
	}
	s.operations[key] = result{r, raw, status}
	return status, s.answer(r, status)
}

func (s *server) now(r topology.Relation) fact {
	if f, ok := s.relations[r]; ok {
		return f
	}
	return fact{state: r.Kind.Initial()}
}

func (s *server) answer(r topology.Relation, status int) any {
	now := s.now(r)
	relation := map[string]any{"state": now.state.String(), "relationVersion": now.version}
	if status == 409 {
		return problem("stale-base-version", relation)
	}
	relation["countConsistency"] = "EVENTUAL"
	return relation
}

func problem(name string, current any) any {
	p := map[string]any{"type": "urn:tidemark:problem:" + name}
	if current != nil {
		p["currentRelation"] = current
	}
	return p
}

func (s *server) query(w http.ResponseWriter, r *http.Request) {
	var body struct{ VideoIDs []string }
	err := json.NewDecoder(r.Body).Decode(&body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || len(body.VideoIDs) == 0 || userOf(r) == "" {
		s.fault("batch query by %q: %v", userOf(r), err)
	}
	s.reads = append(s.reads, len(body.VideoIDs))
	_, _ = w.Write([]byte(`{"items":[]}`))
}

// made lists the distinct transitions of a relation.
func (s *server) made(r topology.Relation) []topology.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history[r])
}

func mint(user string) (string, error) { return "token of " + user, nil }

// small is a quick load against s.
func small(s *server, change func(*Config)) Config {
	c := Default()
	c.BaseURL, c.Token = s.URL, mint
	c.Rate, c.Commands, c.Workers = 0, 2000, 16
	c.Users, c.Targets = 200, 100
	c.TargetSkew = Skew{Shape: Zipf}
	if change != nil {
		change(&c)
	}
	return c
}
