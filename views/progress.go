package views

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/internal/displaytable"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// progress keeps, per display partition, what its counts include. An update
// only marks a row; a reader reads the marked rows again from the table, which
// alone decides between two values of a key.
type progress struct {
	shards, counts, displays int
	get                      func(key string) ([]byte, error)

	stale   atomic.Bool // rows are marked; read before current
	current atomic.Pointer[includes]

	mu     sync.Mutex
	marked map[pair]bool
	rows   [][]*tidemarkv1.PartitionProgress // by display and count partition; nil: no row
}

type pair struct{ display, count int }

// includes is an immutable state of progress.
type includes struct {
	byDisplay []asOf
	all       Progress
}

// asOf is what the counts of a display partition include.
type asOf struct {
	shards []ShardAsOf
	// oldest is the earliest SealedAt; zero while a shard is missing.
	oldest time.Time
}

func newProgress(t topology.Config, get func(string) ([]byte, error)) *progress {
	p := &progress{shards: t.Shards, counts: t.CountPartitions, displays: t.DisplayPartitions, get: get, marked: map[pair]bool{}}
	p.rows = make([][]*tidemarkv1.PartitionProgress, p.displays)
	for d := range p.rows {
		p.rows[d] = make([]*tidemarkv1.PartitionProgress, p.counts)
	}
	p.markAll()
	p.current.Store(&includes{byDisplay: make([]asOf, p.displays)})
	return p
}

// mark says that a row has changed. Reads of the table must see the change
// already.
func (p *progress) mark(display, count int) {
	if display >= p.displays || count >= p.counts {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marked[pair{display, count}] = true
	p.stale.Store(true)
}

// markAll says that every row may have changed.
func (p *progress) markAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d := range p.displays {
		for c := range p.counts {
			p.marked[pair{d, c}] = true
		}
	}
	p.stale.Store(true)
}

// load gives the newest state.
func (p *progress) load() (*includes, error) {
	if !p.stale.Load() {
		return p.current.Load(), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := map[int]bool{}
	for at := range p.marked {
		row, err := p.read(at)
		if err != nil {
			return nil, err
		}
		p.rows[at.display][at.count] = row
		changed[at.display] = true
	}
	next := &includes{byDisplay: make([]asOf, p.displays)}
	copy(next.byDisplay, p.current.Load().byDisplay)
	for d := range changed {
		next.byDisplay[d] = p.least(d)
	}
	next.all = p.total(next)
	// Only now are the marks done with: after an error they all stand.
	clear(p.marked)
	p.current.Store(next)
	p.stale.Store(false)
	return next, nil
}

// read gives a row, nil when there is none.
func (p *progress) read(at pair) (*tidemarkv1.PartitionProgress, error) {
	value, err := p.get(topology.ProgressKey(at.display, at.count))
	if err != nil || value == nil {
		return nil, err
	}
	var row tidemarkv1.DisplayRow
	if err := row.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("reading the progress of count partition %d: %w", at.count, err)
	}
	return row.GetProgress(), nil
}

// least gives what the counts of a display partition include.
func (p *progress) least(display int) asOf {
	var a asOf
	for _, w := range displaytable.Least(p.shards, p.rows[display]) {
		a.shards = append(a.shards, ShardAsOf{
			Shard: int(w.Shard), Seal: w.Seal, PreviousCommitLSN: w.GetPosition().GetPreviousCommitLsn(), LSN: w.GetPosition().GetLsn(),
			SealedAt: time.UnixMicro(w.SealedAtUs).UTC(),
		})
	}
	a.oldest = oldest(a.shards, p.shards)
	return a
}

// total gives the least over all display partitions.
func (p *progress) total(i *includes) Progress {
	var all Progress
	for shard := range p.shards {
		var least ShardAsOf
		known := true
		for d := range p.displays {
			s, ok := find(i.byDisplay[d].shards, shard)
			known = known && ok
			if d == 0 || s.Seal < least.Seal {
				least = s
			}
		}
		if known {
			all.AsOf = append(all.AsOf, least)
		}
	}
	all.Complete = len(all.AsOf) == p.shards
	for _, rows := range p.rows {
		for _, row := range rows {
			if row == nil {
				all.Unheard++
			}
		}
	}
	return all
}

func find(shards []ShardAsOf, shard int) (ShardAsOf, bool) {
	for _, s := range shards {
		if s.Shard == shard {
			return s, true
		}
	}
	return ShardAsOf{}, false
}

func oldest(shards []ShardAsOf, want int) (t time.Time) {
	if len(shards) < want {
		return t
	}
	for i, s := range shards {
		if i == 0 || s.SealedAt.Before(t) {
			t = s.SealedAt
		}
	}
	return t
}
