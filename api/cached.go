package api

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/tidemark/tidemark/internal/breaker"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// RelationCache reads cached relations; *cache.Client does.
type RelationCache interface {
	Relations(ctx context.Context, g cache.Generation, kind topology.Kind, user string, targets []string) ([]cache.Cached, error)
}

// CachedConfig of a reader that asks the cache first.
type CachedConfig struct {
	Cache RelationCache
	// Active is the cache generation to read; ok is false while none may be read,
	// as during a rebuilding.
	Active func() (g cache.Generation, ok bool)
	// Facts is where relations are committed.
	Facts RelationReader
	// Hint hands in a relation that the cache did not have, as Facts has it; it must
	// not wait. A reader never writes the cache: what it has read may be old by the
	// time it would be written, and an empty place takes anything (S 6.3).
	Hint func(cache.Generation, cache.Relation)
	// HintUser hands in a user of whom the cache did not know that there is no
	// relation of a kind; it must not wait.
	HintUser func(g cache.Generation, kind topology.Kind, user string)
	// Shard is where a user's relations are; of Shards.
	Shard  func(user string) int
	Shards int
	// FallbackReads of a shard go on at a time; as many times fallbackQueue wait,
	// and the rest is refused, so that losing the cache does not take the shards
	// down. Default 16.
	FallbackReads int
	// Timeout after which the cache is done without; default
	// cache.DefaultTimeout.
	Timeout    time.Duration
	Registerer prometheus.Registerer // optional
}

const fallbackQueue = 16

// CachedRelations reads relations from the cache, and from their shard what the
// cache does not have, or has below the version that the client has seen. The
// cache may be late by as much as the change feed; it is never asked twice, and
// nothing that is wrong with it makes an answer wrong: a slow, broken or lost
// Redis costs reads of the shards. StateChangedAt is not cached.
type CachedRelations struct {
	cfg     CachedConfig
	breaker breaker.Breaker
	flights singleflight.Group
	running []chan struct{} // by shard
	waiting []atomic.Int64  // by shard

	hits, misses, late, bypassed prometheus.Counter

	fallbacks *prometheus.CounterVec
	refused   prometheus.Counter
}

// NewCachedRelations makes one.
func NewCachedRelations(cfg CachedConfig) (*CachedRelations, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = cache.DefaultTimeout
	}
	if cfg.FallbackReads == 0 {
		cfg.FallbackReads = 16
	}
	c := &CachedRelations{cfg: cfg, waiting: make([]atomic.Int64, cfg.Shards)}
	for range cfg.Shards {
		c.running = append(c.running, make(chan struct{}, cfg.FallbackReads))
	}
	reads := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_cache_reads_total", Help: "Relations that queries asked for: hit, miss (not cached), late (below the client's version), or bypass (the cache was not asked or did not answer)."}, []string{"result"})
	c.hits, c.misses, c.late, c.bypassed = reads.WithLabelValues("hit"), reads.WithLabelValues("miss"), reads.WithLabelValues("late"), reads.WithLabelValues("bypass")
	c.fallbacks = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_cache_fallbacks_total", Help: "Queries that the cache could not answer whole: read (from their shard) or shared (the answer of the same question, which was being read)."}, []string{"result"})
	for _, result := range []string{"read", "shared"} {
		c.fallbacks.WithLabelValues(result)
	}
	c.refused = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_cache_fallback_refused_total", Help: "Queries that were refused because too many waited for their shard already."})
	if cfg.Registerer != nil {
		if err := errors.Join(cfg.Registerer.Register(reads), cfg.Registerer.Register(c.fallbacks), cfg.Registerer.Register(c.refused)); err != nil {
			return nil, fmt.Errorf("registering the cache's metrics: %w", err)
		}
	}
	return c, nil
}

// States reads without a least version.
func (c *CachedRelations) States(ctx context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error) {
	return c.StatesAtLeast(ctx, user, kind, targets, nil)
}

