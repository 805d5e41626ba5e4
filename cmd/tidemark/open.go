package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/relations"
)

// What roles open here is closed when the process ends.

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

func (b *builder) openOutbox() (*relations.Outbox, error) {
	outbox, err := relations.OpenOutbox(b.cfg.Postgres)
	if err == nil {
		b.close = append(b.close, outbox.Close)
	}
	return outbox, err
}

// cacheFamily is what a role needs to write or read one family of the cache.
type cacheFamily struct {
	client *cache.Client
	db     *control.DB
	lives  *control.CacheWatch // to be run by the role
}

func (b *builder) openFamily(ctx context.Context, f cache.Family, timeout time.Duration) (c cacheFamily, err error) {
	if c.client, err = b.openCache(timeout); err != nil {
		return c, err
	}
	if c.db, err = b.openControl(ctx); err != nil {
		return c, err
	}
	c.lives = c.db.WatchCache(f)
	return c, nil
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

// openFacts opens the shards by the map that is in force, for commands that look
// and end; the caller closes it.
func openFacts(ctx context.Context, cfg config.Config, db *control.DB) (*relations.Store, error) {
	shards, err := db.ShardMap(ctx)
	if err != nil {
		return nil, err
	}
	return relations.Open(ctx, relations.Config{URLs: cfg.Postgres, Map: shards})
}
