package display

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/go-redis/v9"

	"github.com/tidemark/tidemark/drills/faultproxy"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// shown is a stage with a Redis that has the counts.
type shown struct {
	*stage
	url   string
	cache *cache.Client
	mu    sync.Mutex
	live  []cache.Generation
}

func countGeneration(id uint64) cache.Generation {
	return cache.Generation{Family: cache.Counts, ID: id, Deployment: "d1", Manifest: 1}
}

func newShown(t *testing.T) *shown {
	s := &shown{stage: newStage(t), url: testenv.Redis(t)}
	s.cache = s.open(s.url)
	return s
}

func (s *shown) open(url string) *cache.Client {
	s.t.Helper()
	c, err := cache.Open(cache.Config{URL: url, Timeout: 5 * time.Second})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

func (s *shown) lives() []cache.Generation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

// begin stamps a generation and has it written beside those that live.
func (s *shown) begin(g cache.Generation) {
	s.t.Helper()
	if err := s.cache.Stamp(s.t.Context(), g); err != nil {
		s.t.Fatal(err)
	}
	s.set(append(s.lives(), g)...)
}

func (s *shown) set(live ...cache.Generation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = live
}

func (s *shown) run(counts CountsConfig) (d *Display, stop func()) {
	s.t.Helper()
	if counts.Live == nil {
		counts.Live = s.lives
	}
	if counts.Cache == nil {
		counts.Cache = s.cache
	}
	counts.interval = 10 * time.Millisecond
	d, err := New(Config{Client: gokakit.Client{Brokers: s.brokers, Session: 2 * time.Second}, Topology: s.topo, StateDir: s.state, Instance: "one",
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Counts: &counts})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				s.t.Error(err)
			}
		})
	}
	s.t.Cleanup(stop)
	return d, stop
}

// seals tells the display partition of a key that every count partition includes
// a seal of each shard.
func (s *shown) seals(key string, seq uint64, seal uint64) {
	s.t.Helper()
	d, err := topology.PartitionOf(key, s.topo.Config.DisplayPartitions)
	if err != nil {
		s.t.Fatal(err)
	}
	for count := range s.topo.Config.CountPartitions {
		p := &tidemarkv1.PartitionProgress{Partition: uint32(count), Seq: seq}
		for shard := range s.topo.Config.Shards {
			p.Watermarks = append(p.Watermarks, &tidemarkv1.SourceWatermark{Shard: uint32(shard), Seal: seal, SealedAtUs: 7})
		}
		s.send(topology.ProgressKey(d, count), &tidemarkv1.CountUpdate{Body: &tidemarkv1.CountUpdate_Progress{Progress: p}})
	}
}

func (s *shown) eventually(check func() error) {
	s.t.Helper()
	testenv.Eventually(s.t, 30*time.Second, check)
}

// display reads a count of target V<n> from a generation.
func (s *shown) display(g cache.Generation, target string) (*cache.DisplayCount, error) {
	got, err := s.cache.Displays(s.t.Context(), g, topology.Like, []string{target})
	if err != nil {
		return nil, err
	}
	return got[0], nil
}

func (s *shown) wants(g cache.Generation, target string, active int64) {
	s.t.Helper()
	s.eventually(func() error {
		d, err := s.display(g, target)
		if err == nil && (d == nil || d.Counts.Raw != active) {
			err = fmt.Errorf("Redis shows %s as %+v, not %d", target, d, active)
		}
		return err
	})
}

// whole waits until the partition of a key is whole, and gives its progress.
func (s *shown) whole(g cache.Generation, key string, seal uint64) (p *cache.CountProgress) {
	s.t.Helper()
	d, err := topology.PartitionOf(key, s.topo.Config.DisplayPartitions)
	if err != nil {
		s.t.Fatal(err)
	}
	s.eventually(func() error {
		all, err := s.cache.CountProgress(s.t.Context(), g, []int{d})
		if err != nil {
			return err
		}
		if p = all[0]; p == nil || !p.Whole || len(p.AsOf) != s.topo.Config.Shards || p.AsOf[0].Seal < seal {
			return fmt.Errorf("the progress is %+v", p)
		}
		return nil
	})
	return p
}

