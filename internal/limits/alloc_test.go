//go:build !race

package limits

import (
	"context"
	"testing"
)

// The hot path does not feed the collector.
func TestAllocations(t *testing.T) {
	limits := CallerLimits{Limit{600_000, 100_000}, Limit{600_000, 100_000}, Limit{600_000, 100_000}}
	caller, ctx := from("192.0.2.1"), context.Background()
	alone := newLimiter(t, Config{Commands: limits, Transitions: limits.Account})
	if n := testing.AllocsPerRun(1000, func() { alone.Take(ctx, Commands, caller) }); n > 0 {
		t.Errorf("%v allocations of a decision without Redis, want none", n)
	}
}
