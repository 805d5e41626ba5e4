package traffic

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func generator(t interface{ Fatal(...any) }, seed uint64, poison float64) *Generator {
	topo, err := topology.New(topology.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	c := Default(seed)
	c.Relations, c.Targets, c.Window, c.Poison = 300, 20, 50, poison
	return New(c, topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), topo.Config.CountPartitions), topo.Config)
}

// The highest version of each relation in the stream is its fact, whatever came
// twice, late, or was sent again; and everything stands where its key says.
func TestTheStreamHoldsTheFacts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := generator(t, rapid.Uint64().Draw(t, "seed"), 0.05)
		highest := map[string]*tidemarkv1.RelationChange{}
		late, twice := 0, 0
		take := func(m Message) {
			if m.Poison != "" {
				return
			}
			var b tidemarkv1.BucketChange
			if err := b.UnmarshalVT(m.Value); err != nil {
				t.Fatal(err)
			}
			p, _, rel, err := topology.ParseCountedKey(string(m.Key))
			if err != nil || p != int(m.Partition) {
				t.Fatalf("key %q on partition %d: %v", m.Key, m.Partition, err)
			}
			c := b.GetRelation()
			switch old := highest[rel.Key()]; {
			case old == nil || c.RelationVersion > old.RelationVersion:
				highest[rel.Key()] = c
			case c.RelationVersion == old.RelationVersion:
				twice++
			default:
				late++
			}
		}
		for range 3000 {
			m := g.Next()
			take(m)
			if rapid.IntRange(0, 99).Draw(t, "failed") == 0 {
				g.Again(m)
			}
		}
		for m, ok := g.Rest(); ok; m, ok = g.Rest() {
			take(m)
		}
		if late == 0 || twice == 0 {
			t.Fatalf("%d late, %d twice", late, twice)
		}
		facts := 0
		hidden := map[topology.Hidden]int{}
		err := g.Facts(func(r topology.Relation, version uint64, s topology.State, h topology.Hiding) error {
			facts++
			hidden[h.By]++
			if c := highest[r.Key()]; c == nil || c.RelationVersion != version || topology.State(c.State) != s || topology.HidingOf(c.Hidden, c.HiddenReason) != h {
				t.Fatalf("%s: fact version %d %v %v, stream %v", r.Key(), version, s, h, c)
			}
			return nil
		})
		if err != nil || facts != len(highest) {
			t.Fatalf("%d facts, %d relations in the stream, %v", facts, len(highest), err)
		}
		if len(hidden) != 3 {
			t.Fatalf("facts hidden by whom: %v", hidden)
		}
	})
}

// The same seed gives the same stream, apart from times.
func TestSeed(t *testing.T) {
	a, b := generator(t, 7, 0.1), generator(t, 7, 0.1)
	for range 1000 {
		x, y := a.Next(), b.Next()
		if string(x.Key) != string(y.Key) || x.Poison != y.Poison || x.Partition != y.Partition {
			t.Fatalf("%+v, %+v", x, y)
		}
	}
}

func TestTouchGivesEveryRelationANewVersion(t *testing.T) {
	g := generator(t, 1, 0)
	for range 500 {
		g.Next()
	}
	before := append([]uint64(nil), g.versions...)
	if n := len(g.Touch()); n != len(before) {
		t.Fatalf("%d messages", n)
	}
	for i, v := range g.versions {
		if v != before[i]+1 {
			t.Fatalf("relation %d: version %d after %d", i, v, before[i])
		}
	}
}

func TestSealsAreDense(t *testing.T) {
	g := generator(t, 1, 0)
	for n := range uint64(3) {
		for _, m := range g.Seal() {
			p, _, ok := topology.ParseWatermarkKey(string(m.Key))
			var b tidemarkv1.BucketChange
			if err := b.UnmarshalVT(m.Value); err != nil || !ok || p != int(m.Partition) || b.GetWatermark().Seal != n+1 {
				t.Fatalf("%+v: %v", m, err)
			}
		}
	}
}
