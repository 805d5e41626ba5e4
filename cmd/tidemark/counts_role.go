package main

import (
	"context"
	"errors"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/processors/display"
	"github.com/tidemark/tidemark/views"
)

// cachedCounts has the display role bring its counts to Redis, if there is one,
// and look after them. Without Redis the role is ready all the same: what Redis has
// is then late, and the table goes on.
func (b *builder) cachedCounts(ctx context.Context) (*display.CountsConfig, error) {
	if b.cfg.Redis == "" {
		return nil, nil
	}
	c, err := b.openFamily(ctx, cache.Counts, cacheWriteTimeout)
	if err != nil {
		return nil, err
	}
	b.reportCaches(c.db, c.client)
	b.add("display.generations", c.lives.Run, always)
	kafka, err := b.openKafka()
	if err != nil {
		return nil, err
	}
	k, err := display.NewKeeper(display.KeeperConfig{
		Control: c.db, Cache: c.client, Kafka: kafka, Topology: b.topo, Manifest: b.manifest.ID, Who: "display " + b.cfg.Instance, Logger: b.log, Registerer: b.metrics,
	})
	if err != nil {
		return nil, err
	}
	b.addKafka("display.keeper", k.Run, always)
	return &display.CountsConfig{Cache: c.client, Live: c.lives.Live, Rate: b.cfg.Cache.RebuildRate}, nil
}

// reportCaches has /status/cache tell operators of generations and of how far
// rebuildings are, as `tidemark cache status --output json` does.
func (b *builder) reportCaches(db *control.DB, redis *cache.Client) {
	b.health.SetReport("cache", func(ctx context.Context) (any, error) { return listCaches(ctx, db, redis) })
}

// countReader is where queries read counts: from a view of the display table, from
// Redis, or from the view and, while it recovers, from Redis.
func (b *builder) countReader(ctx context.Context) (api.CountReader, error) {
	source := b.cfg.Cache.CountSource
	var view *views.Display
	if source != config.CountsFromRedis {
		var err error
		if view, err = views.NewDisplay(views.DisplayConfig{
			Client: b.client, Topology: b.topo, StateDir: b.stateDir("view"), Logger: b.log, Registerer: b.metrics,
		}); err != nil {
			return nil, err
		}
		b.signals = append(b.signals, countLag(view, b.cfg.Overload.CountLag))
		if source == config.CountsFromView {
			b.addKafka("view", view.Run, view.Ready)
			return view, nil
		}
	}
	c, err := b.openFamily(ctx, cache.Counts, b.cfg.Cache.ReadTimeout)
	if err != nil {
		return nil, err
	}
	cfg := views.CachedConfig{Cache: c.client, Active: c.lives.Active, Topology: b.topo, ViewFirst: true, Timeout: b.cfg.Cache.ReadTimeout, Registerer: b.metrics}
	ready := func() error {
		if _, ok := c.lives.Active(); !ok {
			return errors.New("no cache generation of counts is active: see `tidemark cache status`")
		}
		return nil
	}
	b.add("counts.generations", c.lives.Run, func() error {
		if view != nil && view.Ready() == nil {
			return nil
		}
		return ready()
	})
	if view != nil {
		cfg.View = view
		b.addKafka("view", view.Run, func() error {
			if ready() == nil {
				return nil // Redis answers meanwhile
			}
			return view.Ready()
		})
	}
	cached, err := views.NewCached(cfg)
	if err == nil {
		b.close = append(b.close, cached.Close)
	}
	return cached, err
}
