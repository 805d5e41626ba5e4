package cdc

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
)

// Emitter feeds the outbox of one shard into one Kafka partition.
type Emitter struct {
	cfg   Config
	board board
	gate  *gate
	seen  *latency
}

// New checks the configuration and registers the metrics; it connects to
// nothing.
func New(cfg Config) (*Emitter, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	if _, err := connectConfig(cfg.URL, ""); err != nil {
		return nil, fmt.Errorf("cdc: URL of shard %d: %w", cfg.Shard, err)
	}
	e := &Emitter{cfg: cfg, gate: newGate(), seen: newLatency()}
	e.board.enter(StateIdle)
	if cfg.Registerer != nil {
		labels := prometheus.Labels{"shard": strconv.Itoa(cfg.Shard)}
		if err := prometheus.WrapRegistererWith(labels, cfg.Registerer).Register(newCollector(e)); err != nil {
			return nil, fmt.Errorf("cdc: registering metrics of shard %d: %w", cfg.Shard, err)
		}
	}
	return e, nil
}

// Run feeds until ctx ends, then stops within StopGrace and about two seconds
// and returns nil. Whatever fails is tried again with backoff, from the
// confirmed position; only ErrSlotVanished and ErrSlotUnusable are returned.
// Once AwaitSlot returned, Run may be called again.
func (e *Emitter) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	watchCtx, stopWatch := context.WithCancel(ctx)
	defer watching.Wait()
	defer stopWatch()
	watching.Go(func() { e.monitor(watchCtx) })

	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = min(200*time.Millisecond, e.cfg.MaxBackoff)
	pause.MaxInterval = e.cfg.MaxBackoff
	for !ended(ctx) {
		if err := e.attempt(ctx, pause); err != nil {
			e.board.enter(StateFailed)
			return err
		}
	}
	e.board.enter(StateStopped)
	return nil
}

// attempt runs one session, once nothing holds it up, and waits before the
// next if it failed. It returns fatal errors only.
func (e *Emitter) attempt(ctx context.Context, pause *backoff.ExponentialBackOff) error {
	open, done := e.gate.pass(ctx, func(why string) {
		e.board.enter(StatePaused)
		e.cfg.Logger.Info("paused", "why", why)
	})
	defer done()
	if ended(open) {
		return nil
	}
	acked := e.board.acked.Load()
	s := &session{cfg: &e.cfg, log: e.cfg.Logger, board: &e.board, seen: e.seen}
	err := s.run(open)
	if ended(open) {
		return nil
	}
	e.board.note(err)
	if fatal(err) {
		return err
	}
	e.board.restarts.Add(1)
	if e.board.acked.Load() > acked {
		pause.Reset()
	}
	next := pause.NextBackOff()
	e.board.enter(StateRetrying)
	e.cfg.Logger.Warn("the change feed stopped; it goes on from the confirmed position", "error", err, "retry_in", next.Round(time.Millisecond))
	_ = wait(open, next) // who calls looks why
	return nil
}

// AwaitSlot waits, after Run has returned ErrSlotVanished or ErrSlotUnusable,
// until the slot is there and can be used: that a person made it so is the
// decision that Run could not take. It returns ctx's cause when that ends first.
func (e *Emitter) AwaitSlot(ctx context.Context) error {
	for {
		if err := e.usable(ctx); err == nil || ended(ctx) {
			return context.Cause(ctx)
		}
		if err := wait(ctx, e.cfg.StandbyInterval); err != nil {
			return err
		}
	}
}

func (e *Emitter) usable(ctx context.Context) error {
	conn, err := dialSQL(ctx, e.cfg.URL, fmt.Sprintf("tidemark cdc waits %d", e.cfg.Shard))
	if err != nil {
		return err
	}
	defer closeSQL(conn)
	facts, err := readServerFacts(ctx, conn)
	if err != nil {
		return err
	}
	s, err := lookUpSlot(ctx, conn, e.cfg.Slot)
	switch {
	case err != nil:
		return err
	case s == nil:
		return ErrSlotVanished
	}
	return s.check(e.cfg.Slot, facts.database)
}

// Status is a snapshot of what the emitter does.
func (e *Emitter) Status() Status {
	s := e.board.snapshot()
	s.Shard, s.Slot = e.cfg.Shard, e.cfg.Slot
	_, s.Paused, _ = e.gate.look()
	return s
}

// Ready is Status().Ready().
func (e *Emitter) Ready() error { return e.Status().Ready() }
