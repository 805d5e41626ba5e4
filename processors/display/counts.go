package display

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/displaytable"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// CountsConfig says which Redis has copies of the counts.
type CountsConfig struct {
	Cache *cache.Client
	// Live gives the generations to write; *control.CacheWatch does.
	Live func() []cache.Generation
	// Rate bounds what this process copies into a new generation, in targets per
	// second; default DefaultCopyRate.
	Rate int

	interval time.Duration // between two looks; default copyInterval
	waiting  int           // changes that are kept for Redis; default maxWaiting
}

const (
	// DefaultCopyRate copies a million targets in half a minute.
	DefaultCopyRate = 30_000
	// copyInterval coalesces the changes of a target: Redis gets the last of them.
	copyInterval = 200 * time.Millisecond
	// maxWaiting bounds, per partition and generation, the targets whose change
	// Redis has not taken yet. Beyond that they are forgotten and found again in the
	// table's log.
	maxWaiting = 50_000
)

// counts brings acked rows of the table to Redis.
type counts struct {
	cfg        CountsConfig
	shards     int
	partitions int // count partitions
	rate       int // targets per look and partition
	writer     *cache.CountWriter
	log        *slog.Logger

	written  prometheus.Counter
	failed   prometheus.Counter
	forgot   prometheus.Counter
	waitings prometheus.Gauge
}

func newCounts(cfg Config) (*counts, error) {
	c := &counts{cfg: *cfg.Counts, shards: cfg.Topology.Config.Shards, partitions: cfg.Topology.Config.CountPartitions,
		writer: cache.NewCountWriter(cfg.Counts.Cache), log: cfg.Logger.With("component", "display.cache")}
	if c.cfg.Rate == 0 {
		c.cfg.Rate = DefaultCopyRate
	}
	if c.cfg.interval == 0 {
		c.cfg.interval = copyInterval
	}
	if c.cfg.waiting == 0 {
		c.cfg.waiting = maxWaiting
	}
	looks := float64(time.Second) / float64(c.cfg.interval)
	c.rate = max(1, int(float64(c.cfg.Rate)/looks)/cfg.Topology.Config.DisplayPartitions)
	c.written = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_display_cache_written_total", Help: "Values that Redis was told: displayed counts, buckets, progress."})
	c.failed = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_display_cache_errors_total", Help: "Writes to Redis that failed and are made again."})
	c.forgot = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_display_cache_overflows_total", Help: "Times that more changes waited for Redis than are kept, so that they are looked up in the table's log."})
	c.waitings = prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemark_display_cache_waiting", Help: "Changed targets that Redis has not taken yet."})
	if cfg.Registerer == nil {
		return c, nil
	}
	for _, m := range []prometheus.Collector{c.written, c.failed, c.forgot, c.waitings} {
		if err := cfg.Registerer.Register(m); err != nil {
			return nil, fmt.Errorf("display: registering metrics: %w", err)
		}
	}
	return c, nil
}

// follower accompanies an owned partition and brings its rows to every live
// generation, behind their ack and beside the handler, which never waits for it: a
// Redis that is away makes what is in it late and nothing else.
//
// What a generation has is told in its progress: the offset of the table's log up
// to which everything is there. It is written behind the counts that it speaks of,
// so that whatever dies in between, the next owner reads the log on from there; one
// that finds no progress copies the whole table. Writing twice changes nothing.
type follower struct {
	*counts
	part *gokakit.Partition

	mu       sync.Mutex
	epoch    int64                            // place of this owner's first write in the table's log, plus 1; 0: none yet
	settled  int64                            // offset of the newest acked row that was told
	progress []*tidemarkv1.PartitionProgress  // acked, by count partition
	changing map[string][]uint32              // by key, the count partitions of the writes under way
	copies   map[cache.Generation]*generation // what Settled tells
}

func (c *counts) newFollower(part *gokakit.Partition) gokakit.Owner {
	return &follower{counts: c, part: part, settled: -1, progress: make([]*tidemarkv1.PartitionProgress, c.partitions),
		changing: map[string][]uint32{}, copies: map[cache.Generation]*generation{}}
}

// change notes which count partition a write under way is of.
func (f *follower) change(key string, countPartition uint32) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.changing[key] = append(f.changing[key], countPartition)
}

// changed gives what change noted of the oldest write of a key; ok is false for a
// row that was written again, unchanged.
func (f *follower) changed(key string) (countPartition uint32, ok bool) {
	under := f.changing[key]
	if len(under) == 0 {
		return 0, false
	}
	if len(under) == 1 {
		delete(f.changing, key)
	} else {
		f.changing[key] = under[1:]
	}
	return under[0], true
}

// Settled notes an acked row.
func (f *follower) Settled(key string, value []byte, offset int64, _ []gokakit.Derived) {
	_, _, isProgress := topology.ParseProgressKey(key)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.epoch == 0 {
		f.epoch = offset + 1
	}
	f.settled = offset
	countPartition, known := uint32(0), false
	if !isProgress {
		countPartition, known = f.changed(key)
	}
	if !isProgress && len(f.copies) == 0 {
		return
	}
	var row tidemarkv1.DisplayRow
	if row.UnmarshalVT(value) != nil {
		return // the handler has made it: cannot be
	}
	if p := row.GetProgress(); p != nil {
		f.advance(p)
	}
	if s := row.GetSnapshot(); s != nil {
		for _, g := range f.copies {
			f.mark(g, key, s, countPartition, known)
		}
	}
}

