package control

import (
	"context"
	"sync"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/pause"
)

// CacheWatch knows which generation of a family is active, for those who read
// and write the cache. What it knows is at most about CacheLease old: a process
// that cannot reach the control database stops reading the cache, since the
// generation that it knows may have ended, and nobody writes one that has.
type CacheWatch struct {
	read func(ctx context.Context) ([]CacheGeneration, error)

	mu  sync.RWMutex
	all []CacheGeneration
	at  time.Time // when all was read; zero: never
	why error
}

// How often generations are read, and how long what was read counts.
const (
	cacheWatchInterval = 500 * time.Millisecond
	CacheLease         = 5 * time.Second
)

// WatchCache makes a watch; its Run must run.
func (d *DB) WatchCache(f cache.Family) *CacheWatch {
	return &CacheWatch{
		read: func(ctx context.Context) ([]CacheGeneration, error) { return d.CacheGenerations(ctx, f, 8) },
	}
}

// Run reads generations until ctx ends; it returns nil then.
func (w *CacheWatch) Run(ctx context.Context) error {
	for {
		w.Look(ctx)
		if !pause.For(ctx, cacheWatchInterval) {
			break
		}
	}
	return nil
}

// Look reads generations now.
func (w *CacheWatch) Look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, CacheLease)
	defer cancel()
	start := time.Now()
	all, err := w.read(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.why = err
		return
	}
	w.all, w.at, w.why = all, start, nil
}

// Ready is nil while generations are known.
func (w *CacheWatch) Ready() error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.why
}

// Active is the generation to read; ok is false when there is none, or when it
// is not known now.
func (w *CacheWatch) Active() (g cache.Generation, ok bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.at.IsZero() || time.Since(w.at) > CacheLease {
		return g, false
	}
	for _, g := range w.all {
		if g.Status == CacheActive {
			return g.Generation, true
		}
	}
	return g, false
}

// Live are the generations to write: those that Redis was told of and that have
// not ended. What is known may be old; a server that does not hold a generation
// refuses its writes.
func (w *CacheWatch) Live() (live []cache.Generation) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, g := range w.all {
		if g.Stamped && (g.Status == CacheActive || g.Status == CacheRebuilding) {
			live = append(live, g.Generation)
		}
	}
	return live
}

// Ended tells whether a generation is RETIRED or FAILED, for ever.
func (w *CacheWatch) Ended(g cache.Generation) bool {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.endedLocked(g.ID)
}

func (w *CacheWatch) endedLocked(id uint64) bool {
	for _, g := range w.all {
		if g.ID == id {
			return g.Status == CacheRetired || g.Status == CacheFailed
		}
	}
	return len(w.all) > 0 && id < w.all[0].ID // too old to be listed
}
