package cache

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// TokenBucket is a token bucket. It belongs to no generation: what is lost of it is
// full again, and nothing wrong follows.
//
//	limit:{<hash>}  when it is full again, microseconds of the server's clock; gone when it is
type TokenBucket struct {
	Key         string // of TokenBucketKey
	Token, Full int64  // microseconds until one token, all tokens come back
}

// TokenBucketKey names a bucket by a hash of what it belongs to: no account, device
// or address stands in Redis.
func TokenBucketKey(hash [16]byte) string {
	var name [len("limit:{}") + 2*len(hash)]byte
	at := copy(name[:], "limit:{")
	hex.Encode(name[at:], hash[:])
	name[len(name)-1] = '}'
	return string(name[:])
}

// takeTokens takes a token of every key, or none when one has none, by the
// server's clock: those of processes differ. A state that was made before the
// clock was set back is kept as an empty bucket's (limits.bucket.stand).
var takeTokens = newScript(`
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ok, stored, at, answer = 1, {}, {}, {}
for i, key in ipairs(KEYS) do
  local token, full = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  stored[i] = tonumber(redis.call('GET', key) or now)
  at[i] = math.min(math.max(stored[i], now), now + full)
  if at[i] + token > now + full then ok = 0 end
end
answer[1] = ok
for i, key in ipairs(KEYS) do
  if ok == 1 then at[i] = at[i] + tonumber(ARGV[2 * i - 1]) end
  if ok == 1 or at[i] < stored[i] then
    redis.call('SET', key, string.format('%.0f', at[i]), 'PX', math.ceil((at[i] - now) / 1000) + 1)
  end
  answer[i + 1] = at[i] - now
end
return answer`)

var giveBackToken = newScript(`
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local stored = tonumber(redis.call('GET', KEYS[1]) or now)
local at = math.min(stored, now + tonumber(ARGV[2])) - tonumber(ARGV[1])
if at <= now then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], string.format('%.0f', at), 'PX', math.ceil((at - now) / 1000) + 1)
end
return 1`)

// TakeTokens takes a token of each bucket, or of none, and puts into fullIn in
// how many microseconds each is full. On one server this is one step. Keys of a
// cluster lie apart: there what was taken is given back when another bucket has
// none, and others may be refused meanwhile; never is more given out than there
// is. After an error some tokens may be gone, which come back by themselves.
func (c *Client) TakeTokens(ctx context.Context, buckets []TokenBucket, fullIn []int64) (ok bool, err error) {
	if !c.cluster {
		return c.takeTokens(ctx, buckets, fullIn)
	}
	for i := range buckets {
		if ok, err = c.takeTokens(ctx, buckets[i:i+1], fullIn[i:]); err == nil && ok {
			continue
		}
		for back, b := range buckets[:i] {
			err = errors.Join(err, c.GiveBack(ctx, b))
			fullIn[back] -= b.Token
		}
		return false, err
	}
	return true, nil
}

func (c *Client) takeTokens(ctx context.Context, buckets []TokenBucket, fullIn []int64) (ok bool, err error) {
	args := make([]any, 0, 3+3*len(buckets))
	args = append(args, "evalsha", takeTokens.sha, len(buckets))
	for _, b := range buckets {
		args = append(args, b.Key)
	}
	for _, b := range buckets {
		args = append(args, b.Token, b.Full)
	}
	value, err := c.runAlone(ctx, takeTokens, args)
	if err != nil {
		return false, fmt.Errorf("redis: taking tokens: %w", err)
	}
	answer, _ := value.([]any)
	if len(answer) != 1+len(buckets) {
		return false, fmt.Errorf("redis: taking tokens of %d buckets was answered with %T of %d", len(buckets), value, len(answer))
	}
	taken, _ := answer[0].(int64)
	for i := range buckets {
		fullIn[i], _ = answer[1+i].(int64)
	}
	return taken == 1, nil
}

// GiveBack returns a token that was taken.
func (c *Client) GiveBack(ctx context.Context, b TokenBucket) error {
	_, err := c.runAlone(ctx, giveBackToken, []any{"evalsha", giveBackToken.sha, 1, b.Key, b.Token, b.Full})
	if err != nil {
		return fmt.Errorf("redis: giving a token back: %w", err)
	}
	return nil
}

// runAlone runs a script that no stamp guards, outside of pipelines, which are
// for guarded ones.
func (c *Client) runAlone(ctx context.Context, s *Script, args []any) (any, error) {
	value, err := c.redis.Do(ctx, args...).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		args[0], args[1] = "eval", s.source
		value, err = c.redis.Do(ctx, args...).Result()
	}
	return value, err
}
