package testenv

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/embedded"
)

// Redis starts an embedded Redis for the test and returns its URL.
func Redis(t testing.TB) string {
	t.Helper()
	r, err := embedded.StartRedis(embedded.RedisConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return "redis://" + r.Addr
}

// RedisServer starts a real one, with more arguments of redis-server. Without
// its program the test is skipped.
func RedisServer(t testing.TB, args ...string) *embedded.RedisServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := embedded.StartRedisServer(ctx, embedded.RedisServerConfig{Dir: t.TempDir(), Args: args})
	if errors.Is(err, embedded.ErrNoRedisServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop() })
	return r
}

// RedisCluster starts a Redis Cluster of three masters and waits until it
// serves every slot. replicas of each can be added.
func RedisCluster(t testing.TB, replicas int) *embedded.RedisCluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := embedded.StartRedisCluster(ctx, embedded.RedisClusterConfig{Dir: t.TempDir(), Replicas: replicas})
	if errors.Is(err, embedded.ErrNoRedisServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() })
	return c
}
