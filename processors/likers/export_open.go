package likers

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// exports are those that are open. They live and die with the partition that
// this process has taken over: another owner, or this one after a failure, has
// not seen what changed before it began, so it knows none of them.
type exports struct {
	any  atomic.Int64 // how many are open: changes ask here first
	mu   sync.Mutex
	open map[*gokakit.Partition]map[string]*export // by barrier
}

// errTooManyExports says that a partition has as many exports as it may.
var errTooManyExports = errors.New("too many exports are open")

// begin opens an export, unless it is open.
func (x *exports) begin(part *gokakit.Partition, e *export) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := x.open[part]
	if of[e.query.Barrier] != nil {
		return nil
	}
	if len(of) >= maxExports {
		return fmt.Errorf("partition %d: %w: %d", e.query.Partition, errTooManyExports, len(of))
	}
	if of == nil {
		if x.open == nil {
			x.open = map[*gokakit.Partition]map[string]*export{}
		}
		of = map[string]*export{}
		x.open[part] = of
	}
	e.expire = time.AfterFunc(exportPatience, func() { x.end(part, e.query.Barrier, "nobody has read it for "+exportPatience.String()) })
	of[e.query.Barrier] = e
	x.any.Add(1)
	return nil
}

// end closes an export; a reader who has it in hand is told why.
func (x *exports) end(part *gokakit.Partition, barrier, why string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.open[part][barrier]
	if e == nil {
		return
	}
	e.expire.Stop()
	e.mu.Lock()
	e.end(why)
	e.mu.Unlock()
	delete(x.open[part], barrier)
	x.any.Add(-1)
	if len(x.open[part]) == 0 {
		delete(x.open, part)
	}
}

// endAll closes the exports of a partition that is not served any more.
func (x *exports) endAll(part *gokakit.Partition) {
	for _, e := range x.of(part) {
		x.end(part, e.query.Barrier, "the partition has left its owner")
	}
}

func (x *exports) of(part *gokakit.Partition) (all []*export) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, e := range x.open[part] {
		all = append(all, e)
	}
	return all
}

func (x *exports) get(part *gokakit.Partition, barrier string) *export {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.open[part][barrier]
}

// note tells the exports of a partition of a change, before it is put.
func (x *exports) note(part *gokakit.Partition, change *tidemarkv1.LikerChange, old, changes *tidemarkv1.LikerRow) {
	if x.any.Load() == 0 {
		return
	}
	for _, e := range x.of(part) {
		e.note(change, old, changes)
	}
}

// OpenExport begins to wait for a barrier that is not yet taken.
func (l *Likers) OpenExport(q ExportQuery) error {
	if _, err := l.exportShards(q); err != nil {
		return err
	}
	part := l.served(q.Partition)
	if part == nil {
		return fmt.Errorf("partition %d: %w", q.Partition, ErrNotReady)
	}
	return l.exports.begin(part, newExport(q, l.cfg.Reverse))
}

// CloseExport forgets an export.
func (l *Likers) CloseExport(q ExportQuery) {
	if part := l.served(q.Partition); part != nil {
		l.exports.end(part, q.Barrier, "it was closed")
	}
}

// ReadExport reads a reverse shard behind after as it was at the barrier.
func (l *Likers) ReadExport(q ExportQuery, shard int, after Frontier, limit int) (ExportPage, error) {
	if err := l.checkExport(q, shard, after, limit); err != nil {
		return ExportPage{}, err
	}
	part := l.served(q.Partition)
	if part == nil {
		return ExportPage{}, fmt.Errorf("partition %d: %w", q.Partition, ErrNotReady)
	}
	e := l.exports.get(part, q.Barrier)
	if e == nil {
		return ExportPage{}, fmt.Errorf("partition %d: %w: it is not open at its owner, who is a new one or has forgotten it", q.Partition, ErrExportGone)
	}
	if e.query != q {
		return ExportPage{}, fmt.Errorf("barrier %s was opened for another list: %w", q.Barrier, ErrQuery)
	}
	live, err := l.behindBarrier(part, e, Query{Generation: q.Generation, Kind: q.Kind, Target: q.Target, ReverseShard: shard, After: after, Limit: limit})
	if err != nil {
		return ExportPage{}, err
	}
	return e.at(shard, live, after, limit)
}

// behindBarrier reads the list as it is at a moment behind the barrier.
func (l *Likers) behindBarrier(part *gokakit.Partition, e *export, q Query) (live newest.Part, err error) {
	seals, err := e.seals(l.cfg.Topology.Config.Shards)
	if err != nil {
		return live, err
	}
	ahead := false
	err = part.Snapshot(func(s *gokakit.Snapshot) error {
		shown, err := l.asOf(s, part.Number())
		if err != nil {
			return err
		}
		for shard, mark := range shown {
			ahead = ahead || mark.Seal < seals[shard]
		}
		if ahead {
			return nil
		}
		live, err = readPart(s, q)
		return err
	})
	switch {
	case err != nil:
		return live, fmt.Errorf("partition %d: %w: %w", part.Number(), ErrNotReady, err)
	case ahead:
		return live, fmt.Errorf("partition %d: %w: it is not on disk yet", part.Number(), ErrBarrierAhead)
	}
	return live, nil
}

// exportShards checks an export and gives its reverse shards on the partition.
func (l *Likers) exportShards(q ExportQuery) ([]int, error) {
	if topology.CheckID(q.Barrier) != nil {
		return nil, fmt.Errorf("the barrier's id is invalid: %w", ErrQuery)
	}
	return l.shardsOf(ListQuery{Generation: q.Generation, Kind: q.Kind, Target: q.Target, Partition: q.Partition, Limit: 1})
}

func (l *Likers) checkExport(q ExportQuery, shard int, after Frontier, limit int) error {
	list := ListQuery{Generation: q.Generation, Kind: q.Kind, Target: q.Target, Partition: q.Partition, Limit: limit, After: map[int]Frontier{}}
	if after != (Frontier{}) {
		list.After[shard] = after
	}
	shards, err := l.shardsOf(list)
	if err == nil && !slices.Contains(shards, shard) {
		err = fmt.Errorf("reverse shard %d does not lie on partition %d: %w", shard, q.Partition, ErrQuery)
	}
	return err
}
