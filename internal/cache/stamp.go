package cache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/tidemark/tidemark/topology"
)

var (
	setStamp = newScript(`redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'h', ARGV[1]) return 1`)
	// moveStamp replaces a stamp that one of the other arguments names.
	moveStamp = newScript(`
local stands = redis.call('HGET', KEYS[1], 'h')
if stands == ARGV[1] then return 0 end
for i = 2, #ARGV do
  if stands == ARGV[i] then redis.call('HSET', KEYS[1], 'h', ARGV[1]) return 1 end
end
return redis.error_reply('` + stampRefusal + ` the generation is not held here')`)
)

func (c *Client) slots() []uint16 {
	if !c.cluster {
		return []uint16{0}
	}
	all := make([]uint16, Slots)
	for i := range all {
		all[i] = uint16(i)
	}
	return all
}

// Stamp begins a generation on every node: from here on it can be written. Only
// for a generation that was never stamped before: what a server holds of an
// older life must not be believed again.
func (c *Client) Stamp(ctx context.Context, g Generation) error {
	return c.stamps(ctx, g, "stamping", func(name string) []any {
		return []any{"eval", setStamp.source, 1, name, g.Deployment}
	})
}

// Restamp follows slots that have moved to another node of a cluster: a stamp
// that names another node's present history becomes that of the node where it
// is. Any other difference is ErrStamp: the generation is lost.
func (c *Client) Restamp(ctx context.Context, g Generation) error {
	var histories []any
	err := c.eachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
	if err != nil {
		return fmt.Errorf("redis: listing nodes: %w", err)
	}
	for _, n := range c.known() {
		if h := n.history.Load(); h != nil && *h != unknown {
			histories = append(histories, g.Deployment+" "+*h)
		}
	}
	return c.stamps(ctx, g, "comparing stamps of", func(name string) []any {
		return append([]any{"eval", moveStamp.source, 1, name, g.Deployment}, histories...)
	})
}

// Held tells whether every node holds the generation; ErrStamp when one does
// not.
func (c *Client) Held(ctx context.Context, g Generation) error {
	slots := c.slots()
	reads := make([]Read, len(slots))
	for i, slot := range slots {
		k := Key{g.stampKey(slot), slot, g}
		reads[i] = Read{k, []any{"exists", k.name}}
	}
	for _, reply := range c.Read(ctx, reads) {
		if reply.Err != nil {
			return reply.Err
		}
	}
	return nil
}

// Unstamp ends a generation: whoever still writes it is refused.
func (c *Client) Unstamp(ctx context.Context, g Generation) error {
	return c.stamps(ctx, g, "ending", func(name string) []any { return []any{"unlink", name} })
}

// stamps does the same for every slot's stamp; the error is the first of any.
func (c *Client) stamps(ctx context.Context, g Generation, doing string, command func(name string) []any) error {
	if err := g.Check(); err != nil {
		return err
	}
	slots := c.slots()
	var errs []error
	for from := 0; from < len(slots); from += maxPipeline {
		pipe := c.redis.Pipeline()
		for _, slot := range slots[from:min(from+maxPipeline, len(slots))] {
			pipe.Do(ctx, command(g.stampKey(slot))...)
		}
		cmds, err := pipe.Exec(ctx)
		if err != nil && len(cmds) == 0 {
			errs = append(errs, err)
		}
		for _, cmd := range cmds {
			if cmd.Err() != nil {
				errs = append(errs, cmd.Err())
			}
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return c.named(doing, Key{gen: g}, errs[0])
}

// scanCount is about how many keys a node looks at per step.
const scanCount = 500

// scan visits every key of a generation, stamps excepted, node by node; a key
// may come twice.
func (c *Client) scan(ctx context.Context, g Generation, visit func(ctx context.Context, n *redis.Client, keys []string) error) error {
	part := fmt.Sprintf(":g%d:{", g.ID)
	return c.eachMaster(ctx, func(ctx context.Context, n *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := n.Scan(ctx, cursor, "*"+part+"*", scanCount).Result()
			if err != nil {
				return err
			}
			mine := keys[:0]
			for _, k := range keys {
				if sort, _, ok := strings.Cut(k, part); ok && g.Family.has(sort) {
					mine = append(mine, k)
				}
			}
			if len(mine) > 0 {
				if err := visit(ctx, n, mine); err != nil {
					return err
				}
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
}

// Drop removes what is left of a generation that nobody reads any more, a few
// hundred keys at a time, and says how many keys it were. pause is called
// between the steps.
func (c *Client) Drop(ctx context.Context, g Generation, pause func(context.Context) error) (keys int, err error) {
	if err := c.Unstamp(ctx, g); err != nil && !errors.Is(err, ErrStamp) {
		return 0, err
	}
	var mu sync.Mutex // nodes are scanned at a time
	err = c.scan(ctx, g, func(ctx context.Context, n *redis.Client, names []string) error {
		pipe := n.Pipeline() // one key a command: in a cluster keys of several slots
		for _, name := range names {
			pipe.Unlink(ctx, name)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		mu.Lock()
		keys += len(names)
		mu.Unlock()
		return pause(ctx)
	})
	if err != nil {
		return keys, fmt.Errorf("redis: removing generation %d of %s: %w", g.ID, g.Family, err)
	}
	return keys, nil
}

// CountRelations counts the entries of a generation that nobody reads yet; of one
// that is read, extents count as well. A key that Redis moves about meanwhile may be
// counted twice.
func (c *Client) CountRelations(ctx context.Context, g Generation) (entries int64, err error) {
	var mu sync.Mutex // nodes are scanned at a time
	err = c.scan(ctx, g, func(ctx context.Context, n *redis.Client, keys []string) error {
		pipe := n.Pipeline()
		lengths := make([]*redis.IntCmd, len(keys))
		for i, k := range keys {
			lengths[i] = pipe.HLen(ctx, k)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for _, l := range lengths {
			entries += l.Val()
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("redis: counting generation %d of %s: %w", g.ID, g.Family, err)
	}
	return entries, nil
}

// EachRelation visits every entry of a generation, for verification, and the
// buckets that are whole: a relation of theirs that is not visited does not exist,
// Redis says. What is visited may come twice; visits come from one goroutine at a
// time.
func (c *Client) EachRelation(ctx context.Context, g Generation, visit func(Relation) error, whole func(Bucket)) error {
	var mu sync.Mutex
	err := c.scan(ctx, g, func(ctx context.Context, n *redis.Client, keys []string) error {
		for _, key := range keys {
			b, err := g.parseRelationKey(key)
			if err != nil {
				return err
			}
			fields, err := n.HGetAll(ctx, key).Result()
			if err != nil {
				return err
			}
			mu.Lock()
			err = g.eachField(b, fields, visit, whole)
			mu.Unlock()
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

func (g Generation) eachField(b Bucket, fields map[string]string, visit func(Relation) error, whole func(Bucket)) error {
	for target, text := range fields {
		if target == extentField {
			extent, err := parseExtent(g, text)
			if err != nil {
				return err
			}
			if extent == Whole {
				whole(b)
			}
			continue
		}
		r := Relation{Relation: topology.Relation{Kind: b.Kind, User: b.User, Target: target}}
		var err error
		if r.State, r.Version, err = parseValue(g, b.Kind, text); err != nil {
			return err
		}
		if err := visit(r); err != nil {
			return err
		}
	}
	return nil
}
