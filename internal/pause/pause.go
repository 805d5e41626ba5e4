// Package pause waits.
package pause

import (
	"context"
	"time"
)

// For waits for d and tells whether it did so to the end: false when ctx ended
// first. It does not wait when d is not positive.
func For(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// again is how often While asks.
const again = time.Second

// While waits as long as paused says so, asking once a second, and tells whether
// it may go on: false when ctx ended first. A nil paused never does.
func While(ctx context.Context, paused func() bool) bool {
	for paused != nil && paused() {
		if !For(ctx, again) {
			return false
		}
	}
	return ctx.Err() == nil
}
