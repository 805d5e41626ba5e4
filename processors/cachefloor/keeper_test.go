package cachefloor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// shardFacts is a source in memory: everything is in shard 1.
type shardFacts struct {
	mu    sync.Mutex
	facts map[topology.Relation]cache.Relation
	// unseen are committed, and sent to the feed, but no query sees them before
	// their writers have ended.
	unseen []cache.Relation
	page   func() // runs before each page
}

func (s *shardFacts) commit(r cache.Relation) cache.Relation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.facts == nil {
		s.facts = map[topology.Relation]cache.Relation{}
	}
	s.facts[r.Relation] = r
	return r
}

func (s *shardFacts) AwaitWriters(_ context.Context, shard int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.unseen {
		s.facts[r.Relation] = r
	}
	s.unseen = nil
	return nil
}

func (s *shardFacts) Extent(context.Context, int) (int64, uint64, error) {
	return int64(len(s.facts)), 1, nil
}

func (s *shardFacts) Relations(_ context.Context, shard int, after topology.Relation, limit int) (page []cache.Relation, err error) {
	if shard != 1 {
		return nil, nil
	}
	if s.page != nil {
		s.page()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	order := func(a, b topology.Relation) int {
		return cmp.Or(strings.Compare(a.User, b.User), cmp.Compare(a.Kind, b.Kind), strings.Compare(a.Target, b.Target))
	}
	for _, r := range s.facts {
		if order(r.Relation, after) > 0 {
			page = append(page, r)
		}
	}
	slices.SortFunc(page, func(a, b cache.Relation) int { return order(a.Relation, b.Relation) })
	return page[:min(limit, len(page))], nil
}

// keeperRig is a rig whose generations stand in a control database.
type keeperRig struct {
	*rig
	db     *control.DB
	source *shardFacts
	watch  *control.CacheWatch
}

func newKeeperRig(t *testing.T) *keeperRig {
	t.Helper()
	url := testenv.Postgres(t)
	if err := control.Migrate(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	db, err := control.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	r := &keeperRig{rig: newRig(t), db: db, source: &shardFacts{}}
	r.watch = db.WatchCache(cache.Relations)
	r.rig.watch = r.watch
	r.background(r.watch.Run)
	return r
}

func (r *keeperRig) background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	r.t.Cleanup(stop)
	return stop
}

func (r *keeperRig) keep() (stop func()) {
	r.t.Helper()
	k, err := NewKeeper(KeeperConfig{Control: r.db, Cache: r.cache, Kafka: r.kafka, Topology: r.topo, Source: r.source, Rate: 1 << 20, Who: "test", page: 100, Logger: logger()})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.background(k.Run)
}

// active waits until a generation above one is active.
func (r *keeperRig) active(above uint64) (g cache.Generation) {
	r.t.Helper()
	testenv.Eventually(r.t, time.Minute, func() error {
		var ok bool
		if g, ok = r.watch.Active(); !ok || g.ID <= above {
			return fmt.Errorf("generation %d is active (%v)", g.ID, ok)
		}
		return nil
	})
	return g
}

// agrees compares what a generation holds with the facts.
func (r *keeperRig) agrees(g cache.Generation) {
	r.t.Helper()
	for _, want := range r.source.facts {
		got, err := r.cache.Relations(r.t.Context(), g, want.Kind, want.User, []string{want.Target})
		if err != nil || got[0].Version != want.Version || got[0].State != want.State {
			r.t.Fatalf("generation %d holds %s as %+v, want version %d: %v", g.ID, want.Key(), got, want.Version, err)
		}
	}
}

// Redis is flushed under traffic: the generation is given up, another one is
// built from the shards and the facts that come meanwhile, and a task of the old
// one that comes late reaches nothing (E3).
func TestALostRedisIsRebuilt(t *testing.T) {
	r := newKeeperRig(t)
	for i := range 250 { // more than two pages
		r.source.commit(like(fmt.Sprintf("u%04d", i), "V1", uint64(i%5+1)))
	}
	r.start(r.cache)
	r.keep()
	one := r.active(0)
	r.agrees(one)
	r.produce(r.fact(r.source.commit(like("u0007", "V1", 9))))
	r.settled(topology.Facts)
	r.agrees(one)

	// What is committed while the shards are read comes through facts, in front of
	// the reading or behind it.
	n := 0
	r.source.page = func() {
		n++
		r.produce(r.fact(r.source.commit(like("u0001", "V2", uint64(n)))), r.fact(r.source.commit(like("u9999", "V2", uint64(n)))))
	}
	if err := r.raw.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	two := r.active(one.ID)
	r.settled(topology.Facts)
	if n == 0 {
		t.Fatal("nothing was committed while the shards were read: the test shows nothing")
	}
	r.agrees(two)
	all, err := r.db.CacheGenerations(t.Context(), cache.Relations, 8)
	if err != nil || len(all) != 2 || all[1].Status != control.CacheFailed || all[0].Progress.Entries < 250 || all[0].Progress.Sampled == 0 {
		t.Errorf("generations %+v: %v", all, err)
	}
	r.produce(r.handover(one.ID, like("u0007", "V1", 1)))
	r.settled(topology.CacheTasks)
	r.agrees(two)
}

// Redis forgets a generation while it is rebuilt: its writers would try for ever,
// and the rebuilding wait for them, so it is given up and another one is begun.
func TestARebuildingThatRedisLoses(t *testing.T) {
	r := newKeeperRig(t)
	for i := range 250 {
		r.source.commit(like(fmt.Sprintf("u%04d", i), "V1", 1))
	}
	var once sync.Once
	r.source.page = func() {
		once.Do(func() {
			if err := r.raw.FlushAll(context.Background()).Err(); err != nil {
				t.Error(err)
			}
		})
	}
	r.start(r.cache)
	r.keep()
	r.agrees(r.active(1))
	all, err := r.db.CacheGenerations(t.Context(), cache.Relations, 8)
	if err != nil || len(all) != 2 || all[1].Status != control.CacheFailed || !strings.Contains(all[1].EndedReason, "lost it while it was rebuilt") {
		t.Errorf("generations %+v: %v", all, err)
	}
}

// The feed tells of a commit before the shard's queries see it. One that came
// before the generation was announced is in it all the same (I3).
func TestARebuildingReadsWhatTheFeedHasTold(t *testing.T) {
	r := newKeeperRig(t)
	r.source.commit(like("u0001", "V1", 1))
	r.source.unseen = []cache.Relation{like("u0001", "V1", 2)}
	r.start(r.cache)
	r.produce(r.fact(like("u0001", "V1", 2)))
	r.settled(topology.Facts)
	r.keep()
	got, err := r.cache.Relations(t.Context(), r.active(0), topology.Like, "u0001", []string{"V1"})
	if err != nil || got[0].Version != 2 {
		t.Errorf("the cache has %+v, of version 2: %v", got, err)
	}
}

// A rebuilding that is asked for serves the old generation until the new one is
// whole, and goes on after the keeper has died; the old one is cleared away.
func TestARebuildingGoesOn(t *testing.T) {
	r := newKeeperRig(t)
	for i := range 550 {
		r.source.commit(like(fmt.Sprintf("u%04d", i), "V1", 1))
	}
	r.start(r.cache)
	stop := r.keep()
	one := r.active(0)
	half, killed := make(chan struct{}), make(chan struct{})
	pages := 0
	r.source.page = func() {
		if pages++; pages == 3 {
			close(half)
			<-killed
		}
	}
	if _, err := r.db.BeginCache(t.Context(), cache.Relations, 2, "ann", "more buckets"); err != nil {
		t.Fatal(err)
	}
	<-half
	if g, ok := r.watch.Active(); !ok || g != one {
		t.Errorf("while it is rebuilt, %+v is active (%v)", g, ok)
	}
	go func() { close(killed) }()
	stop()
	r.produce(r.fact(r.source.commit(like("u0001", "V1", 2)))) // behind the place that was read
	r.keep()
	two := r.active(one.ID)
	if two.Buckets != 2 {
		t.Errorf("generation %+v", two)
	}
	r.settled(topology.Facts)
	r.agrees(two)
	testenv.Eventually(t, 30*time.Second, func() error {
		if n, err := r.cache.CountRelations(t.Context(), one); err != nil || n != 0 {
			return fmt.Errorf("%d entries of generation %d are left: %w", n, one.ID, err)
		}
		return nil
	})
}
