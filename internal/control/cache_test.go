package control

import (
	"errors"
	"testing"

	"github.com/tidemark/tidemark/internal/cache"
)

// A generation goes its way once, and no step is taken from where it does not
// stand (E3).
func TestACacheGenerationsLife(t *testing.T) {
	db := openEmpty(t)
	begin := func() CacheGeneration {
		t.Helper()
		g, err := db.BeginCache(t.Context(), cache.Relations, 1, "ann", "first")
		if err != nil || g.Check() != nil || g.Status != CacheRebuilding {
			t.Fatalf("begun %+v: %v", g, err)
		}
		return g
	}
	is := func(id uint64, want CacheStatus) {
		t.Helper()
		all, err := db.CacheGenerations(t.Context(), cache.Relations, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range all {
			if g.ID == id && g.Status == want {
				return
			}
		}
		t.Fatalf("generation %d is not %s: %+v", id, want, all)
	}
	step := func(want bool) func(changed bool, err error) {
		return func(changed bool, err error) {
			t.Helper()
			if err != nil || changed != want {
				t.Fatalf("changed %v (%v), want %v", changed, err, want)
			}
		}
	}
	one := begin()
	if _, err := db.BeginCache(t.Context(), cache.Relations, 1, "bob", "too"); !errors.Is(err, ErrCacheRebuilding) {
		t.Fatalf("a second one: %v", err)
	}
	if other, err := db.BeginCache(t.Context(), cache.Heads, 1, "ann", "another family"); err != nil || other.ID != 1 || other.Deployment != one.Deployment {
		t.Fatalf("%+v: %v", other, err)
	}
	step(true)(db.StampingCache(t.Context(), one.Generation))
	step(false)(db.StampingCache(t.Context(), one.Generation))
	step(true)(db.NoteCacheProgress(t.Context(), one.Generation, CacheProgress{Phase: "reading", Shards: map[int]CacheShardProgress{3: {After: "like:u7:V1", Read: 5}}}))
	step(true)(db.ActivateCache(t.Context(), one.Generation, "ann"))
	step(false)(db.ActivateCache(t.Context(), one.Generation, "ann"))
	step(false)(db.NoteCacheProgress(t.Context(), one.Generation, CacheProgress{}))
	two := begin()
	is(one.ID, CacheActive)
	step(true)(db.ActivateCache(t.Context(), two.Generation, "ann"))
	is(one.ID, CacheRetired)
	is(two.ID, CacheActive)
	step(false)(db.FailCache(t.Context(), one.Generation, "ann", "too late"))
	step(true)(db.FailCache(t.Context(), two.Generation, "ann", "Redis was flushed"))
	step(false)(db.ActivateCache(t.Context(), two.Generation, "ann"))
	three := begin()
	step(true)(db.FailCache(t.Context(), three.Generation, "ann", "again"))
	step(false)(db.StampingCache(t.Context(), three.Generation))
	entries, err := db.Entries(t.Context(), CacheSubject(cache.Relations, two.ID), 10)
	if err != nil || len(entries) != 3 || entries[0].Action != "cache.failed" || entries[0].Reason != "Redis was flushed" {
		t.Errorf("audit %+v: %v", entries, err)
	}
}

// A rebuilding that has failed beside an active generation does not bring the
// next one into the place of the active one.
func TestAFailedRebuildingLeavesTheActiveGenerationItsRows(t *testing.T) {
	db := openEmpty(t)
	begin := func(want uint64) CacheGeneration {
		t.Helper()
		g, err := db.BeginCache(t.Context(), cache.Relations, 1, "ann", "again")
		if err != nil || g.ID != want {
			t.Fatalf("begun %d, want %d: %v", g.ID, want, err)
		}
		return g
	}
	if _, err := db.ActivateCache(t.Context(), begin(1).Generation, "ann"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{2, 4} {
		if _, err := db.FailCache(t.Context(), begin(id).Generation, "ann", "it does not agree"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ActivateCache(t.Context(), begin(6).Generation, "ann"); err != nil {
		t.Fatal(err)
	}
	begin(7)
}

// Counts name the manifest that they are counted by, and no other family does.
func TestACountGenerationHasAManifest(t *testing.T) {
	db := openEmpty(t)
	g, err := db.BeginCountCache(t.Context(), 7, "ann", "first")
	if err != nil || g.Family != cache.Counts || g.Manifest != 7 || g.Check() != nil {
		t.Fatalf("begun %+v: %v", g, err)
	}
	if g, err := db.BeginCache(t.Context(), cache.Counts, 1, "ann", "without one"); err == nil {
		t.Errorf("begun %+v without a manifest", g)
	}
	w := db.WatchCache(cache.Counts)
	w.Look(t.Context())
	if live := w.Live(); len(live) != 0 {
		t.Errorf("live before Redis was told: %v", live)
	}
	if first, err := db.StampingCache(t.Context(), g.Generation); err != nil || !first {
		t.Fatal(first, err)
	}
	w.Look(t.Context())
	if live := w.Live(); len(live) != 1 || live[0] != g.Generation {
		t.Errorf("live: %v", live)
	}
	if _, err := db.FailCache(t.Context(), g.Generation, "ann", "over"); err != nil {
		t.Fatal(err)
	}
	w.Look(t.Context())
	if live := w.Live(); len(live) != 0 {
		t.Errorf("live after its end: %v", live)
	}
}
