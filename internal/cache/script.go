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
type Script struct{ source, sha string }

// stampRefusal begins the error of a server that does not hold the generation.
const stampRefusal = "STAMP"

// NewScript makes a script of body, which finds its key in KEYS[1] and its
// arguments from ARGV[2] on.
func NewScript(body string) *Script {
	return newScript(`if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return redis.error_reply('` + stampRefusal + ` the generation is not held here')
end
` + body)
}

func newScript(source string) *Script {
	sum := sha1.Sum([]byte(source))
	return &Script{source, hex.EncodeToString(sum[:])}
}

// Call is one run of a script.
type Call struct {
	Key  Key
	Args []any // strings, numbers, bytes
}

// Run runs a script once per call, pipelined per node; calls of one key run in
// their order. ErrStamp says that nothing was written, or nothing that counts.
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
			replies[i].Err = c.named("writing", call.Key, err)
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
		args := make([]any, 0, 6+len(call.Args))
		args = append(args, "evalsha", s.sha, 2, call.Key.name, c.stampKey(call.Key), call.Key.gen.Deployment)
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
