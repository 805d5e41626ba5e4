package views

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

var generation3 = cache.Generation{Family: cache.Counts, ID: 3, Deployment: "d", Manifest: 1}

// fakeRedis is a Redis that a test fills.
type fakeRedis struct {
	mu       sync.Mutex
	active   map[string]int64 // by target
	seal     uint64
	whole    bool
	failing  error
	gen      cache.Generation
	asked    map[string]int // reads of a target
	pipes    atomic.Int64   // calls of Displays
	released chan struct{}  // Displays waits for it, if set
	onRead   func()         // between progress and counts
}

func newFakeRedis() *fakeRedis {
	return &fakeRedis{active: map[string]int64{}, asked: map[string]int{}, seal: 1, whole: true, gen: generation3}
}

func (f *fakeRedis) set(target string, active int64, seal uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.active[target], f.seal = active, seal
}

func (f *fakeRedis) Active() (cache.Generation, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gen, f.gen.ID > 0
}

func (f *fakeRedis) Displays(ctx context.Context, g cache.Generation, kind topology.Kind, targets []string) ([]*cache.DisplayCount, error) {
	f.pipes.Add(1)
	if f.released != nil {
		select {
		case <-f.released:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failing != nil {
		return nil, f.failing
	}
	out := make([]*cache.DisplayCount, len(targets))
	for i, t := range targets {
		f.asked[t]++
		if active, ok := f.active[t]; ok {
			out[i] = &cache.DisplayCount{Kind: kind, Target: t, Order: cache.Order{Seq: f.seal, Manifest: g.Manifest, Projection: 1}, Counts: topology.Counts{Raw: active}, GeneratedAtUs: 5}
		}
	}
	return out, nil
}

func (f *fakeRedis) CountProgress(_ context.Context, _ cache.Generation, partitions []int) ([]*cache.CountProgress, error) {
	if f.onRead != nil {
		defer f.onRead()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]*cache.CountProgress, len(partitions))
	for i := range partitions {
		out[i] = &cache.CountProgress{Whole: f.whole}
		for shard := range topology.DefaultConfig().Shards {
			out[i].AsOf = append(out[i].AsOf, cache.ShardSeal{Shard: shard, Seal: f.seal, SealedAtUs: 1_000_000})
		}
	}
	return out, f.failing
}

// numberView answers every count with one number, or not at all.
type numberView struct {
	active int64
	err    error
	asked  atomic.Int64
}

func (v *numberView) Counts(kind topology.Kind, targets []string) ([]Count, error) {
	v.asked.Add(int64(len(targets)))
	if v.err != nil {
		return nil, v.err
	}
	out := make([]Count, len(targets))
	for i, t := range targets {
		out[i] = Count{Kind: kind, Target: t, Counts: topology.Counts{Raw: v.active}, Found: true}
	}
	return out, nil
}

// clock is moved by a test.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time       { return time.UnixMilli(c.at.Load()) }
func (c *clock) pass(d time.Duration) { c.at.Add(d.Milliseconds()) }

func newCached(t testing.TB, f *fakeRedis, change func(*CachedConfig)) *Cached {
	t.Helper()
	cfg := CachedConfig{Cache: f, Active: f.Active, Topology: testenv.Topology(t, nil), Local: time.Hour}
	if change != nil {
		change(&cfg)
	}
	c, err := NewCached(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func likes(t *testing.T, c *Cached, targets ...string) []Count {
	t.Helper()
	counts, err := c.Counts(topology.Like, targets)
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// What Redis does not have is asked of the view, in the order of the question; a
// generation that nobody may read, and a Redis that fails, leave all to it.
func TestWhatIsNotCachedIsAskedOfTheView(t *testing.T) {
	f, view := newFakeRedis(), &numberView{active: 100}
	f.set("V2", 2, 1)
	c := newCached(t, f, func(cfg *CachedConfig) { cfg.View = view })
	got := likes(t, c, "V1", "V2", "V3")
	if got[0].Counts.Raw != 100 || got[1].Counts.Raw != 2 || got[2].Counts.Raw != 100 || got[2].Target != "V3" {
		t.Errorf("read %+v", got)
	}
	f.mu.Lock()
	f.gen = cache.Generation{}
	f.mu.Unlock()
	if got := likes(t, c, "V2")[0]; got.Counts.Raw != 100 {
		t.Errorf("without an active generation: %+v", got)
	}
	f.mu.Lock()
	f.gen = generation3
	f.gen.ID, f.failing = 4, cache.ErrStamp
	f.mu.Unlock()
	if got := likes(t, c, "V2")[0]; got.Counts.Raw != 100 {
		t.Errorf("of a generation that Redis does not hold: %+v", got)
	}
}

// Without a view nothing is made up, least of all a count of 0 (G19).
func TestWhatNobodyKnowsIsNoCount(t *testing.T) {
	f := newFakeRedis()
	f.set("V2", 2, 1)
	c := newCached(t, f, nil)
	if got := likes(t, c, "V2")[0]; got.Counts.Raw != 2 {
		t.Errorf("read %+v", got)
	}
	if got, err := c.Counts(topology.Like, []string{"V2", "V3"}); !errors.Is(err, ErrNotCached) {
		t.Errorf("read %+v: %v", got, err)
	}
	if _, err := c.Counts(topology.Like, []string{""}); err == nil || errors.Is(err, ErrNotCached) {
		t.Errorf("an id that is none: %v", err)
	}
}

// The view answers while it can, and Redis while it recovers.
func TestRedisAnswersWhileTheViewRecovers(t *testing.T) {
	f, view := newFakeRedis(), &numberView{active: 100}
	f.set("V2", 2, 1)
	c := newCached(t, f, func(cfg *CachedConfig) { cfg.View, cfg.ViewFirst = view, true })
	if got := likes(t, c, "V2")[0]; got.Counts.Raw != 100 || f.pipes.Load() != 0 {
		t.Errorf("read %+v, Redis was asked %d times", got, f.pipes.Load())
	}
	view.err = fmt.Errorf("view: %w", ErrRecovering)
	if got := likes(t, c, "V2")[0]; got.Counts.Raw != 2 {
		t.Errorf("read %+v", got)
	}
}

// However a change falls between the two reads, a count includes at least what it
// says; a partition that is still being copied says nothing.
func TestACachedCountSaysNoMoreThanItIncludes(t *testing.T) {
	f, now := newFakeRedis(), &clock{}
	now.at.Store(3_000)
	f.set("V2", 2, 7)
	f.onRead = func() { f.set("V2", 3, 8) }
	c := newCached(t, f, func(cfg *CachedConfig) { cfg.Now = now.now })
	got := likes(t, c, "V2")[0]
	if got.Counts.Raw != 3 || got.AsOf[0].Seal != 7 || got.Staleness != 2*time.Second {
		t.Errorf("read %+v", got)
	}
	now.pass(time.Minute)
	if got := likes(t, c, "V2")[0]; got.Staleness != 62*time.Second {
		t.Errorf("a copy's staleness is %v", got.Staleness)
	}
	f.onRead, f.whole = nil, false
	g := generation3
	g.ID = 9
	f.mu.Lock()
	f.gen = g
	f.mu.Unlock()
	if got := likes(t, c, "V2")[0]; got.Counts.Raw != 3 || len(got.AsOf) != 0 || got.Staleness != UnknownStaleness {
		t.Errorf("of a partition that is being copied: %+v", got)
	}
}

// A new generation is read from its activation on, whatever is kept of the old one.
func TestCopiesEndWithTheirGeneration(t *testing.T) {
	f := newFakeRedis()
	f.set("V2", 2, 1)
	c := newCached(t, f, nil)
	likes(t, c, "V2")
	f.set("V2", 5, 2)
	if got := likes(t, c, "V2")[0]; got.Counts.Raw != 2 {
		t.Fatalf("read %+v: it is not a copy", got)
	}
	f.mu.Lock()
	f.gen.ID++
	f.mu.Unlock()
	if got := likes(t, c, "V2")[0]; got.Counts.Raw != 5 || got.AsOf[0].Seal != 2 {
		t.Errorf("read %+v after the activation", got)
	}
}

// A thousand readers of a target that is not here are one read of Redis.
func TestAStampedeIsOneRead(t *testing.T) {
	f := newFakeRedis()
	f.set("V1", 1, 1)
	f.set("V2", 2, 1)
	f.released = make(chan struct{})
	c := newCached(t, f, func(cfg *CachedConfig) { cfg.Timeout = 30 * time.Second })
	var readers sync.WaitGroup
	for range 1000 {
		readers.Go(func() {
			if got, err := c.Counts(topology.Like, []string{"V1", "V2"}); err != nil || got[0].Counts.Raw != 1 || got[1].Counts.Raw != 2 {
				t.Errorf("read %+v: %v", got, err)
			}
		})
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if f.pipes.Load() == 0 {
			return errors.New("nobody reads yet")
		}
		return nil
	})
	close(f.released)
	readers.Wait()
	if f.asked["V1"] != 1 || f.asked["V2"] != 1 {
		t.Errorf("Redis was asked %v", f.asked)
	}
}

// A hot target is read anew beside its readers, once.
func TestAHotTargetIsReadAhead(t *testing.T) {
	f, now := newFakeRedis(), &clock{}
	f.set("V2", 2, 1)
	c := newCached(t, f, func(cfg *CachedConfig) { cfg.Now, cfg.Timeout = now.now, 30*time.Second })
	likes(t, c, "V2")
	f.set("V2", 3, 2)
	likes(t, c, "V2")
	if f.pipes.Load() != 1 {
		t.Fatalf("Redis was asked %d times within half a life", f.pipes.Load())
	}
	now.pass(31 * time.Minute)
	f.released = make(chan struct{})
	for range 100 {
		if got := likes(t, c, "V2")[0]; got.Counts.Raw != 2 {
			t.Fatalf("read %+v: a reader has waited", got)
		}
	}
	close(f.released)
	testenv.Eventually(t, 10*time.Second, func() error {
		if got := likes(t, c, "V2")[0]; got.Counts.Raw != 3 {
			return fmt.Errorf("read %+v", got)
		}
		return nil
	})
	if n := f.pipes.Load(); n != 2 {
		t.Errorf("Redis was asked %d times", n)
	}
}

func TestCopiesAreBounded(t *testing.T) {
	f := newFakeRedis()
	c := newCached(t, f, func(cfg *CachedConfig) { cfg.LocalTargets, cfg.View = 100, &numberView{} })
	for i := range 5000 {
		likes(t, c, fmt.Sprintf("V%d", i))
	}
	c.counts.CleanUp()
	if n := c.counts.EstimatedSize(); n > 100 {
		t.Errorf("%d copies are kept", n)
	}
}

// A page whose counts are all here costs the answer and nothing else.
func TestALocalHitAllocatesItsAnswerOnly(t *testing.T) {
	f := newFakeRedis()
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = fmt.Sprintf("V%d", i)
		f.set(ids[i], int64(i), 1)
	}
	c := newCached(t, f, nil)
	likes(t, c, ids...)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := c.Counts(topology.Like, ids); err != nil {
			t.Fatal(err)
		}
	}); n > 1 {
		t.Errorf("20 local counts took %v allocations, want 1", n)
	}
}
