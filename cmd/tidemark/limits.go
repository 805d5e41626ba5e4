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
	networks, err := clientNetworks(c)
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
		Networks:    networks, GatewayFactor: c.GatewayFactor,
		Redis: redis, LocalEntries: c.LocalEntries, Registerer: b.metrics,
	})
}

// clientNetworks tell where clients come from, also where nothing is limited.
func clientNetworks(c config.Limits) (n limits.Networks, err error) {
	if n.Gateways, err = config.Networks(c.Gateways); err != nil {
		return n, err
	}
	n.Proxies, err = config.Networks(c.TrustedProxies)
	return n, err
}
