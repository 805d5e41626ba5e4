package views

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/breaker"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/topology"
)

// CountCache reads cached counts; *cache.Client does.
type CountCache interface {
	Displays(ctx context.Context, g cache.Generation, kind topology.Kind, targets []string) ([]*cache.DisplayCount, error)
	CountProgress(ctx context.Context, g cache.Generation, partitions []int) ([]*cache.CountProgress, error)
}

// Reader answers counts in the order of targets; *Display does.
type Reader interface {
	Counts(kind topology.Kind, targets []string) ([]Count, error)
}

// CachedConfig of counts that are read from Redis.
type CachedConfig struct {
	Cache CountCache
	// Active is the cache generation to read; ok is false while none may be read.
	Active   func() (g cache.Generation, ok bool)
	Topology *topology.Topology
	// View answers what Redis does not; nil: there is none, and such counts are
	// unknown (ErrNotCached).
	View Reader
	// ViewFirst asks View first, and Redis only while View does not answer, as when
	// it recovers.
	ViewFirst bool
	// Local is how long a count that was read from Redis is answered again; default
	// DefaultLocal.
	Local time.Duration
	// LocalTargets bounds the counts kept so; default DefaultLocalTargets.
	LocalTargets int
	// Timeout of a question to Redis; default cache.DefaultTimeout.
	Timeout    time.Duration
	Registerer prometheus.Registerer // optional
	Now        func() time.Time      // for Staleness; default time.Now
}

// Defaults of CachedConfig.
const (
	DefaultLocal        = 500 * time.Millisecond
	DefaultLocalTargets = 20_000
)

// ErrNotCached says that Redis does not have a count, and that there is nobody else
// to ask. It does not say that there is no count.
var ErrNotCached = errors.New("the count is not cached")

// Cached answers counts from Redis behind a short local cache, which finds hot
// targets and serves them: one that is asked for again in the second half of its
// local life is hot, and is read anew, once, beside its readers, who go on with what
// is there. So it costs two reads of Redis per life and process however often it is
// asked for, and nobody waits for it. A target that is not there is read once, whoever
// asks.
//
// What a count includes is read from Redis before the count, so that it includes at
// least what it says (as in Display), however old the two are when they are told.
// What Redis has evicted, what is of another generation and what cannot be believed
// is not there: it is asked of View, never made up.
type Cached struct {
	cfg    CachedConfig
	counts *otter.Cache[target, *cachedCount]
	asOf   *otter.Cache[int, *cachedAsOf] // by display partition
	reads  map[string]prometheus.Counter  // by result
	ahead  prometheus.Counter
	redis  breaker.Breaker
}

// cachedCount is what Redis has said of a target; display is nil when nothing.
type cachedCount struct {
	generation cache.Generation
	display    *cache.DisplayCount
	asOf       *asOf
	at         time.Time   // when it was asked for
	hot        atomic.Bool // it is being read anew
}

type cachedAsOf struct {
	generation cache.Generation
	asOf       *asOf
}

// Results of reading a count; also the values of the metric's label.
const (
	fromView  = "view"
	fromLocal = "local"
	fromRedis = "redis"
	unknown   = "unknown"
)

// NewCached makes a reader; it does not connect yet.
func NewCached(cfg CachedConfig) (*Cached, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Local == 0 {
		cfg.Local = DefaultLocal
	}
	if cfg.LocalTargets == 0 {
		cfg.LocalTargets = DefaultLocalTargets
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = cache.DefaultTimeout
	}
	c := &Cached{cfg: cfg, reads: map[string]prometheus.Counter{}}
	var err error
	if c.counts, err = otter.New(&otter.Options[target, *cachedCount]{
		MaximumSize: cfg.LocalTargets, Logger: &otter.NoopLogger{},
		ExpiryCalculator:  otter.ExpiryWriting[target, *cachedCount](cfg.Local),
		RefreshCalculator: otter.RefreshWriting[target, *cachedCount](cfg.Local / 2),
	}); err != nil {
		return nil, fmt.Errorf("cached counts: building the local cache: %w", err)
	}
	if c.asOf, err = otter.New(&otter.Options[int, *cachedAsOf]{
		MaximumSize: cfg.Topology.Config.DisplayPartitions, Logger: &otter.NoopLogger{},
		ExpiryCalculator: otter.ExpiryWriting[int, *cachedAsOf](cfg.Local),
	}); err != nil {
		return nil, fmt.Errorf("cached counts: building the local cache: %w", err)
	}
	reads := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_count_reads_total", Help: "Counts asked for, by who answered: view, local (a copy of what Redis said), redis, or unknown (nobody)."}, []string{"result"})
	for _, result := range []string{fromView, fromLocal, fromRedis, unknown} {
		c.reads[result] = reads.WithLabelValues(result)
	}
	c.ahead = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_count_reads_ahead_total", Help: "Hot targets that were read anew before their copy was too old."})
	if cfg.Registerer != nil {
		if err := errors.Join(cfg.Registerer.Register(reads), cfg.Registerer.Register(c.ahead)); err != nil {
			return nil, fmt.Errorf("cached counts: registering metrics: %w", err)
		}
	}
	return c, nil
}

