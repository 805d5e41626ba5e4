package main

import (
	"context"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/processors/likers"
	"github.com/tidemark/tidemark/views"
)

// keptHeads is how likers keeps heads of hot lists; nil when that is not wanted.
func (b *builder) keptHeads(ctx context.Context) (*likers.HeadsConfig, error) {
	if !b.cfg.Cache.Heads || b.cfg.Redis == "" {
		return nil, nil
	}
	c, err := b.openFamily(ctx, cache.Heads, cacheWriteTimeout)
	if err != nil {
		return nil, err
	}
	b.add("likers.generations", c.lives.Run, always)
	keeper, err := likers.NewHeadsKeeper(likers.HeadsKeeperConfig{Control: c.db, Cache: c.client, Who: "likers " + b.cfg.Instance, Logger: b.log, Registerer: b.metrics})
	if err != nil {
		return nil, err
	}
	b.add("likers.heads", keeper.Run, always)
	cfg := b.cfg.Cache
	return &likers.HeadsConfig{Cache: c.client, Active: c.lives.Active, Length: cfg.HeadLength, HotReads: cfg.HotReads, HotLists: cfg.HotLists}, nil
}

// readHeads is how pages are read from heads; nil when that is not wanted.
// Readiness does not ask for it.
func (b *builder) readHeads(ctx context.Context) (*views.LikersHeads, error) {
	if !b.cfg.Cache.Heads || b.cfg.Redis == "" {
		return nil, nil
	}
	c, err := b.openFamily(ctx, cache.Heads, b.cfg.Cache.ReadTimeout)
	if err != nil {
		return nil, err
	}
	b.add("lists.generations", c.lives.Run, always)
	return &views.LikersHeads{Cache: c.client, Active: c.lives.Active, Timeout: b.cfg.Cache.ReadTimeout}, nil
}
