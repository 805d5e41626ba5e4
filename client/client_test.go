package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inBubble runs f with a client of s, in a bubble of its own time.
func inBubble(t *testing.T, s *server, change func(*Config), f func(*testing.T, *Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := s.config()
		if change != nil {
			change(&c)
		}
		cl, err := Open(c)
		if err != nil {
			t.Fatal(err)
		}
		f(t, cl)
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
		s.underway.Wait()
	})
}

var v9001 = Like("V9001")

// Of many clicks while a command is in flight only the last is sent, after it.
func TestLatestIntentWins(t *testing.T) {
	s := newServer()
	s.faults = []fault{{Before: 100 * time.Millisecond}}
	inBubble(t, s, nil, func(t *testing.T, c *Client) {
		for _, to := range []State{Liked, Unliked, Liked, Disliked, Unliked, Disliked} {
			if err := c.Set(v9001, to); err != nil {
				t.Fatal(err)
			}
			if v := c.View(v9001); v.State != to || !v.Pending {
				t.Errorf("after a click on %s: %+v", to, v)
			}
			time.Sleep(time.Millisecond)
		}
		v, err := c.Settle(t.Context(), v9001)
		if err != nil || v.State != Disliked || v.Confirmed.Version != 2 || v.Pending {
			t.Errorf("settled as %+v, error %v", v, err)
		}
		if len(s.sent) != 2 {
			t.Errorf("%d requests were sent", len(s.sent))
		}
	})
}

// A lost answer is asked for with the same id, and counts once (I2).
func TestLostAnswer(t *testing.T) {
	s := newServer()
	s.faults = []fault{{Drop: true}, {Lost: true}, {After: time.Minute}}
	inBubble(t, s, nil, func(t *testing.T, c *Client) {
		v, err := c.SetAndSettle(t.Context(), v9001, Liked)
		if err != nil || v.Confirmed.Version != 1 {
			t.Errorf("%+v, error %v", v, err)
		}
		if ids := slices.Compact(slices.Clone(s.sent)); len(s.sent) != 4 || len(ids) != 1 {
			t.Errorf("sent as %v", s.sent)
		}
	})
}

func TestConflict(t *testing.T) {
	for _, policy := range []ConflictPolicy{AcceptServer, KeepIntent} {
		s := newServer()
		inBubble(t, s, func(c *Config) { c.Conflict = policy }, func(t *testing.T, c *Client) {
			if err := c.Observe(v9001, s.at(v9001)); err != nil {
				t.Fatal(err)
			}
			s.write(v9001, Liked)
			v, err := c.SetAndSettle(t.Context(), v9001, Disliked)
			if policy == KeepIntent {
				if err != nil || v.State != Disliked || v.Confirmed.Version != 2 {
					t.Errorf("%+v, error %v", v, err)
				}
				return
			}
			var conflict *ConflictError
			if !errors.As(err, &conflict) || conflict.Wanted != Disliked || conflict.Current.Version != 1 || v.State != Liked {
				t.Errorf("%+v, error %v", v, err)
			}
			if err := c.Set(v9001, Disliked); err != nil || c.View(v9001).Err != nil {
				t.Errorf("after another click: %+v, error %v", c.View(v9001), err)
			}
			if v, err = c.Settle(t.Context(), v9001); err != nil || v.Confirmed.Version != 2 {
				t.Errorf("%+v, error %v", v, err)
			}
		})
	}
}

// What another device already brought about is no conflict.
func TestConflictThatAgrees(t *testing.T) {
	s := newServer()
	inBubble(t, s, nil, func(t *testing.T, c *Client) {
		if err := c.Observe(v9001, s.at(v9001)); err != nil {
			t.Fatal(err)
		}
		s.write(v9001, Liked)
		if v, err := c.SetAndSettle(t.Context(), v9001, Liked); err != nil || v.Confirmed.Version != 1 {
			t.Errorf("%+v, error %v", v, err)
		}
	})
}

