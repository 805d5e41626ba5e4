package cache

import (
	"context"

	"github.com/redis/go-redis/v9"
)

func flushOne(ctx context.Context, n *redis.Client) error { return n.FlushAll(ctx).Err() }

func goOn(context.Context) error { return nil }

// evict removes a key from the node that has it.
func evict(k Key) func(context.Context, *redis.Client) error {
	return func(ctx context.Context, n *redis.Client) error {
		err := n.Del(ctx, k.name).Err()
		if redis.HasErrorPrefix(err, "MOVED") {
			return nil
		}
		return err
	}
}
