package main

import (
	"context"
	"fmt"
	"strings"
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
// those before were answered, by senders that pass over Retry-After. Goodput is
// what is answered 200 within a second of when it was due. The senders are a
// process of their own, on the same cores, and what they use is told apart: with
// three times the requests there is less left for the server.
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
	spec := sendersSpec{Addr: server.Addr(), Key: key, Name: strings.ReplaceAll(name, " ", "-"), Callers: overloadCallers}
	peak, err := send(ctx, spec)
	if err != nil {
		return err
	}
	spec.Name, spec.PerSecond = spec.Name+"-over", 3*peak.goodput()
	over, err := send(ctx, spec)
	if err != nil {
		return err
	}
	cancel()
	fmt.Printf("  %s\n", name)
	fmt.Printf("    sustained, %d callers          %8.0f commands/s   (server %.0f us of a core per answer, senders %.0f)\n", overloadCallers, peak.goodput(), peak.server(), peak.senders())
	fmt.Printf("    goodput at %6.0f commands/s    %8.0f commands/s   ratio %.2f, %.2f per core that senders leave   (%d refused at once, %d too late or lost, %d not sent: %d were open; server %.0f us of a core per answer, senders %.0f)\n",
		spec.PerSecond, over.goodput(), over.goodput()/peak.goodput(), over.perCore()/peak.perCore(), over.Refused, over.Late, over.Unsent, overloadOpen, over.server(), over.senders())
	return <-served
}