// A server that was set back is believed when it judges the newest version
// known: else the client would send that version for ever.
func TestServerSetBack(t *testing.T) {
	s := newServer()
	inBubble(t, s, func(c *Config) { c.Conflict = KeepIntent }, func(t *testing.T, c *Client) {
		if err := c.Observe(v9001, Confirmed{State: Liked, Version: 9}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if v, err := c.SetAndSettle(ctx, v9001, Disliked); err != nil || v.Confirmed.Version != 1 || v.State != Disliked {
			t.Errorf("%+v, error %v", v, err)
		}
	})
}

func TestRefusal(t *testing.T) {
	s := newServer()
	s.refuse = "target-gone"
	inBubble(t, s, nil, func(t *testing.T, c *Client) {
		v, err := c.SetAndSettle(t.Context(), v9001, Liked)
		var p *Problem
		if !errors.As(err, &p) || p.Type != problemPrefix+"target-gone" || p.Status != 403 || v.State != "" || v.Pending {
			t.Errorf("%+v, error %v", v, err)
		}
		if len(s.sent) != 1 {
			t.Errorf("%d requests for what is refused", len(s.sent))
		}
	})
}

// Retry-After is the least that a client waits.
func TestRetryAfter(t *testing.T) {
	s := newServer()
	s.faults = []fault{{Status: 503, Retry: "20"}, {Status: 429, Retry: "Mon, 31 Jan 2000 00:00:00 GMT"}}
	inBubble(t, s, nil, func(t *testing.T, c *Client) {
		start := time.Now()
		if _, err := c.SetAndSettle(t.Context(), v9001, Liked); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(start); waited < 20*time.Second+maxRetryAfter || waited > 25*time.Second+maxRetryAfter {
			t.Errorf("waited %v", waited)
		}
	})
}

func TestExpired(t *testing.T) {
	dead := slices.Repeat([]fault{{Status: 503, Retry: "3600"}}, 1000)
	s := newServer()
	s.faults = dead
	inBubble(t, s, nil, func(t *testing.T, c *Client) {
		start := time.Now()
		_, err := c.SetAndSettle(t.Context(), v9001, Liked)
		if waited := time.Since(start); !errors.Is(err, ErrExpired) || waited < 6*24*time.Hour || waited > 6*24*time.Hour+2*time.Hour {
			t.Errorf("after %v: %v", waited, err)
		}
	})
}

// A device whose clock is far behind gets through: its fresh commands come
// with ids that tell no time.
func TestClockBehind(t *testing.T) {
	s := newServer()
	s.expire = func(id string) bool { return id[14] == '7' }
	inBubble(t, s, nil, func(t *testing.T, c *Client) {
		if v, err := c.SetAndSettle(t.Context(), v9001, Liked); err != nil || v.Confirmed.Version != 1 {
			t.Errorf("%+v, error %v", v, err)
		}
	})
}

// After a restart the server may say that an operation is too old.
func TestExpiredAtTheServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	s := newServer()
	s.faults = slices.Repeat([]fault{{Lost: true}}, 1000)
	journal := func(c *Config) { c.Journal = path }
	inBubble(t, s, journal, func(t *testing.T, c *Client) {
		if err := c.Set(v9001, Liked); err != nil {
			t.Fatal(err)
		}
	})
	s.faults, s.expire = nil, func(string) bool { return true }
	inBubble(t, s, journal, func(t *testing.T, c *Client) {
		if v := c.View(v9001); v.State != Liked || !v.Pending {
			t.Errorf("after the restart: %+v", v)
		}
		v, err := c.Settle(t.Context(), v9001)
		if !errors.Is(err, ErrExpired) || v.State != Unliked || !v.Known {
			t.Errorf("%+v, error %v", v, err)
		}
	})
}

