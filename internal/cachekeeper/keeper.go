// Package cachekeeper leads the generations of a family of the cache through
// their lives, which stand in the control database (E3): it begins one when there
// is none or when Redis has lost the active one, stamps it into Redis, once, has
// the family's own part bring into it what belongs there, activates it by CAS, and
// clears Redis of what has ended.
package cachekeeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
)

// Part is what is particular about a family.
type Part interface {
	// Begin begins a generation in the control database.
	Begin(ctx context.Context, reason string) (control.CacheGeneration, error)
	// Stale says why an active generation that Redis holds must end all the same;
	// empty when it need not.
	Stale(g cache.Generation) string
	// Phase does the phase of a rebuilding at which g.Progress stands, and names the
	// next one; the first is "", with Redis told of the generation, and the last
	// names Activate. It may be done again, by another process: what it did is noted
	// behind it. An Unfit ends the generation; another error lets it be tried again.
	Phase(ctx context.Context, g *control.CacheGeneration) (next string, err error)
	// End tells the family's writers that a generation has ended. It may be called
	// again.
	End(ctx context.Context, g cache.Generation) error
}

// Activate is the name of the phase behind the last one of a Part.
const Activate = "activate"

// Unfit says why a generation must not be activated.
type Unfit struct{ error }

// Unfitf makes an Unfit.
func Unfitf(format string, args ...any) error { return Unfit{fmt.Errorf(format, args...)} }

// Unwrap is for errors.Is.
func (u Unfit) Unwrap() error { return u.error }

// Config of a keeper.
type Config struct {
	Family  cache.Family
	Part    Part
	Control *control.DB
	Cache   *cache.Client
	// Who stands in the audit.
	Who    string
	Logger *slog.Logger
	// Losses counts active generations that Redis has lost.
	Losses prometheus.Counter
}

// Keeper looks after a family; of several, one at a time does.
type Keeper struct {
	cfg  Config
	log  *slog.Logger
	lost int // looks at the active generation in a row that found it lost
}

// New makes one.
func New(cfg Config) *Keeper { return &Keeper{cfg: cfg, log: cfg.Logger} }

// Intervals of the keeper.
const (
	keepInterval = time.Second
	// lossLooks is how many looks in a row must find a generation lost: a slot
	// that moves, or a node whose history is asked just now, looks like that for
	// a moment.
	lossLooks = 2
	// A generation that failed is followed by another after a pause that doubles
	// with each failure in a row, up to this.
	maxFailurePause = time.Minute
	// dropPause stands between two steps of removing an ended generation.
	dropPause = 2 * time.Millisecond
)

// Run keeps the family until ctx ends; it returns nil then. That one keeper runs
// at a time only saves work: two are kept apart by the generations' steps, each
// taken once.
func (k *Keeper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		_, err := k.cfg.Control.Exclusively(ctx, "keeping the cache: "+string(k.cfg.Family), func(ctx context.Context) error {
			for {
				if err := k.step(ctx); err != nil {
					return err
				}
				if !pause.For(ctx, keepInterval) {
					return nil
				}
			}
		})
		if err != nil && ctx.Err() == nil {
			k.log.Warn("looking after the cache failed, trying again", "family", k.cfg.Family, "error", err)
		}
		pause.For(ctx, keepInterval)
	}
	return nil
}

// step looks once, and does what there is to do.
func (k *Keeper) step(ctx context.Context) error {
	all, err := k.cfg.Control.CacheGenerations(ctx, k.cfg.Family, 8)
	if err != nil {
		return err
	}
	var active, rebuilding *control.CacheGeneration
	for i, g := range all {
		switch g.Status {
		case control.CacheActive:
			active = &all[i]
		case control.CacheRebuilding:
			rebuilding = &all[i]
		case control.CacheRetired, control.CacheFailed:
			if err := k.bury(ctx, g); err != nil {
				k.log.Debug("removing an ended cache generation", "family", k.cfg.Family, "generation", g.ID, "error", err)
			}
		}
	}
	if active != nil && k.isLost(ctx, *active) {
		k.cfg.Losses.Inc()
		return k.giveUp(ctx, active.Generation, "Redis does not hold it any more: its memory was lost, or went back")
	}
	if active != nil {
		if why := k.cfg.Part.Stale(active.Generation); why != "" {
			return k.giveUp(ctx, active.Generation, why)
		}
	}
	switch {
	case rebuilding != nil:
		return k.rebuild(ctx, *rebuilding)
	case active == nil && mayBegin(all):
		return k.begin(ctx, all)
	}
	return nil
}

// isLost tells whether Redis has lost the active generation. A Redis that is
// away has lost nothing yet.
func (k *Keeper) isLost(ctx context.Context, g control.CacheGeneration) bool {
	if !errors.Is(k.held(ctx, g.Generation), cache.ErrStamp) {
		k.lost = 0
		return false
	}
	k.lost++
	return k.lost >= lossLooks
}

// held follows moved slots, and asks Redis for a generation.
func (k *Keeper) held(ctx context.Context, g cache.Generation) error {
	err := k.cfg.Cache.Restamp(ctx, g)
	if err == nil {
		err = k.cfg.Cache.Held(ctx, g)
	}
	return err
}

func (k *Keeper) giveUp(ctx context.Context, g cache.Generation, reason string) error {
	k.lost = 0
	changed, err := k.cfg.Control.FailCache(ctx, g, k.cfg.Who, reason)
	if err != nil || !changed {
		return err
	}
	k.log.Warn("a cache generation is given up; queries do without it until another one is whole", "family", g.Family, "generation", g.ID, "reason", reason)
	return nil
}

func mayBegin(all []control.CacheGeneration) bool {
	wait := time.Second
	for _, g := range all {
		if g.Status != control.CacheFailed || g.ActivatedAt != nil || g.EndedAt == nil {
			break
		}
		wait = min(2*wait, maxFailurePause)
	}
	return len(all) == 0 || all[0].EndedAt == nil || time.Since(*all[0].EndedAt) > wait
}

func (k *Keeper) begin(ctx context.Context, all []control.CacheGeneration) error {
	reason := "there was none"
	if len(all) > 0 {
		reason = fmt.Sprintf("generation %d: %s", all[0].ID, all[0].EndedReason)
	}
	g, err := k.cfg.Part.Begin(ctx, reason)
	if errors.Is(err, control.ErrCacheRebuilding) {
		return nil
	}
	if err != nil {
		return err
	}
	k.log.Info("rebuilding the cache", "family", g.Family, "generation", g.ID, "reason", reason)
	return nil
}

// bury tells writers that a generation has ended, and clears Redis of it.
func (k *Keeper) bury(ctx context.Context, g control.CacheGeneration) error {
	if g.Dropped {
		return nil
	}
	if err := k.cfg.Part.End(ctx, g.Generation); err != nil {
		return err
	}
	gently := func(ctx context.Context) error {
		if !pause.For(ctx, dropPause) {
			return ctx.Err()
		}
		return nil
	}
	keys, err := k.cfg.Cache.Drop(ctx, g.Generation, gently)
	if err != nil {
		return err
	}
	k.log.Info("removed an ended cache generation from Redis", "family", g.Family, "generation", g.ID, "keys", keys)
	return k.cfg.Control.CacheDropped(ctx, g.Generation)
}
