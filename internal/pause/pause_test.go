package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if !For(ctx, time.Second) || time.Since(start) != time.Second {
			t.Errorf("waited %v of 1s", time.Since(start))
		}
		if !For(ctx, 0) || !For(ctx, -time.Second) || time.Since(start) != time.Second {
			t.Error("waited for no time")
		}
		if For(ctx, time.Hour) || time.Since(start) != time.Minute {
			t.Errorf("ended after %v, the context after 1m", time.Since(start))
		}
		if For(ctx, 0) {
			t.Error("went on after the context's end")
		}
	})
}

func TestWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		if !While(ctx, nil) || !While(ctx, func() bool { return false }) || time.Since(start) != 0 {
			t.Errorf("waited %v for nothing", time.Since(start))
		}
		if !While(ctx, func() bool { return time.Since(start) < 4*time.Second }) || time.Since(start) != 4*time.Second {
			t.Errorf("waited %v of 4s", time.Since(start))
		}
		if While(ctx, func() bool { return true }) || time.Since(start) != time.Minute || While(ctx, nil) {
			t.Errorf("went on after %v, the context's end is at 1m", time.Since(start))
		}
	})
}
