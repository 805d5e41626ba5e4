package projection

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// flusher brings a partition's counts out: the absolute sum of each target that
// changed, then the progress that these sums include, then, once both are
// acked, a checkpoint in the table from which a new owner goes on.
//
// Only acked rows are summed, and a sum's seq is the changelog offset that it
// reaches, so that two owners that say the same seq say the same sum.
type flusher struct {
	*projection
	part *gokakit.Partition

	mu         sync.Mutex
	calm       *sync.Cond // signalled when few targets are dirty, and at the end
	sums       *sums
	dirty      map[string]int64 // by target key: commit time of its newest change, µs
	order      []string         // of first dirtying
	watermarks map[uint32]*tidemarkv1.SourceWatermark
	barriers   []*tidemarkv1.SourceWatermark // passed since progress was emitted; later seals do not hide them
	progressed bool                          // watermarks changed since progress was emitted
	settled    int64                         // changelog offset of the newest settled row
	stopped    bool
	wake       chan struct{}

	// Of the goroutine of Run only.
	checkpointed time.Time

	out    int64 // changelog offset up to which partials are acked
	outSet bool  // out is newer than the checkpoint
}

// maxDirty bounds the targets that wait for their partial count; the handler
// waits when there are more.
const maxDirty = 100_000

func (p *projection) newFlusher(part *gokakit.Partition) gokakit.Owner {
	f := &flusher{projection: p, part: part, sums: newSums(), dirty: map[string]int64{}, watermarks: map[uint32]*tidemarkv1.SourceWatermark{},
		wake: make(chan struct{}, 1), settled: -1, out: -1}
	f.calm = sync.NewCond(&f.mu)
	return f
}

// wait holds the handler back while too many targets are dirty.
func (f *flusher) wait() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.dirty) > maxDirty && !f.stopped {
		f.calm.Wait()
	}
}

// Settled notes what an acked row changed.
func (f *flusher) Settled(_ string, value []byte, offset int64, rows []gokakit.Derived) {
	w, committedAtUs := news(value)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settled = offset
	if w != nil {
		f.watermarks[w.Shard] = w
		f.progressed = true
		if w.BarrierId != "" {
			f.barriers = append(f.barriers, w)
		}
	}
	for _, r := range rows {
		f.mark(r.Group, committedAtUs)
		f.sums.settle(r.Group, r.Item, r.Value)
	}
	if len(rows) > 0 || f.progressed {
		f.poke()
	}
}

// news reads what the flusher must know of a row that the store has taken: a
// watermark, or a relation's commit time.
func news(row []byte) (*tidemarkv1.SourceWatermark, int64) {
	kind, body, err := openRow(row)
	if err != nil {
		return nil, 0
	}
	switch kind {
	case rowRelation:
		at, _ := varintField(body, relationCommittedAt)
		return nil, int64(at)
	case rowWatermark:
		w := new(tidemarkv1.SourceWatermark)
		if w.UnmarshalVT(body) == nil {
			return w, 0
		}
	}
	return nil, 0
}

func (f *flusher) mark(target string, committedAtUs int64) {
	newest, known := f.dirty[target]
	if !known {
		f.projection.dirty.Inc()
		f.order = append(f.order, target)
	}
	f.dirty[target] = max(newest, committedAtUs)
}

func (f *flusher) poke() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// slowFactor is how much longer the refresh interval is under overload.
const slowFactor = 5

func (f *flusher) refreshInterval() time.Duration {
	if f.cfg.Slow != nil && f.cfg.Slow() {
		return slowFactor * f.cfg.RefreshInterval
	}
	return f.cfg.RefreshInterval
}

// Run flushes at most every refresh interval until ctx ends.
func (f *flusher) Run(ctx context.Context) error {
	defer f.stop()
	if err := f.resume(ctx); err != nil {
		return fmt.Errorf("resuming partial counts: %w", err)
	}
	for {
		start := time.Now()
		if err := f.flush(); err != nil {
			return fmt.Errorf("emitting partial counts: %w", err)
		}
		if !pause.For(ctx, f.refreshInterval()-time.Since(start)) {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-f.wake:
		case <-f.checkpointDue():
		}
	}
}

func (f *flusher) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	f.projection.dirty.Sub(float64(len(f.dirty)))
	f.calm.Broadcast()
}

