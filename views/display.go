package views

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/displaytable"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// ErrRecovering says that a view has not read its table to the end yet: ask
// again, or another instance.
var ErrRecovering = gokakit.ErrRecovering

// DefaultCacheTargets is the default of DisplayConfig.CacheTargets.
const DefaultCacheTargets = 200_000

// DisplayConfig says how the display table is followed.
type DisplayConfig struct {
	Client   gokakit.Client
	Topology *topology.Topology
	// StateDir holds the local copy of the table. No other process uses it.
	StateDir string
	// CacheTargets bounds the decoded counts kept in memory, about 300 bytes
	// each; 0 is DefaultCacheTargets.
	CacheTargets int
	Logger       *slog.Logger
	Registerer   prometheus.Registerer // optional
	Now          func() time.Time      // for Staleness; default time.Now
}

// table is a local copy of the display table. get answers ErrRecovering until
// the table is read to its end.
type table interface {
	Run(ctx context.Context) error
	Ready() error
	Get(key string) ([]byte, error)
}

// Display answers counts from a current copy of the display table.
type Display struct {
	table      table
	partitions int
	now        func() time.Time
	log        *slog.Logger
	cache      *otter.Cache[target, *entry]
	progress   *progress
	metrics    *metrics
	hooks      []func(Update)

	// A table that reads itself again may have lost rows that no update tells
	// of, so what was kept of it is thrown away: lost counts the times it was
	// seen to recover, kept is the count at which all was last thrown away.
	lost, kept atomic.Uint64
	mu         sync.Mutex // of throwing away
}

type target struct {
	kind topology.Kind
	id   string
}

// entry is a decoded snapshot. Its count has neither AsOf nor Staleness.
type entry struct {
	count   Count
	display int // display partition of the target
}

