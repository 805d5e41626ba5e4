package cachekeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
)

// rebuild leads a generation to its activation, or to its end. Each phase is
// entered by a note in the control database, so that another keeper goes on where
// this one was.
func (k *Keeper) rebuild(ctx context.Context, g control.CacheGeneration) error {
	for {
		next, err := k.phase(ctx, &g)
		if no := (Unfit{}); errors.As(err, &no) {
			return k.giveUp(ctx, g.Generation, no.Error())
		}
		if err != nil {
			return fmt.Errorf("rebuilding generation %d: %w", g.ID, err)
		}
		if next == Activate {
			return k.activate(ctx, &g)
		}
		g.Progress.Phase = next
		if going, err := k.cfg.Control.NoteCacheProgress(ctx, g.Generation, g.Progress); err != nil || !going {
			return err
		}
	}
}

func (k *Keeper) phase(ctx context.Context, g *control.CacheGeneration) (next string, err error) {
	if g.Progress.Phase == "" {
		if err := k.tellRedis(ctx, g); err != nil {
			return "", err
		}
	}
	return k.whileHeld(ctx, g)
}

// whileHeld does a phase, and ends it as unfit when Redis loses the generation
// meanwhile: the family's writers try on until a generation has ended, so a phase
// that waits for them would wait for ever.
func (k *Keeper) whileHeld(ctx context.Context, g *control.CacheGeneration) (next string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	watching := make(chan struct{})
	go func(g cache.Generation) {
		defer close(watching)
		for lost := 0; lost < lossLooks; {
			if !pause.For(ctx, keepInterval) {
				return
			}
			if errors.Is(k.held(ctx, g), cache.ErrStamp) {
				lost++
			} else {
				lost = 0
			}
		}
		cancel(errLostMeanwhile)
	}(g.Generation)
	next, err = k.cfg.Part.Phase(ctx, g)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, errLostMeanwhile) {
		err = cause
	}
	cancel(nil)
	<-watching
	return next, err
}

// tellRedis stamps a generation into Redis, once ever.
func (k *Keeper) tellRedis(ctx context.Context, g *control.CacheGeneration) error {
	if err := k.cfg.Cache.Ping(ctx); err != nil {
		return err // before anything is noted: Redis is waited for
	}
	first, err := k.cfg.Control.StampingCache(ctx, g.Generation)
	if err != nil {
		return err
	}
	if !first {
		return k.stillHeld(ctx, g)
	}
	if err := k.cfg.Cache.Stamp(ctx, g.Generation); err != nil {
		return Unfitf("Redis could not be told of it: %w", err)
	}
	return nil
}

var errLostMeanwhile = Unfitf("Redis lost it while it was rebuilt")

// stillHeld says that a generation is unfit when Redis has lost it.
func (k *Keeper) stillHeld(ctx context.Context, g *control.CacheGeneration) error {
	err := k.held(ctx, g.Generation)
	if errors.Is(err, cache.ErrStamp) {
		return errLostMeanwhile
	}
	return err
}

// activate looks at the stamps once more: what Redis lost of the generation, it
// lost with them.
func (k *Keeper) activate(ctx context.Context, g *control.CacheGeneration) error {
	if err := k.stillHeld(ctx, g); err != nil {
		if no := (Unfit{}); errors.As(err, &no) {
			return k.giveUp(ctx, g.Generation, no.Error())
		}
		return err
	}
	if _, err := k.cfg.Control.NoteCacheProgress(ctx, g.Generation, g.Progress); err != nil {
		return err
	}
	changed, err := k.cfg.Control.ActivateCache(ctx, g.Generation, k.cfg.Who)
	if err == nil && changed {
		k.log.Info("the cache is whole and active", "family", g.Family, "generation", g.ID, "entries", g.Progress.Entries)
	}
	return err
}
