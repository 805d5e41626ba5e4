package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/overload"
	"github.com/tidemark/tidemark/processors/cachefloor"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// cacheWriteTimeout is longer than readers wait: a batch is hundreds of entries,
// and what is given up is only tried again.
const cacheWriteTimeout = 3 * time.Second

// cachefloor is the one writer of the relation cache, and its keeper.
func (b *builder) cachefloor(ctx context.Context) error {
	c, err := b.openFamily(ctx, cache.Relations, cacheWriteTimeout)
	if err != nil {
		return err
	}
	b.reportCaches(c.db, c.client)
	b.add("cachefloor.generations", c.lives.Run, c.lives.Ready)
	f, err := cachefloor.New(cachefloor.Config{
		Client: b.client, Topology: b.topo, Cache: c.client, Lives: c.lives, StateDir: b.stateDir("cachefloor"),
		Instance: b.cfg.Instance, HotStandby: b.cfg.HotStandby, Logger: b.log, Registerer: b.metrics, Weakness: b.weak,
	})
	if err != nil {
		return err
	}
	b.addKafka("cachefloor", f.Run, f.Ready)
	outbox, err := b.openOutbox()
	if err != nil {
		return err
	}
	kafka, err := b.openKafka()
	if err != nil {
		return err
	}
	k, err := cachefloor.NewKeeper(cachefloor.KeeperConfig{
		Control: c.db, Cache: c.client, Kafka: kafka, Topology: b.topo, Source: shardRelations{outbox},
		Buckets: b.cfg.Cache.RelationBuckets, Rate: b.cfg.Cache.RebuildRate, Who: "cachefloor " + b.cfg.Instance, Logger: b.log, Registerer: b.metrics,
	})
	if err != nil {
		return err
	}
	b.addKafka("cachefloor.keeper", k.Run, always)
	return nil
}

// hintBuffer is how many hints may be on their way; the rest is lost.
const hintBuffer = 4096

// cachedFacts has queries ask the cache first, if that is wanted. Readiness does
// not ask for it.
func (b *builder) cachedFacts(ctx context.Context, store api.RelationReader) (api.RelationReader, error) {
	if b.cfg.Redis == "" || !b.cfg.Cache.ReadRelations {
		return store, nil
	}
	c, err := b.openFamily(ctx, cache.Relations, b.cfg.Cache.ReadTimeout)
	if err != nil {
		return nil, err
	}
	b.add("cache.generations", c.lives.Run, always)
	kafka, err := b.openKafka(kgo.MaxBufferedRecords(hintBuffer))
	if err != nil {
		return nil, err
	}
	hints, err := cachefloor.NewHints(b.topo, b.shards, kafka, b.metrics)
	if err != nil {
		return nil, err
	}
	hint := hints.Hint
	if b.weak.Has(gokakit.WithoutOneWriter) {
		hint = cachefloor.WriteInstead(c.client)
	}
	cached, err := api.NewCachedRelations(api.CachedConfig{
		Cache: c.client, Active: c.lives.Active, Facts: store, Hint: hint, HintUser: hints.HintUser, Shard: b.shards.Shard, Shards: b.cfg.Shards,
		FallbackReads: b.cfg.Cache.FallbackReads, Timeout: b.cfg.Cache.ReadTimeout, Registerer: b.metrics,
	})
	if err != nil {
		return nil, err
	}
	b.signals = append(b.signals, func() overload.Signal {
		s := overload.Signal{Name: "cache-away", Limit: 1, Most: overload.PauseConsumers}
		if cached.Away() {
			s.Value = 1
		}
		return s
	})
	if b.weak.Has(gokakit.WithoutLeast) {
		return struct{ api.RelationReader }{cached}, nil
	}
	return cached, nil
}

// shardRelations reads relations for a rebuilding.
type shardRelations struct{ *relations.Outbox }

func (s shardRelations) Relations(ctx context.Context, shard int, after topology.Relation, limit int) ([]cache.Relation, error) {
	facts, err := s.Outbox.Relations(ctx, shard, after, limit)
	page := make([]cache.Relation, len(facts))
	for i, f := range facts {
		page[i] = cache.Relation{Relation: f.Relation, State: f.State, Version: f.Version}
	}
	return page, err
}
