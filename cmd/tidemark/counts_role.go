package main

import (
	"context"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/processors/display"
)

// cachedCounts has the display role bring its counts to Redis, if there is one,
// and look after them. Without Redis the role is ready all the same: what Redis has
// is then late, and the table goes on.
func (b *builder) cachedCounts(ctx context.Context) (*display.CountsConfig, error) {
	if b.cfg.Redis == "" {
		return nil, nil
	}
	client, err := b.openCache(cacheWriteTimeout)
	if err != nil {
		return nil, err
	}
	db, err := b.openControl(ctx)
	if err != nil {
		return nil, err
	}
	lives := db.WatchCache(cache.Counts)
	b.add("display.generations", lives.Run, always)
	kafka, err := b.openKafka()
	if err != nil {
		return nil, err
	}
	k, err := display.NewKeeper(display.KeeperConfig{
		Control: db, Cache: client, Kafka: kafka, Topology: b.topo, Manifest: b.manifest.ID, Who: "display " + b.cfg.Instance, Logger: b.log, Registerer: b.metrics,
	})
	if err != nil {
		return nil, err
	}
	b.addKafka("display.keeper", k.Run, always)
	return &display.CountsConfig{Cache: client, Live: lives.Live, Rate: b.cfg.Cache.RebuildRate}, nil
}