func TestBounds(t *testing.T) {
	s := newServer()
	s.faults = slices.Repeat([]fault{{Status: 503}}, 100)
	inBubble(t, s, func(c *Config) { c.MaxPending, c.MaxSettled = 3, 5 }, func(t *testing.T, c *Client) {
		for i := range 4 {
			if err := c.Set(Like(fmt.Sprint(i)), Liked); (i == 3) != errors.Is(err, ErrTooManyPending) {
				t.Errorf("relation %d: %v", i, err)
			}
		}
		if err := c.Set(Like("0"), Disliked); err != nil {
			t.Errorf("another wish for a pending relation: %v", err)
		}
		if err := c.Flush(t.Context()); err != nil || c.Pending() != 0 {
			t.Errorf("%d pending, error %v", c.Pending(), err)
		}
		for i := range 100 {
			if err := c.Observe(Like(fmt.Sprint("o", i)), Confirmed{State: Liked, Version: 1}); err != nil {
				t.Fatal(err)
			}
		}
		if len(c.entries) != 5 || c.settled.Len() != 5 || !c.View(Like("o99")).Known || c.View(Like("o0")).Known {
			t.Errorf("%d relations are remembered", len(c.entries))
		}
	})
}

func TestInvalid(t *testing.T) {
	if _, err := Open(Config{URL: "ftp://x", Conflict: "maybe", MaxPending: -1, RetryMin: -1}); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	} else {
		for _, field := range []string{"URL", "User", "Conflict", "MaxPending", "RetryMin"} {
			if !strings.Contains(err.Error(), field) {
				t.Errorf("%v does not name %s", err, field)
			}
		}
	}
	inBubble(t, newServer(), nil, func(t *testing.T, c *Client) {
		for _, r := range []Relation{{}, Like(""), Like(strings.Repeat("x", 257)), Like("\xff"), {"hug", "V1"}} {
			if err := c.Set(r, Liked); !errors.Is(err, ErrInvalid) {
				t.Errorf("%q: %v", r, err)
			}
		}
		if err := c.Set(Follow("u8"), Liked); !errors.Is(err, ErrInvalid) {
			t.Error(err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Set(v9001, Liked); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	})
}

// Many goroutines over real HTTP leave nothing behind (goleak).
func TestConcurrentUse(t *testing.T) {
	s := newServer()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		res, err := s.RoundTrip(r)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer res.Body.Close()
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, res.Body) // a client that has gone
	}))
	defer api.Close()
	s.faults = slices.Repeat([]fault{{}, {Drop: true}, {Status: 503}}, 20)
	c := s.config()
	c.URL, c.HTTP, c.Journal, c.RetryMin = api.URL, nil, filepath.Join(t.TempDir(), "journal"), time.Millisecond
	c.Changed = func(View) {}
	cl, err := Open(c)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 50 {
				r := Like(fmt.Sprint(i % 7))
				if err := cl.Set(r, []State{Unliked, Liked, Disliked}[(g+i)%3]); err != nil {
					t.Error(err)
				}
				cl.View(r)
			}
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := cl.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 7 {
		r := Like(fmt.Sprint(i))
		if v := cl.View(r); v.Err != nil || v.State != s.at(r).State || v.Confirmed.Version != s.at(r).Version {
			t.Errorf("%+v, the server has %+v", v, s.at(r))
		}
	}
	for range 2 {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The client's kinds and states are those of the system.
func TestKindsAndStates(t *testing.T) {
	for _, k := range topology.Kinds() {
		mine, ok := kinds[Kind(k.String())]
		if !ok || string(mine.states[0]) != k.Initial().String() {
			t.Errorf("kind %s: %+v", k, mine)
		}
		for _, s := range mine.states {
			if _, err := topology.ParseState(k, string(s)); err != nil {
				t.Error(err)
			}
		}
	}
	if maxIDBytes != topology.MaxIDBytes {
		t.Errorf("ids have up to %d bytes", topology.MaxIDBytes)
	}
}
