package verify

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Each fault is named, and what is merely late or absent is not one.
func TestCompareCache(t *testing.T) {
	const liked, unliked = topology.Liked, topology.Unliked
	type at struct {
		state  topology.State
		number uint64
	}
	for name, test := range map[string]struct {
		entry, floor, fact at
		want               CacheReport // Whole: Redis says that the user has nothing else
		text               string
	}{
		"agrees":                    {at{liked, 3}, at{liked, 3}, at{liked, 3}, CacheReport{Entries: 1, Floors: 1, Facts: 1}, ""},
		"late":                      {at{liked, 1}, at{liked, 3}, at{unliked, 4}, CacheReport{Entries: 1, Floors: 1, Facts: 1, Late: 1}, ""},
		"not cached":                {at{}, at{}, at{liked, 1}, CacheReport{Facts: 1, Absent: 1}, ""},
		"said not to be":            {at{}, at{liked, 1}, at{liked, 1}, CacheReport{Whole: 1, Floors: 1, Facts: 1, Late: 1}, ""},
		"above its floor":           {at{liked, 5}, at{liked, 3}, at{liked, 5}, CacheReport{Entries: 1, Floors: 1, Facts: 1, Wrong: 1}, "its floor as LIKED at version 3"},
		"without a floor":           {at{liked, 5}, at{}, at{liked, 5}, CacheReport{Entries: 1, Facts: 1, Wrong: 1}, "its floor as nothing"},
		"floor above the fact":      {at{}, at{liked, 3}, at{unliked, 2}, CacheReport{Floors: 1, Facts: 1, Wrong: 1}, "its shard as UNLIKED at version 2"},
		"another state":             {at{unliked, 3}, at{liked, 3}, at{liked, 3}, CacheReport{Entries: 1, Floors: 1, Facts: 1, Wrong: 1}, "Redis has it as UNLIKED"},
		"a floor of another state":  {at{}, at{unliked, 3}, at{liked, 3}, CacheReport{Floors: 1, Facts: 1, Wrong: 1}, "its floor has it as UNLIKED"},
		"of a relation that is not": {at{liked, 1}, at{liked, 1}, at{}, CacheReport{Entries: 1, Floors: 1, Wrong: 1}, "its shard as nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			rel := topology.Relation{Kind: topology.Like, User: "u7", Target: "V1"}
			floorRow := func(generation uint64, a at) []byte {
				v, err := (&tidemarkv1.FloorRow{Body: &tidemarkv1.FloorRow_Relation{Relation: &tidemarkv1.FloorRelation{Generation: generation, State: tidemarkv1.State(a.state), Version: a.number}}}).MarshalVT()
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			got, err := CompareCache(t.Context(), CacheConfig{
				Generation: cache.Generation{Family: cache.Relations, ID: 7, Deployment: "d", Buckets: 1},
				Entries: func(_ context.Context, visit func(cache.Relation) error, whole func(cache.Bucket)) error {
					whole(cache.Bucket{Kind: topology.Favorite, User: "u7"})
					if test.want.Whole > 0 {
						whole(cache.Bucket{Kind: topology.Like, User: "u7"})
					}
					if test.entry.number == 0 {
						return nil
					}
					return visit(cache.Relation{Relation: rel, State: test.entry.state, Version: test.entry.number})
				},
				Floors: func(_ context.Context, each func(int, string, []byte) error) error {
					if err := each(3, topology.FloorKey(3, 5, rel.Key()), floorRow(5, at{liked, 99})); err != nil || test.floor.number == 0 {
						return err // an older generation's row, that 7 takes over
					}
					return each(3, topology.FloorKey(3, 7, rel.Key()), floorRow(7, test.floor))
				},
				Facts: func(_ context.Context, visit func(Fact) error) error {
					if test.fact.number == 0 {
						return nil
					}
					return visit(Fact{Relation: rel, State: test.fact.state, Version: test.fact.number})
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(got.Examples, "\n")
			if !strings.Contains(text, test.text) || (text == "") != (test.text == "") {
				t.Errorf("examples %q, want %q", text, test.text)
			}
			got.Examples, test.want.Generation = nil, 7
			if got.Entries != test.want.Entries || got.Floors != test.want.Floors || got.Facts != test.want.Facts || got.Late != test.want.Late || got.Absent != test.want.Absent || got.Wrong != test.want.Wrong {
				t.Errorf("report %+v, want %+v", got, test.want)
			}
		})
	}
}

// A table's partitions are read at a time.
func TestCompareCacheTakesPartitionsAtATime(t *testing.T) {
	const partitions, each = 8, 2000
	floors := func(_ context.Context, visit func(int, string, []byte) error) error {
		var g errgroup.Group
		for p := range partitions {
			g.Go(func() error {
				for n := range each {
					rel := topology.Relation{Kind: topology.Like, User: fmt.Sprintf("u%d-%d", p, n), Target: "V1"}
					row, err := (&tidemarkv1.FloorRow{Body: &tidemarkv1.FloorRow_Relation{Relation: &tidemarkv1.FloorRelation{Generation: 7, State: tidemarkv1.State(topology.Liked), Version: 1}}}).MarshalVT()
					if err == nil {
						err = visit(p, topology.FloorKey(p, 7, rel.Key()), row)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}
		return g.Wait()
	}
	r, err := CompareCache(t.Context(), CacheConfig{
		Generation: cache.Generation{Family: cache.Relations, ID: 7, Deployment: "d", Buckets: 1}, Floors: floors,
		Entries: func(context.Context, func(cache.Relation) error, func(cache.Bucket)) error { return nil },
		Facts:   func(context.Context, func(Fact) error) error { return nil },
	})
	if err != nil || r.Floors != partitions*each {
		t.Errorf("%+v, %v", r, err)
	}
}
