package relations

import (
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// PoolWaits tells how long reads wait for a connection to their shard. It is for
// one caller.
type PoolWaits struct {
	pools []*pgxpool.Pool
	last  []acquired // by shard
	asked time.Time
}

// acquired are a pool's counters.
type acquired struct {
	count  int64
	waited time.Duration
}

func acquiredBy(s *pgxpool.Stat) acquired {
	return acquired{s.AcquireCount(), s.EmptyAcquireWaitTime()}
}

// PoolWaits begins to count.
func (s *Store) PoolWaits() *PoolWaits {
	p := &PoolWaits{asked: time.Now()}
	for _, sh := range s.shards {
		p.pools, p.last = append(p.pools, sh.pool), append(p.last, acquiredBy(sh.pool.Stat()))
	}
	return p
}

// Longest is how long reads have waited since it was last asked for, on average,
// at the shard where that was longest. The pool counts a wait only when it has
// ended well: where all connections were in use and none was given back, all of
// the time counts as waited.
func (p *PoolWaits) Longest() (longest time.Duration) {
	now := time.Now()
	for i, pool := range p.pools {
		stat := pool.Stat()
		was, is := p.last[i], acquiredBy(stat)
		p.last[i] = is
		switch n := is.count - was.count; {
		case n > 0:
			longest = max(longest, (is.waited-was.waited)/time.Duration(n))
		case stat.AcquiredConns() == stat.MaxConns():
			longest = max(longest, now.Sub(p.asked))
		}
	}
	p.asked = now
	return longest
}
