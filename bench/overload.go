package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/overload"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

const (
	overloadPhase    = 10 * time.Second
	overloadWarm     = 2 * time.Second // before what is counted
	overloadCallers  = 64              // that each wait for an answer: what is sustained
	overloadDeadline = time.Second     // after which an answer is worth nothing
	overloadInFlight = 512             // as by default
	// overloadOpen are the requests that clients keep open: what comes beyond is
	// not sent, and counted as such.
	overloadOpen = 4096
	// overloadBatch is the shard's largest transaction, and it has one at a time: so
	// the shard is what is short, and the cores that the senders share with it are
	// enough to send three times what it sustains.
	overloadBatch = 4
)

// benchOverload sets relations over HTTP: first as fast as callers that wait for
// their answers can, then three times as many as that a second, whether or not
// those before were answered. Goodput is what is answered 200 within a second.
func benchOverload(ctx context.Context) error {
	url, stop, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := relations.Migrate(ctx, url, 0); err != nil {
		return err
	}
	store, err := relations.Open(ctx, relations.Config{URLs: []string{url}, Map: topology.NewShardMap(1, 1), BatchLimit: overloadBatch, Committers: 1})
	if err != nil {
		return err
	}
	defer store.Close()
	fmt.Printf("  one shard, transactions of at most %d commands; an answer counts within %v\n", overloadBatch, overloadDeadline)
	for _, guarded := range []bool{true, false} {
		if err := overloadOnce(ctx, store, guarded); err != nil {
			return err
		}
	}
	return nil
}

func overloadOnce(ctx context.Context, store *relations.Store, guarded bool) error {
	key := []byte("an overload bench's key of 32 bytes")
	verifier, err := api.NewVerifier(api.AuthConfig{HS256Key: key})
	if err != nil {
		return err
	}
	config := api.Config{Verifier: verifier}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	name := "without bounds"
	if guarded {
		name = fmt.Sprintf("%d in flight", overloadInFlight)
		config.Guard, config.Shard = overload.NewGuard(1, overloadInFlight, overloadInFlight), func(string) int { return 0 }
		levels, err := overload.NewController(overload.Config{Guard: config.Guard})
		if err != nil {
			return err
		}
		go func() { _ = levels.Run(ctx) }() // it returns nil when ctx ends
	}
	a, err := api.New(config)
	if err != nil {
		return err
	}
	api.RegisterCommands(a, store)
	server := api.NewServer(api.ServerConfig{Listen: "127.0.0.1:0"}, a)
	if err := server.Listen(); err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Run(ctx) }()
	senders, err := newOverloadSenders(server.Addr(), key, name)
	if err != nil {
		return err
	}
	peak := senders.closed(ctx)
	offered := 3 * peak
	good, counts := senders.open(ctx, offered)
	senders.http.CloseIdleConnections()
	cancel()
	fmt.Printf("  %s\n", name)
	fmt.Printf("    sustained, %d callers          %8.0f commands/s\n", overloadCallers, peak)
	fmt.Printf("    goodput at %6.0f commands/s    %8.0f commands/s   ratio %.2f   (%d refused at once, %d too late or lost, %d not sent: %d were open)\n",
		offered, good, good/peak, counts.refused.Load(), counts.late.Load(), counts.unsent.Load(), overloadOpen)
	return <-served
}

type overloadSenders struct {
	http   *http.Client
	base   string
	name   string
	tokens []string
	next   atomic.Int64
}

type overloadCounts struct{ good, refused, late, unsent atomic.Int64 }

func newOverloadSenders(addr string, key []byte, name string) (*overloadSenders, error) {
	s := &overloadSenders{
		http: &http.Client{Transport: &http.Transport{MaxIdleConns: overloadOpen, MaxIdleConnsPerHost: overloadOpen}, Timeout: overloadDeadline},
		base: "http://" + addr, name: strings.ReplaceAll(name, " ", "-"),
	}
	for user := range 1000 {
		token, err := api.MintToken(key, fmt.Sprintf("u%d", user), "", time.Hour)
		if err != nil {
			return nil, err
		}
		s.tokens = append(s.tokens, token)
	}
	return s, nil
}

// closed gives the commands a second of callers that wait.
func (s *overloadSenders) closed(ctx context.Context) float64 {
	var callers sync.WaitGroup
	var counts overloadCounts
	begun := time.Now()
	from, to := begun.Add(overloadWarm), begun.Add(overloadWarm+overloadPhase)
	for range overloadCallers {
		callers.Go(func() {
			for ctx.Err() == nil && time.Now().Before(to) {
				s.send(ctx, &counts, from)
			}
		})
	}
	callers.Wait()
	return float64(counts.good.Load()) / overloadPhase.Seconds()
}

// open sends perSecond commands, whatever becomes of them.
func (s *overloadSenders) open(ctx context.Context, perSecond float64) (float64, *overloadCounts) {
	var callers sync.WaitGroup
	counts := new(overloadCounts)
	room := make(chan struct{}, overloadOpen)
	begun := time.Now()
	from, to := begun.Add(overloadWarm), begun.Add(overloadWarm+overloadPhase)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for sent := 0; ctx.Err() == nil && time.Now().Before(to); {
		<-tick.C
		for due := int(time.Since(begun).Seconds() * perSecond); sent < due; sent++ {
			select {
			case room <- struct{}{}:
				callers.Go(func() { s.send(ctx, counts, from); <-room })
			default:
				counts.unsent.Add(1)
			}
		}
	}
	callers.Wait()
	return float64(counts.good.Load()) / overloadPhase.Seconds(), counts
}

// send sets a relation that was never set, and counts what became of it from a
// time on.
func (s *overloadSenders) send(ctx context.Context, counts *overloadCounts, from time.Time) {
	n := s.next.Add(1)
	begun := time.Now()
	status, err := s.put(ctx, n)
	switch {
	case begun.Before(from):
	case err == nil && status == http.StatusOK && time.Since(begun) <= overloadDeadline:
		counts.good.Add(1)
	case err == nil && status == http.StatusServiceUnavailable && time.Since(begun) <= overloadDeadline:
		counts.refused.Add(1)
	case !errors.Is(err, context.Canceled):
		counts.late.Add(1)
	}
}

func (s *overloadSenders) put(ctx context.Context, n int64) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, fmt.Sprintf("%s/v1/videos/V%d/like-relation", s.base, n), strings.NewReader(`{"desiredState":"LIKED"}`))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Authorization", "Bearer "+s.tokens[n%int64(len(s.tokens))])
	req.Header.Set("Idempotency-Key", fmt.Sprintf("%s-%d", s.name, n))
	res, err := s.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}
