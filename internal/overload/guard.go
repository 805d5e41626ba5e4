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

	level    atomic.Int32
	commands []atomic.Int64 // in flight, by shard
	queries  atomic.Int64
	refused  [2]atomic.Uint64 // commands, queries
	took     latencies        // of commands
}

// NewGuard makes a guard of so many shards. perShard commands of each may be in
// flight, in its queue or in a transaction, so that one that is slow does not
// take the others' room; and so many queries in all.
func NewGuard(shards, perShard, queries int) *Guard {
	return &Guard{perShard: int64(perShard), queriesMost: int64(queries), commands: make([]atomic.Int64, shards)}
}

// Level is the present one.
func (g *Guard) Level() Level { return Level(g.level.Load()) }

// refusingShare of commands go on at level Refuse.
const refusingShare = 4

// EnterCommand says whether a command of the shard may begin; LeaveCommand ends
// one that did.
func (g *Guard) EnterCommand(shard int) bool {
	most := g.perShard
	if g.Level() >= Refuse {
		most = max(1, most/refusingShare)
	}
	return g.enter(&g.commands[shard], most, 0)
}

// LeaveCommand tells how long it took.
func (g *Guard) LeaveCommand(shard int, took time.Duration) {
	g.commands[shard].Add(-1)
	g.took.add(took)
}

// EnterQuery says whether a query may begin; LeaveQuery ends one that did.
func (g *Guard) EnterQuery() bool {
	most := g.queriesMost
	if g.Level() >= Refuse {
		most = 0
	}
	return g.enter(&g.queries, most, 1)
}

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

// fullest is the share of its commands that the fullest shard has in flight, and
// how many those are.
func (g *Guard) fullest() (share float64, commands int64) {
	for i := range g.commands {
		commands = max(commands, g.commands[i].Load())
	}
	return float64(commands) / float64(g.perShard), commands
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
