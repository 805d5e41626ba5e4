package likers

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/cachekeeper"
	"github.com/tidemark/tidemark/internal/control"
)

// HeadsKeeperConfig of what leads generations of heads through their lives.
type HeadsKeeperConfig struct {
	Control    *control.DB
	Cache      *cache.Client
	Who        string // stands in the audit
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
}

// NewHeadsKeeper makes a keeper that sees to it that Redis holds a generation of
// heads.
func NewHeadsKeeper(cfg HeadsKeeperConfig) (*cachekeeper.Keeper, error) {
	losses := prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_likers_head_losses_total", Help: "Active generations of heads that Redis has lost."})
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(losses); err != nil {
			return nil, fmt.Errorf("likers: registering metrics: %w", err)
		}
	}
	return cachekeeper.New(cachekeeper.Config{
		Family: cache.Heads, Part: headsPart{cfg.Control, cfg.Who}, Control: cfg.Control, Cache: cfg.Cache,
		Who: cfg.Who, Logger: cfg.Logger.With("component", "likers.heads"), Losses: losses,
	}), nil
}

// headsPart has nothing to rebuild: a generation is whole when it is stamped,
// since what has no head is read from the index.
type headsPart struct {
	control *control.DB
	who     string
}

var _ cachekeeper.Part = headsPart{}

// Begin begins a generation.
func (p headsPart) Begin(ctx context.Context, reason string) (control.CacheGeneration, error) {
	return p.control.BeginCache(ctx, cache.Heads, 1, p.who, reason)
}

// Stale ends nothing.
func (headsPart) Stale(cache.Generation) string { return "" }

// Phase is done at once.
func (headsPart) Phase(context.Context, *control.CacheGeneration) (string, error) {
	return cachekeeper.Activate, nil
}

// End has nobody to tell: owners of partitions look themselves.
func (headsPart) End(context.Context, cache.Generation) error { return nil }