// Redis has each count behind its ack: the display, the bucket that changed, and
// behind them what they include. Old news and duplicates change nothing.
func TestRedisFollowsTheTable(t *testing.T) {
	s := newShown(t)
	g := countGeneration(1)
	s.begin(g)
	s.run(CountsConfig{})
	s.partial("like:V1", 0, 3, 10)
	s.partial("like:V1", 5, 7, 4)
	s.partial("like:V1", 0, 2, 99) // late
	s.partial("like:V1", 5, 7, 4)  // twice
	s.seals("like:V1", 1, 4)
	s.wants(g, "V1", 14)
	p := s.whole(g, "like:V1", 4)
	s.partial("like:V1", 5, 8, 5)
	s.wants(g, "V1", 15)
	s.seals("like:V1", 2, 5)
	if next := s.whole(g, "like:V1", 5); next.Offset <= p.Offset {
		t.Errorf("progress at offset %d follows %d", next.Offset, p.Offset)
	}
	buckets := map[int]int64{}
	if err := s.cache.EachCount(t.Context(), g, func(_ *cache.DisplayCount, b *cache.BucketCount) error {
		if b != nil {
			buckets[b.Number] = b.Counts.Raw
		}
		return nil
	}); err != nil || len(buckets) != 2 || buckets[0] != 10 || buckets[5] != 5 {
		t.Errorf("buckets %v: %v", buckets, err)
	}
}

// A process dies between the ack and Redis: the next one reads the log from where
// Redis is, and one whose Redis is empty copies the table (E4).
func TestWhatDiesBehindTheAckIsDoneAgain(t *testing.T) {
	s := newShown(t)
	g := countGeneration(1)
	s.begin(g)
	_, stop := s.run(CountsConfig{})
	for i := range 40 {
		s.partial(fmt.Sprintf("like:V%d", i), 0, 1, int64(i))
		s.seals(fmt.Sprintf("like:V%d", i), uint64(i+1), uint64(i+1))
	}
	s.wants(g, "V39", 39)
	stop()
	// This one acks and never reaches Redis.
	_, stop = s.run(CountsConfig{Cache: s.open("redis://127.0.0.1:1/0")})
	s.partial("like:V7", 0, 2, 1007)
	s.read(topology.DisplayTable, wantCount(t, "like:V7", 1007, 2))
	stop()
	if d, err := s.display(g, "V7"); err != nil || d == nil || d.Counts.Raw != 7 {
		t.Fatalf("Redis has %+v (%v): it shows nothing", d, err)
	}
	s.run(CountsConfig{})
	s.partial("like:V7b", 0, 1, 1)
	for i := range 40 { // each partition's owner claims it with its first write
		s.seals(fmt.Sprintf("like:V%d", i), 100, 100)
	}
	s.wants(g, "V7", 1007)

	// Redis is flushed: what is there is not believed, and a new generation has it
	// all again.
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	next := countGeneration(2)
	s.set()
	s.begin(next)
	for i := range 40 {
		want := int64(i)
		if i == 7 {
			want = 1007
		}
		s.wants(next, fmt.Sprintf("V%d", i), want)
		s.whole(next, fmt.Sprintf("like:V%d", i), 100)
	}
	if _, err := s.display(g, "V7"); !errors.Is(err, cache.ErrStamp) {
		t.Errorf("the lost generation is read: %v", err)
	}
}

