package embedded

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

func TestRedis(t *testing.T) {
	dir := t.TempDir()
	var first string
	for range 2 {
		r, err := StartRedis(RedisConfig{DataDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = r.Addr
		}
		if r.Addr != first {
			t.Errorf("at %s, before at %s", r.Addr, first)
		}
		client := redis.NewClient(&redis.Options{Addr: r.Addr, MaxRetries: -1})
		if err := client.Get(t.Context(), "k").Err(); !errors.Is(err, redis.Nil) {
			t.Errorf("a fresh server has k: %v", err)
		}
		if err := client.Set(t.Context(), "k", "v", time.Hour).Err(); err != nil {
			t.Error(err)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := r.Stop(); err != nil {
				t.Error(err)
			}
		}
	}
}

// Keys expire by the clock.
func TestRedisExpiry(t *testing.T) {
	r, err := StartRedis(RedisConfig{})
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{Addr: r.Addr})
	defer func() { _ = client.Close(); _ = r.Stop() }()
	if err := client.Set(t.Context(), "k", "v", time.Millisecond).Err(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); !errors.Is(client.Get(t.Context(), "k").Err(), redis.Nil); {
		if time.Now().After(end) {
			t.Fatal("k does not expire")
		}
	}
}
