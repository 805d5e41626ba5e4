package api

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidemark/tidemark/client"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// cutting drops some requests and the answers to some others, which are then
// decided all the same.
func cutting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch rand.IntN(3) {
		case 0:
			panic(http.ErrAbortHandler)
		case 1:
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

// The client library against the real API on PostgreSQL, behind a network that
// cuts two of three requests, and with restarts: the facts are the last
// intents (A2, A3, I2).
func TestClientLibrary(t *testing.T) {
	ta, store := realAPI(t)
	server := httptest.NewServer(cutting(ta.api))
	defer server.Close()
	config := client.Config{
		URL: server.URL, User: "u7", Journal: filepath.Join(t.TempDir(), "journal"), DeviceID: "device-a",
		Token:    func(context.Context) (string, error) { return mint(t, "u7"), nil },
		RetryMin: time.Millisecond, RetryMax: 20 * time.Millisecond,
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	states := []client.State{client.Unliked, client.Liked, client.Disliked}
	last := map[string]client.State{}
	for round := range 5 {
		c, err := client.Open(config)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 30 {
			target := fmt.Sprint("V", i%4)
			last[target] = states[rand.IntN(len(states))]
			if err := c.Set(client.Like(target), last[target]); err != nil {
				t.Fatal(err)
			}
		}
		if round == 4 {
			if err := c.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			items, err := c.Query(ctx, client.KindLike, "V3", "V0", "V3")
			if err != nil || items[0].State != last["V3"] || items[1].State != last["V0"] || items[2].State != last["V3"] {
				t.Errorf("%+v, error %v", items, err)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for target, want := range last {
		facts, err := store.States(ctx, "u7", topology.Like, []string{target})
		if err != nil || facts[0].State.String() != string(want) {
			t.Errorf("%s is %+v, want %s, error %v", target, facts, want, err)
		}
	}
}

// What the API refuses, the client tells as it is.
func TestClientLibraryRefusals(t *testing.T) {
	ta, store := realAPI(t)
	server := httptest.NewServer(ta.api)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c, err := client.Open(client.Config{
		URL: server.URL, User: "u7",
		Token: func(context.Context) (string, error) { return mint(t, "u7"), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }() // without a journal there is nothing to lose
	var p *client.Problem
	if _, err := c.SetAndSettle(ctx, client.Like("a\x00b"), client.Liked); !errors.As(err, &p) || p.Type != kindInvalidRequest.uri() {
		t.Errorf("a control character: %v", err)
	}
	like := client.Like("V9001")
	if v, err := c.SetAndSettle(ctx, like, client.Liked); err != nil || v.Confirmed.Version != 1 || v.Confirmed.StateChangedAt == nil {
		t.Fatalf("%+v, error %v", v, err)
	}
	_, err = store.Set(ctx, relations.Command{OperationID: "tablet-1", Desired: topology.Unliked, Relation: topology.Relation{Kind: topology.Like, User: "u7", Target: "V9001"}})
	if err != nil {
		t.Fatal(err)
	}
	var conflict *client.ConflictError
	if v, err := c.SetAndSettle(ctx, like, client.Disliked); !errors.As(err, &conflict) || v.State != client.Unliked || v.Confirmed.Version != 2 {
		t.Errorf("another device was first: %+v, error %v", v, err)
	}
	var timeout net.Error
	store.Close()
	ended, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if v, err := c.SetAndSettle(ended, like, client.Liked); !errors.As(err, &timeout) || !v.Pending || v.State != client.Liked {
		t.Errorf("while the store is away: %+v, error %v", v, err)
	}
}