// NewDisplay checks the configuration; it does not talk to Kafka yet.
func NewDisplay(cfg DisplayConfig) (*Display, error) {
	d, err := newDisplay(cfg)
	if err != nil {
		return nil, err
	}
	d.table, err = gokakit.NewView(gokakit.ViewConfig{
		Client:     cfg.Client,
		Topology:   cfg.Topology,
		Table:      topology.DisplayTable,
		Schema:     displaytable.Schema{},
		StateDir:   cfg.StateDir,
		OnUpdate:   d.update,
		Logger:     cfg.Logger,
		Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// newDisplay builds everything but the table.
func newDisplay(cfg DisplayConfig) (*Display, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.CacheTargets == 0 {
		cfg.CacheTargets = DefaultCacheTargets
	}
	if cfg.CacheTargets < 0 {
		return nil, fmt.Errorf("display view: CacheTargets is %d, below 0", cfg.CacheTargets)
	}
	cache, err := otter.New(&otter.Options[target, *entry]{MaximumSize: cfg.CacheTargets, Logger: &otter.NoopLogger{}})
	if err != nil {
		return nil, fmt.Errorf("display view: building the cache: %w", err)
	}
	d := &Display{
		partitions: cfg.Topology.Config.DisplayPartitions,
		now:        cfg.Now,
		log:        cfg.Logger.With("component", "display view"),
		cache:      cache,
	}
	d.progress = newProgress(cfg.Topology.Config, func(key string) ([]byte, error) { return d.table.Get(key) })
	if d.metrics, err = newMetrics(cfg.Registerer, d); err != nil {
		return nil, fmt.Errorf("display view: registering metrics: %w", err)
	}
	return d, nil
}

// OnUpdate has f told of each change of a count, after Count answers it. It
// must be called before Run. f is called one update at a time per display
// partition, and holds the view up while it runs. What the view reads while it
// recovers is history and is not told.
func (d *Display) OnUpdate(f func(Update)) { d.hooks = append(d.hooks, f) }

// Run follows the table until ctx ends; it returns nil then.
func (d *Display) Run(ctx context.Context) error { return d.table.Run(ctx) }

// Ready is nil once the table is read to its end. Until then it says what is
// missing, with ErrRecovering in the chain.
func (d *Display) Ready() error { return d.table.Ready() }

// Count answers one count; see Counts.
func (d *Display) Count(kind topology.Kind, id string) (Count, error) {
	counts, err := d.Counts(kind, []string{id})
	if err != nil {
		return Count{}, err
	}
	return counts[0], nil
}

// Counts answers the counts of targets in their order. It fails as a whole:
// with ErrRecovering, with an unknown kind, or with an id that cannot be one.
func (d *Display) Counts(kind topology.Kind, ids []string) ([]Count, error) {
	if !kind.Valid() {
		return nil, fmt.Errorf("reading counts: kind %d is unknown", kind)
	}
	if err := d.readable(); err != nil {
		return nil, fmt.Errorf("reading counts: %w", err)
	}
	// What the counts include is read before the counts: an update between the
	// two makes a count include more than it says, never less.
	includes, err := d.progress.load()
	if err != nil {
		return nil, fmt.Errorf("reading what counts include: %w", err)
	}
	now := d.now()
	counts := make([]Count, len(ids))
	for i, id := range ids {
		e, err := d.entry(target{kind, id})
		if err != nil {
			return nil, fmt.Errorf("reading the count of target %d of %d: %w", i+1, len(ids), err)
		}
		counts[i] = e.count
		as := &includes.byDisplay[e.display]
		counts[i].AsOf, counts[i].Staleness = as.shards, staleness(now, as.oldest)
	}
	d.metrics.counts.Add(float64(len(ids)))
	return counts, nil
}

// readable is nil when the table is read to its end and nothing is kept from
// before it read itself again.
func (d *Display) readable() error {
	if err := d.table.Ready(); err != nil {
		d.lost.Add(1)
		return err
	}
	if d.kept.Load() == d.lost.Load() {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if lost := d.lost.Load(); d.kept.Load() != lost {
		d.cache.InvalidateAll()
		d.progress.markAll()
		d.kept.Store(lost)
	}
	return nil
}

func staleness(now, oldest time.Time) time.Duration {
	if oldest.IsZero() {
		return UnknownStaleness
	}
	return max(0, now.Sub(oldest))
}

// Progress says what every count of the table includes.
func (d *Display) Progress() (Progress, error) {
	if err := d.readable(); err != nil {
		return Progress{}, fmt.Errorf("reading progress: %w", err)
	}
	includes, err := d.progress.load()
	if err != nil {
		return Progress{}, fmt.Errorf("reading progress: %w", err)
	}
	return includes.all, nil
}

// Lag is how old the oldest seal is that every count includes; ok is false while
// that is not known.
func (d *Display) Lag() (lag time.Duration, ok bool) {
	p, err := d.Progress()
	if err != nil || !p.Complete {
		return 0, false
	}
	return staleness(d.now(), oldest(p.AsOf, len(p.AsOf))), true
}

func (d *Display) entry(t target) (*entry, error) {
	if e, ok := d.cache.GetIfPresent(t); ok {
		return e, nil
	}
	return d.cache.Get(context.Background(), t, otter.LoaderFunc[target, *entry](d.load))
}

// load reads a target's snapshot from the table. A target without one is
// cached as well.
func (d *Display) load(_ context.Context, t target) (*entry, error) {
	if err := topology.CheckID(t.id); err != nil {
		return nil, fmt.Errorf("id %w", err)
	}
	d.metrics.loads.Inc()
	key := topology.TargetKey(t.kind, t.id)
	e := &entry{count: Count{Kind: t.kind, Target: t.id}}
	var err error
	if e.display, err = topology.PartitionOf(key, d.partitions); err != nil {
		return nil, err
	}
	value, err := d.table.Get(key)
	if err != nil || value == nil {
		return e, err
	}
	var row tidemarkv1.DisplayRow
	if err := row.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("reading its snapshot: %w", err)
	}
	s := row.GetSnapshot()
	if s == nil {
		return nil, errors.New("reading its snapshot: the row holds something else")
	}
	fill(&e.count, s)
	return e, nil
}

func fill(c *Count, s *tidemarkv1.DisplaySnapshot) {
	c.Found = true
	c.Counts = topology.CountsOfSnapshot(s)
	c.GeneratedAt, c.CommittedAt = instant(s.GeneratedAtUs), instant(s.CommittedAtUs)
	c.Generation, c.ManifestID = s.Generation, s.ManifestId
	c.Partials, c.Seq = len(s.Partials), s.Seq
}

// instant is the time of microseconds since 1970; 0 is no time.
func instant(us int64) time.Time {
	if us == 0 {
		return time.Time{}
	}
	return time.UnixMicro(us).UTC()
}

// update is told of each record of the table, after reads see it.
func (d *Display) update(key string, _ []byte) {
	if d.table.Ready() != nil {
		d.lost.Add(1)
	}
	if display, count, ok := topology.ParseProgressKey(key); ok {
		d.progress.mark(display, count)
		return
	}
	kind, id, err := topology.ParseTargetKey(key)
	if err != nil {
		d.log.Warn("the display table has a key of no known form", "error", err)
		return
	}
	d.cache.Invalidate(target{kind, id})
	if len(d.hooks) > 0 {
		d.tell(kind, id, key)
	}
}

// tell reads the value again: the table may have kept a newer one than the
// record's.
func (d *Display) tell(kind topology.Kind, id, key string) {
	value, err := d.table.Get(key)
	if err != nil {
		return // history: the view recovers
	}
	var row tidemarkv1.DisplayRow
	if row.UnmarshalVT(value) != nil || row.GetSnapshot() == nil {
		return // Count says so
	}
	s := row.GetSnapshot()
	u := Update{Kind: kind, Target: id, Counts: topology.CountsOfSnapshot(s), Seq: s.Seq,
		GeneratedAt: instant(s.GeneratedAtUs), CommittedAt: instant(s.CommittedAtUs)}
	for _, hook := range d.hooks {
		hook(u)
	}
}