// While Redis is away the table goes on, in bounded memory, and Redis has all of it
// once it is back.
func TestTheTableGoesOnWithoutRedis(t *testing.T) {
	s := newShown(t)
	proxy, err := faultproxy.Start(strings.TrimPrefix(s.url, "redis://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	g := countGeneration(1)
	s.begin(g)
	d, _ := s.run(CountsConfig{Cache: s.open("redis://" + proxy.Address()), waiting: 5})
	s.partial("like:V0", 0, 1, 1)
	s.seals("like:V0", 1, 1)
	s.wants(g, "V0", 1)
	proxy.LeadTo("127.0.0.1:1")
	proxy.Cut()
	const targets = 300
	for i := range targets {
		s.partial(fmt.Sprintf("like:V%d", i), 0, 2, int64(i))
	}
	last := fmt.Sprintf("like:V%d", targets-1)
	s.read(topology.DisplayTable, wantCount(t, last, targets-1, 1))
	if d.Ready() != nil {
		t.Errorf("display is not ready without Redis: %v", d.Ready())
	}
	if n := valueOf(t, d.counts.waitings); n > float64(5*s.topo.Config.DisplayPartitions) {
		t.Errorf("%v targets wait", n)
	}
	if valueOf(t, d.counts.forgot) == 0 {
		t.Error("nothing was forgotten: it shows nothing")
	}
	proxy.LeadTo(strings.TrimPrefix(s.url, "redis://"))
	for i := range targets {
		s.wants(g, fmt.Sprintf("V%d", i), int64(i))
	}
}

// A generation of another manifest gets no count, and says why.
func TestCountsOfOtherRoutesAreRefused(t *testing.T) {
	s := newShown(t)
	g := countGeneration(1)
	g.Manifest = 2
	s.begin(g)
	s.run(CountsConfig{})
	s.partial("like:V1", 0, 3, 10)
	d, err := topology.PartitionOf("like:V1", s.topo.Config.DisplayPartitions)
	if err != nil {
		t.Fatal(err)
	}
	s.eventually(func() error {
		all, err := s.cache.CountProgress(t.Context(), g, []int{d})
		if err == nil && (all[0] == nil || all[0].Fault == "" || all[0].Whole) {
			err = fmt.Errorf("progress %+v", all[0])
		}
		return err
	})
	if d, err := s.display(g, "V1"); err != nil || d != nil {
		t.Errorf("Redis has %+v: %v", d, err)
	}
}

func valueOf(t *testing.T, m prometheus.Metric) float64 {
	t.Helper()
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		t.Fatal(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}

func (s *shown) flush() error {
	o, err := redis.ParseURL(s.url)
	if err != nil {
		return err
	}
	raw := redis.NewClient(o)
	return errors.Join(raw.FlushAll(s.t.Context()).Err(), raw.Close())
}

func (s *shown) control() *control.DB {
	s.t.Helper()
	url := testenv.Postgres(s.t)
	if err := control.Migrate(s.t.Context(), url); err != nil {
		s.t.Fatal(err)
	}
	db, err := control.Open(s.t.Context(), url)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(db.Close)
	return db
}

// background runs until the test ends.
func (s *shown) background(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			s.t.Error(err)
		}
	}()
	s.t.Cleanup(func() { cancel(); <-done })
}

// The keeper begins a generation, activates it when it is whole, and begins another
// one when Redis was flushed, by itself; the table is as it was (E3, E4).
func TestKeeperOfCounts(t *testing.T) {
	s := newShown(t)
	db := s.control()
	watch := db.WatchCache(cache.Counts)
	s.background(watch.Run)
	s.run(CountsConfig{Live: watch.Live})
	for i := range 30 {
		s.partial(fmt.Sprintf("like:V%d", i), 0, 1, int64(i))
	}
	for d := range s.topo.Config.DisplayPartitions {
		s.send(topology.ProgressKey(d, 0), &tidemarkv1.CountUpdate{Body: &tidemarkv1.CountUpdate_Progress{Progress: &tidemarkv1.PartitionProgress{Partition: 0, Seq: 1}}})
	}
	k, err := NewKeeper(KeeperConfig{Control: db, Cache: s.cache, Kafka: s.client, Topology: s.topo, Manifest: 1, Who: "test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.background(k.Run)
	active := func(above uint64) (g cache.Generation) {
		s.eventually(func() error {
			var ok bool
			if g, ok = watch.Active(); !ok || g.ID <= above {
				all, err := db.CacheGenerations(t.Context(), cache.Counts, 3)
				return fmt.Errorf("generation %d is active (%v): %+v %w", g.ID, ok, all, err)
			}
			return nil
		})
		return g
	}
	holds := func(g cache.Generation) {
		for i := range 30 {
			if d, err := s.display(g, fmt.Sprintf("V%d", i)); err != nil || d == nil || d.Counts.Raw != int64(i) {
				t.Fatalf("generation %d shows V%d as %+v: %v", g.ID, i, d, err)
			}
		}
	}
	one := active(0)
	holds(one)
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	two := active(one.ID)
	holds(two)
	all, err := db.CacheGenerations(t.Context(), cache.Counts, 3)
	if err != nil || len(all) < 2 || all[0].Progress.Entries < 30 || all[0].Progress.Sampled < 30 || all[1].Status != control.CacheFailed {
		t.Errorf("generations %+v: %v", all, err)
	}
	if _, err := db.BeginCountCache(t.Context(), 1, "ann", "asked for"); err != nil {
		t.Fatal(err)
	}
	three := active(two.ID)
	holds(three)
	// A writer of the retired generation wakes.
	w := cache.NewCountWriter(s.cache)
	s.eventually(func() error {
		_, err := w.Write(t.Context(), two, cache.Owner{Name: "late", Epoch: 1}, []cache.CountWrite{two.WriteDisplay(cache.DisplayCount{Kind: topology.Like, Target: "V1", Order: cache.Order{Seq: 99, Manifest: 1, Projection: 1}})})
		if errors.Is(err, cache.ErrStamp) {
			return nil
		}
		return fmt.Errorf("the late writer was answered %w", err)
	})
	holds(three)
}