// Close ends what the local cache does beside its readers.
func (c *Cached) Close() {
	c.counts.StopAllGoroutines()
	c.asOf.StopAllGoroutines()
}

// Count answers one count; see Counts.
func (c *Cached) Count(kind topology.Kind, id string) (Count, error) {
	counts, err := c.Counts(kind, []string{id})
	if err != nil {
		return Count{}, err
	}
	return counts[0], nil
}

// Counts answers the counts of targets in their order. It fails as a whole.
func (c *Cached) Counts(kind topology.Kind, ids []string) ([]Count, error) {
	if !kind.Valid() {
		return nil, fmt.Errorf("reading counts: kind %d is unknown", kind)
	}
	for i, id := range ids {
		if err := topology.CheckID(id); err != nil {
			return nil, fmt.Errorf("reading the count of target %d of %d: id %w", i+1, len(ids), err)
		}
	}
	if c.cfg.ViewFirst && c.cfg.View != nil {
		counts, err := c.cfg.View.Counts(kind, ids)
		if err == nil || !errors.Is(err, ErrRecovering) {
			c.reads[fromView].Add(float64(len(ids)))
			return counts, err
		}
	}
	out := make([]Count, len(ids))
	missing := c.cached(kind, ids, out)
	if len(missing) == 0 {
		return out, nil
	}
	if c.cfg.View == nil || c.cfg.ViewFirst {
		c.reads[unknown].Add(float64(len(missing)))
		return nil, fmt.Errorf("reading counts: %w: %d of %d", ErrNotCached, len(missing), len(ids))
	}
	asked := make([]string, len(missing))
	for i, at := range missing {
		asked[i] = ids[at]
	}
	found, err := c.cfg.View.Counts(kind, asked)
	if err != nil {
		c.reads[unknown].Add(float64(len(missing)))
		return nil, err
	}
	for i, at := range missing {
		out[at] = found[i]
	}
	c.reads[fromView].Add(float64(len(missing)))
	return out, nil
}

// cached fills in what Redis says, and gives the places of the rest.
func (c *Cached) cached(kind topology.Kind, ids []string, out []Count) (missing []int) {
	g, ok := c.cfg.Active()
	now := c.cfg.Now()
	var asked, hot []target
	local := 0
	for i, id := range ids {
		t := target{kind, id}
		e, have := c.counts.GetIfPresent(t)
		switch {
		case !ok:
			missing = append(missing, i)
		case !have || e.generation != g:
			missing, asked = append(missing, i), append(asked, t)
		case e.display == nil:
			missing = append(missing, i)
		default:
			if now.Sub(e.at) > c.cfg.Local/2 && e.hot.CompareAndSwap(false, true) {
				hot = append(hot, t)
			}
			fillCached(&out[i], e, now)
			local++
		}
		if have && ok && e.generation != g {
			c.counts.Invalidate(t) // of a generation that has ended
		}
	}
	c.reads[fromLocal].Add(float64(local))
	if len(hot) > 0 {
		c.ahead.Add(float64(len(hot)))
		c.counts.BulkRefresh(context.Background(), hot, otter.BulkLoaderFunc[target, *cachedCount](c.load))
	}
	if len(asked) == 0 {
		return missing
	}
	return c.ask(g, now, ids, asked, missing, out)
}

