package cache

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"
)

// Script is Lua that changes one key, if the server holds the key's generation.
type Script struct {
	source, sha string
	doing       string // for errors
}

// stampRefusal begins the error of a server that does not hold the generation.
const stampRefusal = "STAMP"

// fenceRefusal begins the error of a server that a later owner has written to.
const fenceRefusal = "FENCED"

// NewScript makes a script of body, which finds its key in KEYS[1] and its
// arguments from ARGV[4] on.
func NewScript(body string) *Script {
	return newGuarded("writing", body)
}

// newReadingScript makes one that changes nothing and is called without an
// epoch; guard[2] is the last owner of the call's name in the slot.
func newReadingScript(body string) *Script { return newGuarded("reading", body) }

func newGuarded(doing, body string) *Script {
	s := newScript(`local guard = redis.call('HMGET', KEYS[2], 'h', ARGV[2])
if guard[1] ~= ARGV[1] then
  return redis.error_reply('` + stampRefusal + ` the generation is not held here')
end
local epoch, stands = tonumber(ARGV[3]), tonumber(guard[2] or 0)
if epoch > 0 and stands > epoch then
  return redis.error_reply('` + fenceRefusal + ` a later owner has written here')
end
if stands < epoch then redis.call('HSET', KEYS[2], ARGV[2], ARGV[3]) end
` + body)
	s.doing = doing
	return s
}

func newScript(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{source: source, sha: hex.EncodeToString(sum[:])}
}

// Owner is who writes. Of two owners of a name the one of the higher epoch is
// the later one: once it has written to a slot, the other one is refused there,
// so that an owner that was paused and wakes brings nothing old back.
type Owner struct {
	Name  string
	Epoch int64 // above 0; below 2^53
}

// Call is one run of a script.
type Call struct {
	Key Key
	// Owner fences earlier owners off; the zero value does not.
	Owner Owner
	Args  []any // strings, numbers, bytes
}

// Run runs a script once per call, pipelined per node; calls of one key run in
// their order. ErrStamp says that nothing was written, or nothing that counts;
// ErrFenced that the owner is none any more.
// Scripts must stand a second run: an error tells nothing of whether the first
// one came through.
func (c *Client) Run(ctx context.Context, s *Script, calls []Call) []Reply {
	replies := make([]Reply, len(calls))
	for from := 0; from < len(calls); from += maxPipeline {
		to := min(from+maxPipeline, len(calls))
		c.run(ctx, s, calls[from:to], replies[from:to])
	}
	return replies
}

// sum runs calls of a script that answers how many entries it wrote, and gives
// how many that were in all, also beside the first error.
func (c *Client) sum(ctx context.Context, s *Script, calls []Call) (written int, err error) {
	for _, reply := range c.Run(ctx, s, calls) {
		if reply.Err != nil {
			if err == nil {
				err = reply.Err
			}
			continue
		}
		n, _ := reply.Value.(int64)
		written += int(n)
	}
	return written, err
}

func (c *Client) run(ctx context.Context, s *Script, calls []Call, replies []Reply) {
	c.send(ctx, s, calls, replies, nil)
	// A server that was started or flushed does not know the script.
	lacking := make([]bool, len(calls))
	for i, r := range replies {
		lacking[i] = redis.HasErrorPrefix(r.Err, "NOSCRIPT")
	}
	if slices.Contains(lacking, true) {
		_ = c.eachMaster(ctx, func(ctx context.Context, n *redis.Client) error { return n.ScriptLoad(ctx, s.source).Err() })
		c.send(ctx, s, calls, replies, lacking)
	}
	for i, call := range calls {
		if err := replies[i].Err; err != nil {
			replies[i].Err = c.named(s.doing, call.Key, err)
		}
	}
}

// send runs the calls that are chosen, nil for all.
func (c *Client) send(ctx context.Context, s *Script, calls []Call, replies []Reply, chosen []bool) {
	pipe := c.redis.Pipeline()
	cmds := make([]*redis.Cmd, len(calls))
	for i, call := range calls {
		if chosen != nil && !chosen[i] {
			continue
		}
		args := make([]any, 0, 8+len(call.Args))
		args = append(args, "evalsha", s.sha, 2, call.Key.name, c.stampKey(call.Key), call.Key.gen.Deployment, "owner "+call.Owner.Name, call.Owner.Epoch)
		cmds[i] = pipe.Do(ctx, append(args, call.Args...)...)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, cmd := range cmds {
		if cmd != nil {
			value, err := cmd.Result()
			if errors.Is(err, redis.Nil) {
				value, err = nil, nil
			}
			replies[i] = Reply{value, err}
		}
	}
}
