package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark/tidemark/internal/breaker"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

var gen1 = cache.Generation{Family: cache.Relations, ID: 1, Deployment: "d1", Buckets: 1}

// cachedRig is a reader over facts in memory; hints are kept.
type cachedRig struct {
	*CachedRelations
	facts *fakeStore
	gate  func() // runs in each read of the facts, after it has read
	mu    sync.Mutex
	hints []cache.Relation
	users []string // hinted
	off   bool     // no generation is active
}

func (r *cachedRig) States(ctx context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error) {
	facts, err := r.facts.States(ctx, user, kind, targets)
	if r.gate != nil {
		r.gate()
	}
	return facts, err
}

func newCachedRig(t *testing.T, c RelationCache) *cachedRig {
	t.Helper()
	r := &cachedRig{facts: &fakeStore{facts: map[topology.Relation]relations.Fact{}}}
	var err error
	r.CachedRelations, err = NewCachedRelations(CachedConfig{
		Cache: c, Active: func() (cache.Generation, bool) { return gen1, !r.off }, Facts: readerFunc(r.States),
		Hint: func(_ cache.Generation, h cache.Relation) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.hints = append(r.hints, h)
		},
		HintUser: func(_ cache.Generation, _ topology.Kind, user string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.users = append(r.users, user)
		},
		Shard: func(string) int { return 0 }, Shards: 1, FallbackReads: 2, Timeout: 20 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

type readerFunc func(ctx context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error)

func (f readerFunc) States(ctx context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error) {
	return f(ctx, user, kind, targets)
}

func (r *cachedRig) commit(target string, version uint64) cache.Relation {
	state := topology.Liked
	if version%2 == 0 {
		state = topology.Unliked
	}
	rel := topology.Relation{Kind: topology.Like, User: "u7", Target: target}
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	r.facts.facts[rel] = relations.Fact{Relation: rel, State: state, Version: version}
	return cache.Relation{Relation: rel, State: state, Version: version}
}

// version reads one relation.
func (r *cachedRig) version(t *testing.T, target string, least uint64) uint64 {
	t.Helper()
	facts, err := r.StatesAtLeast(t.Context(), "u7", topology.Like, []string{target}, []uint64{least})
	if err != nil {
		t.Fatal(err)
	}
	return facts[0].Version
}

// openCache is an embedded Redis with generation 1, and the floor's writer.
func openCache(t *testing.T) (*cache.Client, *cache.RelationWriter) {
	t.Helper()
	c, err := cache.Open(cache.Config{URL: testenv.Redis(t), Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.Stamp(t.Context(), gen1); err != nil {
		t.Fatal(err)
	}
	return c, cache.NewRelationWriter(c) //nolint:forbidigo // stands for the floor
}

// The classic window (S 6.3): a reader reads v11, the cancel v12 is committed and
// cached, and only then the reader has its answer. Whoever comes next sees v12: if
// the reader wrote what it has read into a cache that has forgotten the relation,
// v11 would be there for good.
func TestAReaderNeverFillsTheCache(t *testing.T) {
	c, floor := openCache(t)
	r := newCachedRig(t, c)
	r.commit("V1", 11)
	r.gate = func() {
		r.gate = nil
		v12 := r.commit("V1", 12)
		if _, err := floor.Write(t.Context(), gen1, cache.Owner{Name: "0", Epoch: 1}, []cache.Relation{v12}); err != nil {
			t.Error(err)
		}
		if _, err := c.Drop(t.Context(), gen1, func(context.Context) error { return nil }); err != nil { // Redis forgets it again
			t.Error(err)
		}
		if err := c.Stamp(t.Context(), gen1); err != nil {
			t.Error(err)
		}
	}
	if v := r.version(t, "V1", 0); v != 11 {
		t.Fatalf("the slow reader read v%d: the test shows nothing", v)
	}
	got, err := c.Relations(t.Context(), gen1, topology.Like, "u7", []string{"V1"})
	if err != nil || got[0].Found {
		t.Fatalf("the reader has written %+v into the cache (%v)", got, err)
	}
	if len(r.hints) != 1 || r.hints[0].Version != 11 {
		t.Fatalf("hints %+v, want v11, for the floor to refuse", r.hints)
	}
	if v := r.version(t, "V1", 0); v != 12 {
		t.Errorf("the next reader read v%d", v)
	}
}

func TestWhatTheCacheHasIsNotReadFromTheShard(t *testing.T) {
	c, floor := openCache(t)
	r := newCachedRig(t, c)
	v1, v2 := r.commit("V1", 3), r.commit("V2", 4)
	if _, err := floor.Write(t.Context(), gen1, cache.Owner{}, []cache.Relation{v1}); err != nil {
		t.Fatal(err)
	}
	facts, err := r.StatesAtLeast(t.Context(), "u7", topology.Like, []string{"V3", "V2", "V1"}, nil)
	if err != nil || facts[0].Version != 0 || facts[0].State != topology.Unliked || facts[1].Version != 4 || facts[2].State != topology.Liked || facts[2].Relation.Target != "V1" {
		t.Fatalf("%+v: %v", facts, err)
	}
	if len(r.facts.asked) != 1 || fmt.Sprint(r.facts.asked[0]) != "[V3 V2]" {
		t.Errorf("asked the shard for %v", r.facts.asked)
	}
	if len(r.hints) != 1 || r.hints[0] != v2 {
		t.Errorf("hints %+v", r.hints)
	}
}

// A reader that found nothing says so of the user, and writes nothing: the first
// like was committed and cached meanwhile, and is what the next reader sees.
func TestAReaderOfNothingHidesNoFirstLike(t *testing.T) {
	c, floor := openCache(t)
	r := newCachedRig(t, c)
	r.gate = func() {
		r.gate = nil
		v1 := r.commit("V1", 1)
		if _, err := floor.Write(t.Context(), gen1, cache.Owner{Name: "0", Epoch: 1}, []cache.Relation{v1}); err != nil {
			t.Error(err)
		}
	}
	if v := r.version(t, "V1", 0); v != 0 {
		t.Fatalf("the slow reader read v%d: the test shows nothing", v)
	}
	if fmt.Sprint(r.users, r.hints) != "[u7] []" {
		t.Errorf("hinted %v and %v", r.users, r.hints)
	}
	got, err := c.Relations(t.Context(), gen1, topology.Like, "u7", []string{"V1", "V2"})
	if err != nil || got[0].Version != 1 || got[1].Found {
		t.Errorf("the cache has %+v: %v", got, err)
	}
	if v := r.version(t, "V1", 0); v != 1 {
		t.Errorf("the next reader read v%d", v)
	}
}

// Of a user all of whose relations are cached, the shard is asked for nothing but
// what the client has seen a version of; of one who has too many, as before, and
// nobody hints again.
func TestWhatAUserDoesNotHaveIsNotReadFromTheShard(t *testing.T) {
	c, floor := openCache(t)
	r := newCachedRig(t, c)
	user := cache.UserRelations{Kind: topology.Like, User: "u7", Relations: []cache.Relation{r.commit("V1", 3)}}
	write := func() {
		t.Helper()
		if err := floor.WriteUsers(t.Context(), gen1, cache.Owner{}, []cache.UserRelations{user}); err != nil {
			t.Fatal(err)
		}
	}
	write()
	facts, err := r.StatesAtLeast(t.Context(), "u7", topology.Like, []string{"V3", "V1"}, nil)
	if err != nil || facts[0].State != topology.Unliked || facts[0].Version != 0 || facts[0].Relation.Target != "V3" || facts[1].Version != 3 {
		t.Fatalf("%+v: %v", facts, err)
	}
	if len(r.facts.asked) != 0 {
		t.Errorf("asked the shard for %v", r.facts.asked)
	}
	r.commit("V3", 1)
	if v := r.version(t, "V3", 1); v != 1 {
		t.Errorf("read v%d for a client that has seen its first like", v)
	}
	user.Relations, user.Many = nil, true
	write()
	if v := r.version(t, "V4", 0); v != 0 || fmt.Sprint(r.facts.asked) != "[[V3] [V4]]" || len(r.users) != 0 {
		t.Errorf("v%d, asked the shard for %v, hinted %v", v, r.facts.asked, r.users)
	}
}

// What is below the version that the client has seen is read from the shard.
func TestALateCacheIsPassedBy(t *testing.T) {
	c, floor := openCache(t)
	r := newCachedRig(t, c)
	v11 := r.commit("V1", 11)
	if _, err := floor.Write(t.Context(), gen1, cache.Owner{}, []cache.Relation{v11}); err != nil {
		t.Fatal(err)
	}
	r.commit("V1", 12)
	if v := r.version(t, "V1", 0); v != 11 {
		t.Errorf("read v%d, the cache has v11", v)
	}
	if v := r.version(t, "V1", 12); v != 12 {
		t.Errorf("read v%d for a client that has seen v12", v)
	}
	r.off = true // as while a generation is rebuilt
	if v := r.version(t, "V1", 0); v != 12 {
		t.Errorf("read v%d although no generation is active", v)
	}
}

// scripted is a cache that does as it is told.
type scripted struct {
	mu    sync.Mutex
	calls int
	do    func(ctx context.Context) ([]cache.Cached, error)
}

func (s *scripted) Relations(ctx context.Context, _ cache.Generation, _ topology.Kind, _ string, targets []string) ([]cache.Cached, error) {
	s.mu.Lock()
	s.calls++
	do := s.do
	s.mu.Unlock()
	if do == nil {
		return make([]cache.Cached, len(targets)), nil
	}
	return do(ctx)
}

// A cache that fails or hangs is soon not asked any more, and asked again later;
// every answer is right all the while.
func TestAFailingCacheIsDoneWithout(t *testing.T) {
	for name, fail := range map[string]func(context.Context) ([]cache.Cached, error){
		"refuses": func(context.Context) ([]cache.Cached, error) { return nil, cache.ErrStamp },
		"hangs":   func(ctx context.Context) ([]cache.Cached, error) { <-ctx.Done(); return nil, ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &scripted{do: fail}
				r := newCachedRig(t, s)
				r.cfg.Timeout = 250 * time.Millisecond
				r.commit("V1", 5)
				start := time.Now()
				for range 1000 {
					if v := r.version(t, "V1", 0); v != 5 {
						t.Fatalf("read v%d", v)
					}
					time.Sleep(time.Millisecond)
				}
				if !r.Away() {
					t.Error("the cache does not count as away")
				}
				if s.calls > 12 {
					t.Errorf("the cache was asked %d times in %v", s.calls, time.Since(start))
				}
				s.do = nil
				time.Sleep(2 * breaker.LongestPause)
				before := s.calls
				for range 10 {
					r.version(t, "V1", 0)
				}
				if s.calls != before+10 {
					t.Errorf("a cache that answers again was asked %d of 10 times", s.calls-before)
				}
				if r.Away() {
					t.Error("a cache that answers counts as away")
				}
			})
		})
	}
}

// Without the cache a shard is asked by so many at a time, the same question once,
// and what is too much is refused at once.
func TestFallbackIsBoundedAndShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newCachedRig(t, &scripted{})
		r.off = true
		var mu sync.Mutex
		running, most, reads := 0, 0, 0
		r.gate = func() {
			mu.Lock()
			running++
			reads++
			most = max(most, running)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			running--
			mu.Unlock()
		}
		var done sync.WaitGroup
		var refused, answered int
		ask := func(target string) {
			done.Go(func() {
				_, err := r.CachedRelations.States(t.Context(), "u7", topology.Like, []string{target})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, relations.ErrUnavailable):
					refused++
				case err == nil:
					answered++
				default:
					t.Error(err)
				}
			})
		}
		for range 50 {
			ask("same")
		}
		synctest.Wait()
		for i := range 40 {
			ask(fmt.Sprint(i))
			synctest.Wait()
		}
		done.Wait()
		if most > 2 {
			t.Errorf("%d reads at a time, 2 are allowed", most)
		}
		if shared := valueOf(t, r.fallbacks.WithLabelValues("shared")); shared != 49 {
			t.Errorf("%v of 49 were answered with another's read", shared)
		}
		// 2 run (one of them for all 50), 32 wait; 5 s is how long a shared read may
		// wait, so that some end without an answer.
		if refused == 0 || answered < 50 || reads > 34 {
			t.Errorf("%d refused, %d answered, %d reads", refused, answered, reads)
		}
	})
}
