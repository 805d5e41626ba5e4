package main

import (
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/limits"
)

// limiter bounds what clients may ask of the API; nil when nothing does. It is
// ready without Redis: then each process counts for itself.
func (b *builder) limiter() (*limits.Limiter, error) {
	c := b.cfg.Limits
	if !c.Enabled {
		return nil, nil
	}
	gateways, err := config.Networks(c.Gateways)
	if err != nil {
		return nil, err
	}
	proxies, err := config.Networks(c.TrustedProxies)
	if err != nil {
		return nil, err
	}
	var redis *cache.Client
	if b.cfg.Redis != "" {
		if redis, err = b.openCache(limits.Timeout); err != nil {
			return nil, err
		}
	}
	return limits.New(limits.Config{
		Deployment:  b.cfg.Prefix,
		Commands:    limits.CallerLimits{Account: limits.Limit(c.Commands.Account), Device: limits.Limit(c.Commands.Device), Address: limits.Limit(c.Commands.Address)},
		Queries:     limits.CallerLimits{Account: limits.Limit(c.Queries.Account), Address: limits.Limit(c.Queries.Address)},
		Transitions: limits.Limit(c.Transitions),
		Gateways:    gateways, GatewayFactor: c.GatewayFactor, Proxies: proxies,
		Redis: redis, LocalEntries: c.LocalEntries, Registerer: b.metrics,
	})
}
