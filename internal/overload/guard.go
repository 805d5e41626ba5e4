package overload

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Guard counts what is being served, and says what may begin. It never waits: a
// request that would wait longer than its client does is better refused now. It
// is safe for concurrent use.
type Guard struct {
	perShard, queriesMost int64

	level   atomic.Int32
	shards  []shardGuard
	queries atomic.Int64
	refused [2]atomic.Uint64 // commands, queries
}

// shardGuard counts the commands of one shard.
type shardGuard struct {
	inFlight atomic.Int64
	most     atomic.Int64 // that may be in flight now; up to perShard
	took     latencies
}

// NewGuard makes a guard of so many shards. perShard commands of each may be in
// flight, in its queue or in a transaction, so that one that is slow does not
// take the others' room, and fewer while it is slow (pace); and so many queries
// in all.
func NewGuard(shards, perShard, queries int) *Guard {
	g := &Guard{perShard: int64(perShard), queriesMost: int64(queries), shards: make([]shardGuard, shards)}
	for i := range g.shards {
		g.shards[i].most.Store(g.perShard)
	}
	return g
}

// fewest commands of a shard that go on however slow it is.
const fewest = 8

// pace sets how many commands of each shard may be in flight, by how long those
// of the last interval took: what a shard does in a second does not grow with
// what waits for it, so that with half as many each takes half as long. It gives
// the longest 99th percentile of any.
func (g *Guard) pace(target time.Duration) (worst time.Duration) {
	for i := range g.shards {
		s := &g.shards[i]
		p99 := s.took.p99()
		worst = max(worst, p99)
		most := s.most.Load()
		switch {
		case p99 > target:
			most = max(most/4, most*int64(target)/int64(p99))
		case p99 < target*3/4: // also when there is nothing to go by
			most += most/4 + 1
		}
		s.most.Store(min(max(most, fewest), g.perShard))
	}
	return worst
}

// Level is the present one.
func (g *Guard) Level() Level { return Level(g.level.Load()) }

// refusingShare of commands go on at level Refuse.
const refusingShare = 4

// EnterCommand says whether a command of the shard may begin; LeaveCommand ends
// one that did.
func (g *Guard) EnterCommand(shard int) bool {
	s := &g.shards[shard]
	most := s.most.Load()
	if g.Level() >= Refuse {
		most = min(most, max(1, g.perShard/refusingShare))
	}
	return g.enter(&s.inFlight, most, 0)
}

// LeaveCommand tells how long it took.
func (g *Guard) LeaveCommand(shard int, took time.Duration) {
	g.shards[shard].inFlight.Add(-1)
	g.shards[shard].took.add(took)
}

// EnterQuery says whether a query may begin; LeaveQuery ends one that did.
func (g *Guard) EnterQuery() bool {
	most := g.queriesMost
	if g.Level() >= Refuse {
		most = 0
	}
	return g.enter(&g.queries, most, 1)
}

// Refused counts a query that had begun and was refused at once all the same.
func (g *Guard) Refused() { g.refused[1].Add(1) }

// LeaveQuery ends a query that began.
func (g *Guard) LeaveQuery() { g.queries.Add(-1) }

func (g *Guard) enter(at *atomic.Int64, most int64, sort int) bool {
	if at.Add(1) > most {
		at.Add(-1)
		g.refused[sort].Add(1)
		return false
	}
	return true
}

// fullest is the highest share of what may be in flight that is, and the most
// commands that are, of any shard.
func (g *Guard) fullest() (share float64, commands int64) {
	for i := range g.shards {
		n := g.shards[i].inFlight.Load()
		commands = max(commands, n)
		share = max(share, float64(n)/float64(g.shards[i].most.Load()))
	}
	return share, commands
}

// latencies are those of an interval, in buckets that each reach a quarter
// further than the one before.
type latencies struct{ buckets [64]atomic.Uint64 }

// at is the bucket of a duration: four to each doubling of 64 µs.
func at(d time.Duration) int {
	n := uint64(max(d, 0)) >> 14
	if n < 4 {
		return int(n)
	}
	top := bits.Len64(n) - 1
	return min(63, (top-1)*4+int(n>>(top-2))&3)
}

// upTo is the longest duration of a bucket.
func upTo(i int) time.Duration {
	if i < 4 {
		return time.Duration(i+1) << 14
	}
	top := i/4 + 1
	return time.Duration(uint64(4+i%4+1)<<(top-2)) << 14
}

func (l *latencies) add(d time.Duration) { l.buckets[at(d)].Add(1) }

// p99 is the 99th percentile since it was last asked for, rounded up to its
// bucket; 0 when there were fewer than 20.
func (l *latencies) p99() time.Duration {
	var counts [64]uint64
	total := uint64(0)
	for i := range l.buckets {
		counts[i] = l.buckets[i].Swap(0)
		total += counts[i]
	}
	if total < 20 {
		return 0
	}
	above := total / 100
	for i := len(counts) - 1; i >= 0; i-- {
		if counts[i] > above {
			return upTo(i)
		}
		above -= counts[i]
	}
	return 0
}
