package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/limits"
	"github.com/tidemark/tidemark/internal/overload"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/views"
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
	l := newLevels(db, b.cfg.Instance)
	if err := b.metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "tidemark_overload_heard_level", Help: "The highest level of any process of the deployment, or an operator's, as this process has heard; it paces displayed counts and pauses what can wait.",
	}, func() float64 { return float64(l.highest.Load()) })); err != nil {
		return nil, err
	}
	b.levels = l
	b.add("overload.levels", b.levels.run, always)
	return b.levels, nil
}

// newLevels knows of none until it runs.
func newLevels(db *control.DB, instance string) *levels {
	l := &levels{db: db, instance: instance}
	l.ordered.Store(-1)
	return l
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

// consumersPaused tells that what can wait shall wait.
func (l *levels) consumersPaused() bool { return l.atLeast(overload.PauseConsumers) }

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
		More: b.measured,
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

// measured are the signals that the process's parts have given. All have been
// built before the first look.
func (b *builder) measured() (all []overload.Signal) {
	for _, s := range b.signals {
		all = append(all, s())
	}
	return all
}

// poolWait presses while reads wait for connections to their shard.
func poolWait(waits *relations.PoolWaits, limit time.Duration) func() overload.Signal {
	return func() overload.Signal {
		return overload.Signal{Name: "pool-wait", Value: waits.Longest().Seconds(), Limit: limit.Seconds()}
	}
}

// countLag presses while displayed counts are old. That brings what leaves the
// count path more room, and no more: refusing users makes no count newer, and
// while Kafka is away commands and reads of shards are as well as ever.
func countLag(view *views.Display, limit time.Duration) func() overload.Signal {
	return func() overload.Signal {
		lag, _ := view.Lag() // 0 while it is not known: the view says by itself that it is not ready
		return overload.Signal{Name: "count-lag", Value: lag.Seconds(), Limit: limit.Seconds(), Most: overload.PauseConsumers}
	}
}
