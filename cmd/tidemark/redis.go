package main

import (
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/config"
)

// openRedis makes a client of the configured Redis; it does not connect yet.
func openRedis(cfg config.Config, timeout time.Duration) (*cache.Client, error) {
	tls, err := cfg.CacheTLS()
	if err != nil {
		return nil, err
	}
	credentials, err := cfg.CacheCredentials()
	if err != nil {
		return nil, err
	}
	return cache.Open(cache.Config{URL: cfg.Redis, TLS: tls, Credentials: credentials, Timeout: timeout})
}
