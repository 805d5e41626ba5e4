package drills

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Patience ends, but not while the broker is being harmed beside what waits.
func TestAwait(t *testing.T) {
	for name, c := range map[string]struct {
		broken time.Duration // how long the broker is being harmed, from the start
		mended time.Duration // when what is awaited comes
		stuck  bool
	}{
		"at once":                    {0, 0, false},
		"in time":                    {0, 59 * time.Second, false},
		"too late":                   {0, 61 * time.Second, true},
		"late because of the broker": {30 * time.Second, 89 * time.Second, false},
		"too late in any case":       {30 * time.Second, 91 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, start := environment{harming: new(atomic.Int32)}, time.Now()
				go func() {
					_ = e.harm(t.Context(), true, func(ctx context.Context) error { return sleep(ctx, c.broken) })
				}()
				synctest.Wait()
				err := e.harm(t.Context(), false, func(ctx context.Context) error {
					return await(ctx, time.Minute, "the end", func() error {
						if time.Since(start) < c.mended {
							return errors.New("not yet")
						}
						return nil
					})
				})
				var stuck stuckError
				if errors.As(err, &stuck) != c.stuck || !c.stuck && err != nil {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// Harm to the broker has no excuse of its own.
func TestBrokersHarmIsNotExcused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := environment{harming: new(atomic.Int32)}
		err := e.harm(t.Context(), true, func(ctx context.Context) error {
			return await(ctx, time.Minute, "the end", func() error { return errors.New("never") })
		})
		var stuck stuckError
		if !errors.As(err, &stuck) {
			t.Errorf("%v", err)
		}
	})
}
