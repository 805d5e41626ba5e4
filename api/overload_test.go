package api

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/overload"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// guarded is an API whose level is as the test says, on an operator's word.
func guarded(t *testing.T, level *overload.Level) *testAPI {
	t.Helper()
	ta := newTestAPI(t, &fakeStore{})
	g := overload.NewGuard(1, 4, 4)
	d, err := overload.NewController(overload.Config{
		Guard: g, Interval: time.Millisecond, Forced: func() (overload.Level, bool) { return *level, true },
	})
	if err != nil {
		t.Fatal(err)
	}
	ta.api.guard, ta.api.shard = g, func(string) int { return 0 }
	if *level == overload.Normal {
		return ta
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- d.Run(ctx) }()
	testenv.Eventually(t, 10*time.Second, func() error {
		if g.Level() != *level {
			return errors.New("the level is not set yet")
		}
		return nil
	})
	cancel()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	return ta
}

// What is more than a shard can do in time is refused at once, and nothing of it
// is begun.
func TestOverloaded(t *testing.T) {
	level := overload.Normal
	ta := guarded(t, &level)
	held, begun := make(chan struct{}), make(chan struct{}, 4)
	ta.store.before = func() { begun <- struct{}{}; <-held }
	answered := make(chan int, 4)
	for i := range 4 {
		go func() { answered <- sendCommand(t, ta, "op-"+string(rune('a'+i)), `{"desiredState":"LIKED"}`).Code }()
	}
	<-begun // the fake store decides one at a time; all four are in flight
	testenv.Eventually(t, 10*time.Second, func() error {
		if ta.api.guard.EnterCommand(0) {
			ta.api.guard.LeaveCommand(0, 0)
			return errors.New("not all of 4 are in flight")
		}
		return nil
	})
	w := sendCommand(t, ta, "op-x", `{"desiredState":"LIKED"}`)
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "urn:tidemark:problem:overloaded") {
		t.Errorf("a fifth of 4: %d %v %s", w.Code, w.Header(), w.Body)
	}
	close(held)
	for range 4 {
		if code := <-answered; code != 200 {
			t.Errorf("one that was let in: %d", code)
		}
	}
	ta.store.before = nil
	ta.put(likePath, "op-x", `{"desiredState":"LIKED"}`, 200, &CommandAnswer{})
}

func TestLevelRefuse(t *testing.T) {
	level := overload.Refuse
	ta := guarded(t, &level)
	ta.put(likePath, "op-1", `{"desiredState":"LIKED"}`, 200, &CommandAnswer{}) // one of a quarter of 4
	w := ta.serve(request(t, http.MethodPost, "/v1/like-relations/batch-query", `{"videoIds":["V1"]}`))
	if w.StatusCode != http.StatusServiceUnavailable || w.Header.Get("Retry-After") != "5" {
		t.Errorf("a query: %d %v", w.StatusCode, w.Header)
	}
}

// heldReads are reads of a shard that stay there until the test lets them go.
type heldReads struct {
	inside chan struct{}
	held   chan struct{}
}

func (h heldReads) wait() { h.inside <- struct{}{}; <-h.held }

func (h heldReads) States(context.Context, string, topology.Kind, []string) ([]relations.Fact, error) {
	h.wait()
	return nil, nil
}

func (h heldReads) List(context.Context, relations.ListQuery) (relations.ListPage, error) {
	h.wait()
	return relations.ListPage{}, nil
}

// Of a shard few reads go on at a time; those of lists and of states have their
// own room, so that neither starves the other.
func TestLevelBoundReads(t *testing.T) {
	const few, states, lists = 8, 6, 2
	for _, level := range []overload.Level{overload.TightLimits, overload.BoundReads} {
		ta := guarded(t, &level)
		shard := heldReads{make(chan struct{}, 2*few), make(chan struct{})}
		b := NewBoundedReads(ta.api.guard, ta.api.shard, 1, few)
		read, list := b.States(shard), b.Lists(shard)
		for _, sort := range []struct {
			name string
			room int
			read func() error
		}{
			{"states", states, func() error { _, err := read.States(t.Context(), "u7", topology.Like, []string{"V1"}); return err }},
			{"lists", lists, func() error { _, err := list.List(t.Context(), relations.ListQuery{User: "u7"}); return err }},
		} {
			errs := make(chan error, sort.room+1)
			for range sort.room {
				go func() { errs <- sort.read() }()
			}
			for range sort.room {
				<-shard.inside
			}
			go func() { errs <- sort.read() }()
			if level < overload.BoundReads {
				<-shard.inside
			} else if err := <-errs; !errors.Is(err, relations.ErrUnavailable) {
				t.Errorf("one read of %s more: %v", sort.name, err)
			}
		}
		close(shard.held)
	}
}
