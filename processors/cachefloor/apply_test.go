package cachefloor

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Whatever comes twice, late or out of order, a row ends at the highest version
// of the highest generation, and never goes back on the way (I3).
func TestAnyDeliveryGivesTheSameFloor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type told struct{ generation, version uint64 }
		all := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) told {
			return told{rapid.Uint64Range(1, 3).Draw(t, "generation"), rapid.Uint64Range(1, 9).Draw(t, "version")}
		}), 1, 30).Draw(t, "told")
		var row *tidemarkv1.FloorRow
		var want told
		for _, c := range all {
			if c.generation > want.generation || c.generation == want.generation && c.version > want.version {
				want = c
			}
			next, changed, ok := Floor(row.GetRelation(), c.generation, c.version, tidemarkv1.State(c.version%2+1))
			if ok != (c.generation >= row.GetRelation().GetGeneration()) {
				t.Fatalf("%+v over %v: ok %v", c, row, ok)
			}
			if changed {
				before, _ := Schema{}.Version(encode(t, row))
				row = &tidemarkv1.FloorRow{Body: &tidemarkv1.FloorRow_Relation{Relation: next}}
				if after, err := (Schema{}).Version(encode(t, row)); err != nil || after <= before {
					t.Fatalf("the row went from %d to %d: %v", before, after, err)
				}
			}
			if got := row.GetRelation(); got.Generation != want.generation || got.Version != want.version || got.State != tidemarkv1.State(want.version%2+1) {
				t.Fatalf("row %v, want %+v", got, want)
			}
		}
	})
}

func encode(t *rapid.T, row *tidemarkv1.FloorRow) []byte {
	if row == nil {
		row = &tidemarkv1.FloorRow{Body: &tidemarkv1.FloorRow_Claim{Claim: &tidemarkv1.OwnerClaim{}}}
	}
	value, err := row.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestGenerationsThatAPartitionWrites(t *testing.T) {
	gen := func(id uint64) *tidemarkv1.LiveGeneration { return &tidemarkv1.LiveGeneration{Generation: id} }
	var live *tidemarkv1.LiveGenerations
	step := func(next *tidemarkv1.LiveGenerations, want ...uint64) {
		t.Helper()
		if next == nil {
			t.Fatal("nothing has changed")
		}
		if next.Revision != live.GetRevision()+1 || len(next.Generations) != len(want) {
			t.Fatalf("%v after %v, want %v", next, live, want)
		}
		for i, g := range next.Generations {
			if g.Generation != want[i] {
				t.Fatalf("%v, want %v", next, want)
			}
		}
		live = next
	}
	same := func(next *tidemarkv1.LiveGenerations) {
		t.Helper()
		if next != nil {
			t.Fatalf("%v after %v", next, live)
		}
	}
	step(Begin(live, gen(1)), 1)
	same(Begin(live, gen(1)))
	step(Begin(live, gen(2)), 1, 2)
	step(End(live, 1), 2)
	same(Begin(live, gen(1))) // what has ended never begins again
	same(End(live, 1))
	step(Begin(live, gen(3)), 2, 3)
	step(Begin(live, gen(5)), 2, 5) // 3 has failed while 2 is read: its rows are taken over
	step(Begin(live, gen(6)), 5, 6)
	step(End(live, 6), 5)
	same(Begin(live, gen(6)))
	step(End(live, 5))
	step(Begin(live, gen(7)), 7)
}
