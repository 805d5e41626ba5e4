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
	e := &Emitter{cfg: cfg, seen: newLatency()}
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
func (e *Emitter) Run(ctx context.Context) error {
	var watching sync.WaitGroup
	watchCtx, stopWatch := context.WithCancel(ctx)
	defer watching.Wait()
	defer stopWatch()
	watching.Go(func() { e.monitor(watchCtx) })

	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = min(200*time.Millisecond, e.cfg.MaxBackoff)
	pause.MaxInterval = e.cfg.MaxBackoff
	for {
		acked := e.board.acked.Load()
		s := &session{cfg: &e.cfg, log: e.cfg.Logger, board: &e.board, seen: e.seen}
		err := s.run(ctx)
		if ended(ctx) {
			e.board.enter(StateStopped)
			return nil
		}
		e.board.note(err)
		if fatal(err) {
			e.board.enter(StateFailed)
			return err
		}
		e.board.restarts.Add(1)
		if e.board.acked.Load() > acked {
			pause.Reset()
		}
		next := pause.NextBackOff()
		e.board.enter(StateRetrying)
		e.cfg.Logger.Warn("the change feed stopped; it goes on from the confirmed position", "error", err, "retry_in", next.Round(time.Millisecond))
		if wait(ctx, next) != nil {
			e.board.enter(StateStopped)
			return nil
		}
	}
}

// Status is a snapshot of what the emitter does.
func (e *Emitter) Status() Status {
	s := e.board.snapshot()
	s.Shard, s.Slot = e.cfg.Shard, e.cfg.Slot
	return s
}

// Ready is Status().Ready().
func (e *Emitter) Ready() error { return e.Status().Ready() }
