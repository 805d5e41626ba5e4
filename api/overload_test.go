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

func TestLevelBoundReads(t *testing.T) {
	for _, level := range []overload.Level{overload.TightLimits, overload.BoundReads} {
		ta := guarded(t, &level)
		inside, held := make(chan struct{}, 3), make(chan struct{})
		facts := NewBoundedReads(readerFunc(func(context.Context, string, topology.Kind, []string) ([]relations.Fact, error) {
			inside <- struct{}{}
			<-held
			return nil, nil
		}), ta.api.guard, ta.api.shard, 1, 2)
		errs := make(chan error, 3)
		read := func() { _, err := facts.States(t.Context(), "u7", topology.Like, []string{"V1"}); errs <- err }
		go read()
		go read()
		<-inside
		<-inside
		go read()
		if level < overload.BoundReads {
			<-inside
		} else if err := <-errs; !errors.Is(err, relations.ErrUnavailable) {
			t.Errorf("a third read: %v", err)
		}
		close(held)
	}
}
