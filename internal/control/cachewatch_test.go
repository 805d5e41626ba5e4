package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
)

// A watch that cannot look any more stops naming an active generation before
// anybody may take it for ended (E3).
func TestAWatchForgetsWhatItCannotSee(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var away error
		one := cache.Generation{Family: cache.Relations, ID: 7, Deployment: "d", Buckets: 1}
		w := &CacheWatch{read: func(context.Context) ([]CacheGeneration, error) {
			return []CacheGeneration{{Generation: one, Status: CacheActive}}, away
		}}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = w.Run(ctx) }()
		synctest.Wait()
		if g, ok := w.Active(); !ok || g != one || w.Ready() != nil {
			t.Fatalf("active %v %v", g, ok)
		}
		away = errors.New("away")
		time.Sleep(CacheLease + 2*cacheWatchInterval)
		if g, ok := w.Active(); ok || w.Ready() == nil {
			t.Fatalf("active %v after the lease", g)
		}
		old := one
		old.ID = 3
		if !w.Ended(old) || w.Ended(one) {
			t.Error("what is too old to be listed has ended, what was active has not")
		}
		stop()
		<-done
	})
}
