package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/limits"
	"github.com/tidemark/tidemark/internal/overload"
	"github.com/tidemark/tidemark/internal/pause"
)

const (
	levelsInterval = time.Second
	// levelsSilence is after which a process that says nothing more counts for
	// nothing, and after which what was read last is too old to go by.
	levelsSilence = 5 * time.Second
)

// levels is what the processes of a deployment know of each other's overload, by
// way of the control database: late by a second or two, and normal when that is
// away.
type levels struct {
	db       *control.DB
	instance string
	mine     func() (overload.Level, string) // nil: this process measures nothing
	ordered  atomic.Int32                    // -1: none
	highest  atomic.Int32
}

// overloadLevels follows the levels, once per process.
func (b *builder) overloadLevels(ctx context.Context) (*levels, error) {
	if b.levels != nil {
		return b.levels, nil
	}
	db, err := b.openControl(ctx)
	if err != nil {
		return nil, err
	}
	b.levels = &levels{db: db, instance: b.cfg.Instance}
	b.levels.ordered.Store(-1)
	b.add("overload.levels", b.levels.run, always)
	return b.levels, nil
}

func (l *levels) run(ctx context.Context) error {
	read := time.Now()
	for pause.For(ctx, levelsInterval) {
		limited, cancel := context.WithTimeout(ctx, levelsSilence)
		err := l.exchange(limited)
		cancel()
		if err == nil {
			read = time.Now()
		} else if time.Since(read) > levelsSilence {
			l.ordered.Store(-1)
			l.highest.Store(int32(overload.Normal))
		}
	}
	return nil
}

func (l *levels) exchange(ctx context.Context) error {
	if l.mine != nil {
		level, why := l.mine()
		if err := l.db.ReportOverload(ctx, l.instance, int(level), why); err != nil {
			return err
		}
	}
	reports, order, err := l.db.Overload(ctx, levelsSilence)
	if err != nil {
		return err
	}
	highest, ordered := 0, -1
	for _, r := range reports {
		highest = max(highest, r.Level)
	}
	if order != nil {
		highest, ordered = order.Level, order.Level
	}
	l.highest.Store(int32(highest))
	l.ordered.Store(int32(ordered))
	return nil
}

// atLeast tells whether the deployment is at a level: an operator's, or the
// highest that a process has gone to.
func (l *levels) atLeast(want overload.Level) bool { return overload.Level(l.highest.Load()) >= want }

// order is the operator's level.
func (l *levels) order() (overload.Level, bool) {
	n := l.ordered.Load()
	return overload.Level(n), n >= 0
}

// tightFactor divides limits at level tight-limits.
const tightFactor = 4

// guard bounds what the API has in flight, and sets the process's level.
func (b *builder) guard(ctx context.Context, limiter *limits.Limiter) (*overload.Guard, error) {
	shared, err := b.overloadLevels(ctx)
	if err != nil {
		return nil, err
	}
	c := b.cfg.Overload
	g := overload.NewGuard(b.cfg.Shards, c.CommandsInFlight, c.QueriesInFlight)
	d, err := overload.NewController(overload.Config{
		Guard: g, Latency: c.CommandLatency, Forced: shared.order, Logger: b.log, Registerer: b.metrics,
		Apply: func(l overload.Level) {
			factor := 1
			if l >= overload.TightLimits {
				factor = tightFactor
			}
			if limiter != nil {
				limiter.Tighten(factor)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	shared.mine = d.Own
	b.actors = append(b.actors, actor{name: "overload", run: d.Run, ready: always, detail: d.Detail})
	return g, nil
}