// resume finds what the last owner may not have brought out: every target and
// every barrier that the changelog names after its checkpoint, and the
// watermarks.
func (f *flusher) resume(ctx context.Context) error {
	for shard := range f.cfg.Topology.Config.Shards {
		row, err := f.row(topology.WatermarkKey(f.part.Number(), shard))
		if err != nil {
			return err
		}
		if w := row.GetWatermark(); w != nil {
			f.mu.Lock()
			if have := f.watermarks[w.Shard]; have.GetSeal() < w.Seal {
				f.watermarks[w.Shard] = w
			}
			f.mu.Unlock()
		}
	}
	row, err := f.row(topology.CheckpointKey(f.part.Number()))
	if err != nil {
		return err
	}
	from := int64(0)
	if c := row.GetCheckpoint(); c != nil {
		from = c.ChangelogOffset + 1
	}
	to := f.part.AckedOffset()
	err = f.part.ReadLog(ctx, from, to, f.remark)
	if ctx.Err() != nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settled = max(f.settled, to)
	f.progressed = len(f.watermarks) > 0
	return err
}

// remark marks the target of a changelog record, flushing as it goes so that a
// long log needs no more memory than a short one.
func (f *flusher) remark(key string, value []byte, _ int64) error {
	kind, _, err := openRow(value)
	if err != nil {
		return err
	}
	mark, committedAtUs := news(value)
	if mark.GetBarrierId() != "" {
		f.keep([]*tidemarkv1.SourceWatermark{mark})
	}
	if kind != rowRelation {
		return nil
	}
	group, _, err := bucketOf(key)
	if err != nil {
		return err
	}
	f.mu.Lock()
	f.mark(group, committedAtUs)
	n := len(f.dirty)
	f.mu.Unlock()
	if n < maxDirty/2 {
		return nil
	}
	w := f.take()
	f.keep(w.barriers) // for the progress that comes behind all of these
	return f.emit(w)
}

func (f *flusher) keep(barriers []*tidemarkv1.SourceWatermark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.barriers = append(f.barriers, barriers...)
}

func (f *flusher) row(key string) (*tidemarkv1.ProjectionRow, error) {
	value, err := f.part.Get(key)
	if err != nil {
		return nil, err
	}
	return decodeRow(value)
}

// work is what one flush brings out.
type work struct {
	targets    []string
	committed  map[string]int64 // commit time of the newest change, µs
	watermarks []*tidemarkv1.SourceWatermark
	barriers   []*tidemarkv1.SourceWatermark
	progressed bool
	settled    int64
}

func (f *flusher) take() work {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := work{targets: f.order, committed: f.dirty, barriers: f.barriers, progressed: f.progressed, settled: f.settled}
	for _, shard := range slices.Sorted(maps.Keys(f.watermarks)) {
		w.watermarks = append(w.watermarks, f.watermarks[shard])
	}
	f.order, f.dirty, f.barriers, f.progressed = nil, make(map[string]int64, len(w.targets)), nil, false
	f.calm.Broadcast()
	return w
}

func (f *flusher) flush() error {
	if err := f.checkpoint(); err != nil {
		return err
	}
	w := f.take()
	if len(w.targets) == 0 && !w.progressed {
		return nil
	}
	if err := f.emit(w); err != nil {
		return err
	}
	if w.progressed {
		if err := f.progress(w); err != nil {
			return err
		}
	}
	if len(w.targets) == 0 {
		return nil
	}
	f.part.Barrier(func(err error) {
		if err == nil {
			f.brought(w.settled)
		}
	})
	return nil
}

// brought notes that every partial up to a changelog offset is acked.
func (f *flusher) brought(offset int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if offset > f.out {
		f.out, f.outSet = offset, true
		f.poke()
	}
}

const checkpointInterval = time.Second

// checkpoint writes how far partials are out, at most once per interval, so
// that an idle partition writes nothing.
func (f *flusher) checkpoint() error {
	f.mu.Lock()
	offset, due := f.out, f.outSet && time.Since(f.checkpointed) >= checkpointInterval
	if due {
		f.outSet = false
	}
	f.mu.Unlock()
	if !due {
		return nil
	}
	f.checkpointed = time.Now()
	return put(f.part, topology.CheckpointKey(f.part.Number()), &tidemarkv1.ProjectionRow{
		Body: &tidemarkv1.ProjectionRow_Checkpoint{Checkpoint: &tidemarkv1.PartialCheckpoint{ChangelogOffset: offset}},
	})
}

// checkpointDue fires when a checkpoint waits for its interval; never when
// there is none to write.
func (f *flusher) checkpointDue() <-chan time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.outSet {
		return nil
	}
	return time.After(time.Until(f.checkpointed.Add(checkpointInterval)))
}
