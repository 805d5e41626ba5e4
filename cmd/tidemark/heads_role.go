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
	client, err := b.openCache(cacheWriteTimeout)
	if err != nil {
		return nil, err
	}
	db, err := b.openControl(ctx)
	if err != nil {
		return nil, err
	}
	lives := db.WatchCache(cache.Heads)
	b.add("likers.generations", lives.Run, always)
	keeper, err := likers.NewHeadsKeeper(likers.HeadsKeeperConfig{Control: db, Cache: client, Who: "likers " + b.cfg.Instance, Logger: b.log, Registerer: b.metrics})
	if err != nil {
		return nil, err
	}
	b.add("likers.heads", keeper.Run, always)
	c := b.cfg.Cache
	return &likers.HeadsConfig{Cache: client, Active: lives.Active, Length: c.HeadLength, HotReads: c.HotReads, HotLists: c.HotLists}, nil
}

// readHeads is how pages are read from heads; nil when that is not wanted.
// Readiness does not ask for it.
func (b *builder) readHeads(ctx context.Context) (*views.LikersHeads, error) {
	if !b.cfg.Cache.Heads || b.cfg.Redis == "" {
		return nil, nil
	}
	client, err := b.openCache(b.cfg.Cache.ReadTimeout)
	if err != nil {
		return nil, err
	}
	db, err := b.openControl(ctx)
	if err != nil {
		return nil, err
	}
	lives := db.WatchCache(cache.Heads)
	b.add("lists.generations", lives.Run, always)
	return &views.LikersHeads{Cache: client, Active: lives.Active, Timeout: b.cfg.Cache.ReadTimeout}, nil
}
