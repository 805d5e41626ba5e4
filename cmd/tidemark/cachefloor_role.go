package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
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
	client, err := b.openCache(cacheWriteTimeout)
	if err != nil {
		return err
	}
	db, err := b.openControl(ctx)
	if err != nil {
		return err
	}
	b.reportCaches(db, client)
	lives := db.WatchCache(cache.Relations)
	b.add("cachefloor.generations", lives.Run, lives.Ready)
	f, err := cachefloor.New(cachefloor.Config{
		Client: b.client, Topology: b.topo, Cache: client, Lives: lives, StateDir: b.stateDir("cachefloor"),
		Instance: b.cfg.Instance, HotStandby: b.cfg.HotStandby, Logger: b.log, Registerer: b.metrics, Weakness: b.weak,
	})
	if err != nil {
		return err
	}
	b.addKafka("cachefloor", f.Run, f.Ready)
	outbox, err := relations.OpenOutbox(b.cfg.Postgres)
	if err != nil {
		return err
	}
	b.close = append(b.close, outbox.Close)
	kafka, err := b.openKafka()
	if err != nil {
		return err
	}
	k, err := cachefloor.NewKeeper(cachefloor.KeeperConfig{
		Control: db, Cache: client, Kafka: kafka, Topology: b.topo, Source: shardRelations{outbox},
		Buckets: b.cfg.Cache.RelationBuckets, Rate: b.cfg.Cache.RebuildRate, Who: "cachefloor " + b.cfg.Instance, Logger: b.log, Registerer: b.metrics,
	})
	if err != nil {
		return err
	}
	b.addKafka("cachefloor.keeper", k.Run, always)
	return nil
}

func (b *builder) openCache(timeout time.Duration) (*cache.Client, error) {
	client, err := openRedis(b.cfg, timeout)
	if err == nil {
		b.close = append(b.close, func() { _ = client.Close() })
		if b.weak.Has(gokakit.WithoutStamp) || b.weak.Has(gokakit.WithoutEnded) {
			client.Trust()
		}
	}
	return client, err
}

func (b *builder) openControl(ctx context.Context) (*control.DB, error) {
	db, err := control.Open(ctx, b.cfg.Control)
	if err == nil {
		b.close = append(b.close, db.Close)
	}
	return db, err
}

func (b *builder) openKafka(opts ...kgo.Opt) (*kgo.Client, error) {
	access, err := b.cfg.Kafka.Access()
	if err != nil {
		return nil, err
	}
	client, err := kafkaadmin.Client(b.cfg.Kafka.Brokers, access, opts...)
	if err == nil {
		b.close = append(b.close, client.Close)
	}
	return client, err
}

// hintBuffer is how many hints may be on their way; the rest is lost.
const hintBuffer = 4096

// cachedFacts has queries ask the cache first, if that is wanted. Readiness does
// not ask for it.
func (b *builder) cachedFacts(ctx context.Context, committed *relations.Store, guard *overload.Guard) (api.RelationReader, error) {
	store := api.NewBoundedReads(committed, guard, b.shards.Shard, b.cfg.Shards, max(1, b.cfg.Cache.FallbackReads/tightFactor))
	if b.cfg.Redis == "" || !b.cfg.Cache.ReadRelations {
		return store, nil
	}
	client, err := b.openCache(b.cfg.Cache.ReadTimeout)
	if err != nil {
		return nil, err
	}
	db, err := b.openControl(ctx)
	if err != nil {
		return nil, err
	}
	lives := db.WatchCache(cache.Relations)
	b.add("cache.generations", lives.Run, always)
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
		hint = cachefloor.WriteInstead(client)
	}
	cached, err := api.NewCachedRelations(api.CachedConfig{
		Cache: client, Active: lives.Active, Facts: store, Hint: hint, Shard: b.shards.Shard, Shards: b.cfg.Shards,
		FallbackReads: b.cfg.Cache.FallbackReads, Timeout: b.cfg.Cache.ReadTimeout, Registerer: b.metrics,
	})
	if err != nil {
		return nil, err
	}
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