// ask reads from Redis what is not here, and gives the places of the rest.
func (c *Cached) ask(g cache.Generation, now time.Time, ids []string, asked []target, missing []int, out []Count) (left []int) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout)
	defer cancel()
	read, err := c.counts.BulkGet(ctx, asked, otter.BulkLoaderFunc[target, *cachedCount](c.load))
	if err != nil {
		return missing // what is wrong with Redis is never wrong with an answer
	}
	for _, i := range missing {
		e := read[target{asked[0].kind, ids[i]}]
		if e == nil || e.display == nil || e.generation != g {
			left = append(left, i)
			continue
		}
		fillCached(&out[i], e, now)
		c.reads[fromRedis].Inc()
	}
	return left
}

// load reads targets from Redis, if it answers these days.
func (c *Cached) load(ctx context.Context, targets []target) (map[target]*cachedCount, error) {
	g, ok := c.cfg.Active()
	if !ok || len(targets) == 0 || !c.redis.Enter() {
		return nil, ErrNotCached
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	out, err := c.read(ctx, g, targets)
	c.redis.Leave(err)
	return out, err
}

func (c *Cached) read(ctx context.Context, g cache.Generation, targets []target) (map[target]*cachedCount, error) {
	at := c.cfg.Now()
	partitions, byKind := map[target]int{}, map[topology.Kind][]string{}
	for _, t := range targets {
		d, err := topology.PartitionOf(topology.TargetKey(t.kind, t.id), c.cfg.Topology.Config.DisplayPartitions)
		if err != nil {
			return nil, err
		}
		partitions[t] = d
		byKind[t.kind] = append(byKind[t.kind], t.id)
	}
	includes, err := c.includes(ctx, g, partitions)
	if err != nil {
		return nil, err
	}
	out := make(map[target]*cachedCount, len(targets))
	for kind, ids := range byKind {
		displays, err := c.cfg.Cache.Displays(ctx, g, kind, ids)
		if err != nil {
			return nil, err
		}
		for i, d := range displays {
			t := target{kind, ids[i]}
			out[t] = &cachedCount{generation: g, display: d, asOf: includes[partitions[t]], at: at}
		}
	}
	return out, nil
}

// includes reads what the counts of display partitions include, from memory or from
// Redis, before the counts are read.
func (c *Cached) includes(ctx context.Context, g cache.Generation, of map[target]int) (map[int]*asOf, error) {
	out := map[int]*asOf{}
	var missing []int
	for _, d := range of {
		if _, seen := out[d]; seen {
			continue
		}
		out[d] = nil
		if e, ok := c.asOf.GetIfPresent(d); ok && e.generation == g {
			out[d] = e.asOf
		} else {
			missing = append(missing, d)
		}
	}
	if len(missing) == 0 {
		return out, nil
	}
	told, err := c.cfg.Cache.CountProgress(ctx, g, missing)
	if err != nil {
		return nil, err
	}
	for i, p := range told {
		a := c.asOfProgress(p)
		out[missing[i]] = a
		c.asOf.Set(missing[i], &cachedAsOf{g, a})
	}
	return out, nil
}

func (c *Cached) asOfProgress(p *cache.CountProgress) *asOf {
	a := new(asOf)
	if p == nil || !p.Whole {
		return a // nothing is known of what its counts include
	}
	for _, s := range p.AsOf {
		a.shards = append(a.shards, ShardAsOf{
			Shard: s.Shard, Seal: s.Seal, PreviousCommitLSN: s.PreviousCommitLSN, LSN: s.LSN, SealedAt: time.UnixMicro(s.SealedAtUs).UTC(),
		})
	}
	a.oldest = oldest(a.shards, c.cfg.Topology.Config.Shards)
	return a
}

func fillCached(c *Count, e *cachedCount, now time.Time) {
	d := e.display
	*c = Count{
		Kind: d.Kind, Target: d.Target, Counts: d.Counts, Found: true,
		GeneratedAt: instant(d.GeneratedAtUs), CommittedAt: instant(d.CommittedAtUs),
		Generation: d.Projection, ManifestID: d.Manifest, Partials: d.Partials, Seq: d.Seq,
		AsOf: e.asOf.shards, Staleness: staleness(now, e.asOf.oldest),
	}
}
