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
	return redisServer(t, embedded.RedisServerConfig{Args: args})
}

// RedisServerTLS starts a real one that speaks TLS alone and answers only those
// whose certificate ca signed.
func RedisServerTLS(t testing.TB, ca *Authority, args ...string) *embedded.RedisServer {
	t.Helper()
	return redisServer(t, embedded.RedisServerConfig{TLS: redisTLS(t, ca), Args: args})
}

func redisTLS(t testing.TB, ca *Authority) *embedded.RedisTLS {
	t.Helper()
	cert, key := ca.Issue(t, Certificate{})
	return &embedded.RedisTLS{CA: ca.File, Cert: cert, Key: key}
}

func redisServer(t testing.TB, cfg embedded.RedisServerConfig) *embedded.RedisServer {
	t.Helper()
	cfg.Dir = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := embedded.StartRedisServer(ctx, cfg)
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
	return redisCluster(t, embedded.RedisClusterConfig{Replicas: replicas})
}

// RedisClusterTLS is one whose nodes speak TLS alone, among themselves too.
func RedisClusterTLS(t testing.TB, ca *Authority, args ...string) *embedded.RedisCluster {
	t.Helper()
	return redisCluster(t, embedded.RedisClusterConfig{TLS: redisTLS(t, ca), Args: args})
}

func redisCluster(t testing.TB, cfg embedded.RedisClusterConfig) *embedded.RedisCluster {
	t.Helper()
	cfg.Dir = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := embedded.StartRedisCluster(ctx, cfg)
	if errors.Is(err, embedded.ErrNoRedisServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop() })
	return c
}
