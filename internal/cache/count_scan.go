package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// EachCount visits every count of a generation, for verification; one may come
// twice. visit is called by one goroutine at a time, with one of the two.
func (c *Client) EachCount(ctx context.Context, g Generation, visit func(*DisplayCount, *BucketCount) error) error {
	var mu sync.Mutex // nodes are scanned at a time
	err := c.scan(ctx, g, func(ctx context.Context, n *redis.Client, keys []string) error {
		pipe := n.Pipeline()
		values := make([]*redis.StringCmd, len(keys))
		for i, k := range keys {
			values[i] = pipe.Get(ctx, k)
		}
		if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for i, k := range keys {
			text, err := values[i].Result()
			if errors.Is(err, redis.Nil) {
				continue // evicted meanwhile
			}
			if err == nil {
				err = g.visitCount(k, text, visit)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("redis: reading generation %d of %s: %w", g.ID, g.Family, err)
	}
	return nil
}

func (g Generation) visitCount(key, text string, visit func(*DisplayCount, *BucketCount) error) error {
	kind, target, bucket, ok, err := g.parseCountKey(key)
	if err != nil || !ok {
		return err
	}
	if bucket < 0 {
		d, err := g.parseDisplay(kind, target, text)
		if err != nil {
			return err
		}
		return visit(d, nil)
	}
	b := &BucketCount{Kind: kind, Target: target, Number: bucket}
	if b.Order, err = g.fields(text, &b.Counts, &b.Counts.Raw, &b.Counts.Disliked); err != nil {
		return err
	}
	return visit(nil, b)
}

// CountDisplays counts the displayed counts of a generation. A key that Redis
// moves about meanwhile may be counted twice.
func (c *Client) CountDisplays(ctx context.Context, g Generation) (entries int64, err error) {
	var mu sync.Mutex // nodes are scanned at a time
	err = c.scan(ctx, g, func(_ context.Context, _ *redis.Client, keys []string) error {
		mu.Lock()
		defer mu.Unlock()
		for _, key := range keys {
			if strings.Contains(key, ":count:view:g") {
				entries++
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("redis: counting generation %d of %s: %w", g.ID, g.Family, err)
	}
	return entries, nil
}
