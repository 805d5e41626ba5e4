package limits

import "time"

// Limit is a token bucket: it holds Burst tokens, and PerMinute come back. The
// zero value limits nothing.
type Limit struct {
	PerMinute int // 0: no limit
	Burst     int // at least 1 where there is a limit
}

// bucket is a limit as the arithmetic needs it, in microseconds: coarser would
// round rates, and finer ones do not fit into Redis's numbers, which are exact
// up to 2^53.
type bucket struct {
	token int64 // until one token comes back
	full  int64 // until all of an empty bucket's do
}

// bucket rounds a token's time up, so that never more come back than the limit
// says.
func (l Limit) bucket() bucket {
	const minute = int64(time.Minute / time.Microsecond)
	token := (minute + int64(l.PerMinute) - 1) / int64(l.PerMinute)
	return bucket{token: token, full: token * int64(l.Burst)}
}

// stand is a bucket's state, the moment fullAt at which it is full again, as it
// is at now. A clock that was set back leaves moments beyond an empty bucket's:
// the bucket is empty then, and not closed until the clock has come back.
func (b bucket) stand(fullAt, now int64) int64 { return min(max(fullAt, now), now+b.full) }

// take takes a token, if there is one, and gives the state that is to be kept
// either way. However calls interleave and the clock is set, it never gives out
// more than a full bucket and one token for each token's time that the clock
// has moved forward. internal/cache has the same as a script.
func (b bucket) take(fullAt, now int64) (next int64, ok bool) {
	fullAt = b.stand(fullAt, now)
	if b.wait(fullAt-now) > 0 {
		return fullAt, false
	}
	return fullAt + b.token, true
}

// left is the tokens of a bucket that is full in fullIn microseconds.
func (b bucket) left(fullIn int64) int64 { return max(0, (b.full-fullIn)/b.token) }

// wait is how long a bucket that is full in fullIn microseconds has no token.
func (b bucket) wait(fullIn int64) int64 { return max(0, fullIn+b.token-b.full) }