// StatesAtLeast reads a user's relations of one kind to the targets, in their
// order. least has, per target, the version that the client has seen; nil: none.
func (c *CachedRelations) StatesAtLeast(ctx context.Context, user string, kind topology.Kind, targets []string, least []uint64) ([]relations.Fact, error) {
	facts := make([]relations.Fact, len(targets))
	g, cached := c.ask(ctx, user, kind, targets)
	var missing []string
	var places []int
	fresh := false // a shared read may be older than what the client has seen
	for i, target := range targets {
		if cached != nil && cached[i].Found && (least == nil || cached[i].Version >= least[i]) {
			facts[i] = relations.Fact{Relation: topology.Relation{Kind: kind, User: user, Target: target}, State: cached[i].State, Version: cached[i].Version}
			continue
		}
		fresh = fresh || least != nil && least[i] > 0
		missing, places = append(missing, target), append(places, i)
	}
	c.count(cached, least, len(targets))
	if len(missing) == 0 {
		return facts, nil
	}
	found, err := c.fallBack(ctx, user, kind, missing, fresh)
	if err != nil {
		return nil, err
	}
	unknown := false
	for i, f := range found {
		at := places[i]
		facts[at] = f
		unknown = unknown || cached != nil && f.Version == 0 && !cached[at].Found && !cached[at].Many
		if cached != nil && f.Version > cached[at].Version {
			c.cfg.Hint(g, cache.Relation{Relation: f.Relation, State: f.State, Version: f.Version})
		}
	}
	if unknown {
		c.cfg.HintUser(g, kind, user)
	}
	return facts, nil
}

func (c *CachedRelations) count(cached []cache.Cached, least []uint64, asked int) {
	if cached == nil {
		c.bypassed.Add(float64(asked))
		return
	}
	var hit, miss, late float64
	for i, have := range cached {
		switch {
		case !have.Found:
			miss++
		case least != nil && have.Version < least[i]:
			late++
		default:
			hit++
		}
	}
	c.hits.Add(hit)
	c.misses.Add(miss)
	c.late.Add(late)
}

// Away says whether the cache is done without since it fails.
func (c *CachedRelations) Away() bool { return c.breaker.Open() }

// ask asks the cache; nil when it is done without.
func (c *CachedRelations) ask(ctx context.Context, user string, kind topology.Kind, targets []string) (cache.Generation, []cache.Cached) {
	g, ok := c.cfg.Active()
	if !ok || len(targets) == 0 || !c.breaker.Enter() {
		return g, nil
	}
	limited, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	cached, err := c.cfg.Cache.Relations(limited, g, kind, user, targets)
	if ctx.Err() == nil { // a client that has gone says nothing of the cache
		c.breaker.Leave(err)
	}
	if err != nil {
		return g, nil
	}
	return g, cached
}

// fallBack reads from the shard: the same question at a time once, unless the
// answer must be fresh, and only so many at a time.
func (c *CachedRelations) fallBack(ctx context.Context, user string, kind topology.Kind, targets []string, fresh bool) ([]relations.Fact, error) {
	if fresh {
		return c.bounded(ctx, user, kind, targets)
	}
	key := kind.String() + "\x00" + user + "\x00" + strings.Join(targets, "\x00")
	var mine atomic.Bool
	answer := c.flights.DoChan(key, func() (any, error) {
		mine.Store(true)
		// Whoever came first may leave; the others still wait.
		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), sharedReadTimeout)
		defer cancel()
		return c.bounded(shared, user, kind, targets)
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case a := <-answer:
		if !mine.Load() {
			c.fallbacks.WithLabelValues("shared").Inc()
		}
		if a.Err != nil {
			return nil, a.Err
		}
		return a.Val.([]relations.Fact), nil
	}
}

const sharedReadTimeout = 5 * time.Second

func (c *CachedRelations) bounded(ctx context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error) {
	shard := c.cfg.Shard(user)
	if c.waiting[shard].Add(1) > int64(c.cfg.FallbackReads*fallbackQueue) {
		c.waiting[shard].Add(-1)
		c.refused.Inc()
		return nil, fmt.Errorf("%w: too many queries wait for shard %d", relations.ErrUnavailable, shard)
	}
	select {
	case <-ctx.Done():
		c.waiting[shard].Add(-1)
		return nil, fmt.Errorf("%w: waiting for shard %d: %w", relations.ErrUnavailable, shard, ctx.Err())
	case c.running[shard] <- struct{}{}:
	}
	c.waiting[shard].Add(-1)
	defer func() { <-c.running[shard] }()
	c.fallbacks.WithLabelValues("read").Inc()
	return c.cfg.Facts.States(ctx, user, kind, targets)
}