func (f *follower) advance(p *tidemarkv1.PartitionProgress) {
	if int(p.Partition) < len(f.progress) && p.Seq >= f.progress[p.Partition].GetSeq() {
		f.progress[p.Partition] = p
	}
}

// mark notes a change for a generation. It holds the lock.
func (f *follower) mark(g *generation, key string, s *tidemarkv1.DisplaySnapshot, countPartition uint32, known bool) {
	c := g.waiting[key]
	if c == nil {
		if g.forgot {
			return
		}
		if len(g.waiting) >= f.cfg.waiting {
			f.waitings.Sub(float64(len(g.waiting)))
			g.waiting, g.forgot = map[string]*change{}, true
			f.forgot.Inc()
			return
		}
		c = &change{}
		g.waiting[key] = c
		f.waitings.Inc()
	}
	if err := c.take(key, s, countPartition, known); err != nil {
		delete(g.waiting, key) // the handler has made the key: cannot be
		f.waitings.Dec()
	}
}

// change is a target's newest row, and those of its partial counts that differ
// from what Redis was told.
type change struct {
	display cache.DisplayCount
	buckets []cache.BucketCount
}

// wholeRow is the change to everything that a row says.
func wholeRow(key string, s *tidemarkv1.DisplaySnapshot) (*change, error) {
	c := &change{}
	return c, c.take(key, s, 0, false)
}

// take takes a newer row, of which one partial count has changed; all of them, if
// it is not known which.
func (c *change) take(key string, s *tidemarkv1.DisplaySnapshot, countPartition uint32, known bool) error {
	kind, target, err := topology.ParseTargetKey(key)
	if err != nil {
		return fmt.Errorf("reading a key of the display table: %w", err)
	}
	c.display = cache.DisplayCount{
		Kind: kind, Target: target, Order: cache.Order{Seq: s.Seq, Manifest: s.ManifestId, Projection: s.Generation},
		Counts: topology.CountsOfSnapshot(s), GeneratedAtUs: s.GeneratedAtUs, CommittedAtUs: s.CommittedAtUs, Partials: len(s.Partials),
	}
	for _, p := range s.Partials {
		if known && p.Partition != countPartition {
			continue
		}
		b := cache.BucketCount{
			Kind: kind, Target: target, Number: int(p.Partition), Order: cache.Order{Seq: p.Seq, Manifest: p.ManifestId, Projection: p.Generation},
			Counts: topology.CountsOfPartial(p),
		}
		at := slices.IndexFunc(c.buckets, func(have cache.BucketCount) bool { return have.Number == b.Number })
		if at < 0 {
			c.buckets = append(c.buckets, b)
		} else {
			c.buckets[at] = b
		}
	}
	return nil
}

// writes are what Redis is told of a change. An error says that it was counted by
// other routes than the generation's.
func (c *change) writes(g cache.Generation) ([]cache.CountWrite, error) {
	if c.display.Manifest != g.Manifest {
		return nil, fmt.Errorf("%v %s is counted by manifest %d, not by %d", c.display.Kind, c.display.Target, c.display.Manifest, g.Manifest)
	}
	writes := []cache.CountWrite{g.WriteDisplay(c.display)}
	for _, b := range c.buckets {
		if b.Manifest == g.Manifest { // else its count partition has not spoken since the routes changed
			writes = append(writes, g.WriteBucket(b))
		}
	}
	return writes, nil
}

// Run writes what has changed until ctx ends. It never fails the processor: the
// table goes on without Redis.
func (f *follower) Run(ctx context.Context) error {
	defer f.leave()
	for pause.For(ctx, f.cfg.interval) {
		for _, g := range f.generations() {
			if time.Now().Before(g.again) || g.over {
				continue
			}
			err := g.step(ctx)
			if err != nil && ctx.Err() == nil {
				f.failed.Inc()
				g.failed(err)
				continue
			}
			g.pause = 0
		}
	}
	return nil
}

// generations are the live ones, what was kept of others forgotten.
func (f *follower) generations() (all []*generation) {
	live := f.cfg.Live()
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, g := range f.copies {
		if !slices.Contains(live, name) {
			f.waitings.Sub(float64(len(g.waiting)))
			delete(f.copies, name)
		}
	}
	if f.epoch == 0 {
		return nil // nothing says yet that this owner is the latest one
	}
	for _, name := range live {
		g := f.copies[name]
		if g == nil {
			g = &generation{follower: f, name: name, waiting: map[string]*change{}, position: -1}
			f.copies[name] = g
		}
		all = append(all, g)
	}
	return all
}

func (f *follower) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, g := range f.copies {
		f.waitings.Sub(float64(len(g.waiting)))
	}
	clear(f.copies)
}

// includes is what counts include by the rows told so far. It holds the lock.
func (f *follower) includes() (all []cache.ShardSeal) {
	for _, w := range displaytable.Least(f.shards, f.progress) {
		all = append(all, cache.ShardSeal{
			Shard: int(w.Shard), Seal: w.Seal, PreviousCommitLSN: w.GetPosition().GetPreviousCommitLsn(), LSN: w.GetPosition().GetLsn(), SealedAtUs: w.SealedAtUs,
		})
	}
	return all
}

var errFault = errors.New("the generation cannot have this partition's counts")
