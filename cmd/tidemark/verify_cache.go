package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// verifyCache compares what Redis holds with the floors and the facts. Traffic
// may run.
func verifyCache(ctx context.Context, cfg config.Config) (r verify.CacheReport, err error) {
	topo, err := cfg.Topology()
	if err != nil {
		return r, err
	}
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return r, err
	}
	defer db.Close()
	watch := db.WatchCache(cache.Relations)
	watch.Look(ctx)
	g, ok := watch.Active()
	if !ok {
		return r, errors.Join(errors.New("no generation of the relation cache is active: see `tidemark cache status`"), watch.Ready())
	}
	shards, err := db.ShardMap(ctx)
	if err != nil {
		return r, err
	}
	store, err := relations.Open(ctx, relations.Config{URLs: cfg.Postgres, Map: shards})
	if err != nil {
		return r, err
	}
	defer store.Close()
	redis, err := openRedis(cfg, 10*time.Second)
	if err != nil {
		return r, err
	}
	defer func() { _ = redis.Close() }()
	if err := redis.Held(ctx, g); err != nil {
		return r, fmt.Errorf("asking Redis for generation %d: %w", g.ID, err)
	}
	v := &verifier{cfg: cfg, topo: topo, store: store}
	opts, err := v.readerOptions()
	if err != nil {
		return r, err
	}
	return verify.CompareCache(ctx, verify.CacheConfig{
		Generation: g,
		Entries: func(ctx context.Context, visit func(cache.Relation) error) error {
			return redis.EachRelation(ctx, g, visit)
		},
		Floors: verify.ReadTable(topo.Topic(topology.CacheFloorTable), opts...), Facts: v.facts,
	})
}
