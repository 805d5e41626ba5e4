package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/topology"
)

// cacheReport is what verify --redis says: of relations, and of counts.
type cacheReport struct {
	verify.CacheReport
	Counts verify.CountsReport `json:"counts"`
}

func (r cacheReport) wrong() bool { return r.Wrong > 0 || r.Counts.Wrong > 0 }

// WriteTable prints the report for people.
func (r cacheReport) WriteTable(w io.Writer) error {
	return errors.Join(r.CacheReport.WriteTable(w), r.Counts.WriteTable(w))
}

// verifyCache compares what Redis holds with where it comes from. Traffic may run.
func verifyCache(ctx context.Context, cfg config.Config) (r cacheReport, err error) {
	topo, err := cfg.Topology()
	if err != nil {
		return r, err
	}
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return r, err
	}
	defer db.Close()
	redis, err := openRedis(cfg, 10*time.Second)
	if err != nil {
		return r, err
	}
	defer func() { _ = redis.Close() }()
	v := &verifier{cfg: cfg, topo: topo}
	if r.CacheReport, err = v.cachedRelations(ctx, db, redis); err != nil {
		return r, err
	}
	r.Counts, err = v.cachedCounts(ctx, db, redis)
	return r, err
}

// activeGeneration is the one whose entries are compared.
func activeGeneration(ctx context.Context, db *control.DB, redis *cache.Client, f cache.Family) (cache.Generation, error) {
	watch := db.WatchCache(f)
	watch.Look(ctx)
	g, ok := watch.Active()
	if !ok {
		return g, errors.Join(fmt.Errorf("no generation of the %s cache is active: see `tidemark cache status`", f), watch.Ready())
	}
	if err := redis.Held(ctx, g); err != nil {
		return g, fmt.Errorf("asking Redis for generation %d of %s: %w", g.ID, f, err)
	}
	return g, nil
}

// cachedRelations compares relations with the floors and the facts.
func (v *verifier) cachedRelations(ctx context.Context, db *control.DB, redis *cache.Client) (r verify.CacheReport, err error) {
	g, err := activeGeneration(ctx, db, redis, cache.Relations)
	if err != nil {
		return r, err
	}
	if v.store, err = openFacts(ctx, v.cfg, db); err != nil {
		return r, err
	}
	defer v.store.Close()
	opts, err := v.readerOptions()
	if err != nil {
		return r, err
	}
	return verify.CompareCache(ctx, verify.CacheConfig{
		Generation: g,
		Entries: func(ctx context.Context, visit func(cache.Relation) error, whole func(cache.Bucket)) error {
			return redis.EachRelation(ctx, g, visit, whole)
		},
		Floors: verify.ReadTable(v.topo.Topic(topology.CacheFloorTable), opts...), Facts: v.facts,
	})
}

// cachedCounts compares counts with the display table.
func (v *verifier) cachedCounts(ctx context.Context, db *control.DB, redis *cache.Client) (r verify.CountsReport, err error) {
	g, err := activeGeneration(ctx, db, redis, cache.Counts)
	if err != nil {
		return r, err
	}
	opts, err := v.readerOptions()
	if err != nil {
		return r, err
	}
	return verify.CompareCounts(ctx, verify.CountsConfig{
		Generation: g, Topology: v.topo.Config,
		Progress: func(ctx context.Context, partitions []int) ([]*cache.CountProgress, error) {
			return redis.CountProgress(ctx, g, partitions)
		},
		Entries: func(ctx context.Context, visit func(*cache.DisplayCount, *cache.BucketCount) error) error {
			return redis.EachCount(ctx, g, visit)
		},
		Display: verify.ReadTable(v.topo.Topic(topology.DisplayTable), opts...),
	})
}
