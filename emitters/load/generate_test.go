package load

import (
	"errors"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/tidemark/tidemark/topology"
)

func generate(t *testing.T, c Config, n int) []*command {
	t.Helper()
	g := newGenerator(c.withDefaults())
	var out []*command
	for range n {
		cmd, _, err := g.next()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, cmd)
	}
	return out
}

// The mix of LIKES-1, in what comes out.
func TestMixOfLikes1(t *testing.T) {
	const n = 200_000
	c := Default()
	c.Commands = n
	g := newGenerator(c)
	kinds := map[topology.Kind]float64{}
	states := map[topology.State]float64{}
	for {
		cmd, _, err := g.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err := cmd.relation.Check(); err != nil {
			t.Fatal(err)
		}
		if cmd.desired.Kind() != cmd.relation.Kind {
			t.Fatalf("%s shall be %v", cmd.relation.Key(), cmd.desired)
		}
		if cmd.relation.Kind == topology.Follow && cmd.relation.User == cmd.relation.Target {
			t.Fatalf("%s follows himself", cmd.relation.User)
		}
		kinds[cmd.relation.Kind] += 1.0 / n
		states[cmd.desired] += 1.0 / n
	}
	m := g.made
	share := func(v int64) float64 { return float64(v) / n }
	if m.Total != n || m.On+m.Off+m.Switch+m.Stale+m.Resend != n {
		t.Errorf("made %+v", m)
	}
	expectNear(t, "on share of plain commands", float64(m.On)/float64(m.On+m.Off), 0.75, 0.02)
	expectNear(t, "resends", share(m.Resend), 0.10, 0.005)
	expectNear(t, "stale bases", share(m.Stale), 0.02, 0.002)
	expectNear(t, "switches", share(m.Switch), 0.10, 0.015) // a follow has nothing to switch to
	expectNear(t, "likes", kinds[topology.Like], 0.80, 0.05)
	if kinds[topology.Favorite] < 0.08 || kinds[topology.Follow] < 0.05 || states[topology.Disliked] < 0.02 {
		t.Errorf("kinds %v, states %v", kinds, states)
	}
}

func TestGeneratorDependsOnTheSeedAlone(t *testing.T) {
	c := Default()
	a, b := generate(t, c, 5000), generate(t, c, 5000)
	c.Seed = 2
	other := generate(t, c, 5000)
	same := 0
	for i := range a {
		if a[i].relation != b[i].relation || a[i].desired != b[i].desired || a[i].stale != b[i].stale || (a[i].resend == nil) != (b[i].resend == nil) {
			t.Fatalf("command %d is %+v, then %+v", i, a[i], b[i])
		}
		if a[i].relation == other[i].relation {
			same++
		}
	}
	if same > 50 {
		t.Errorf("another seed makes %d of 5000 the same", same)
	}
}

// An off is of a relation that is on; a resend is of a command before it.
func TestGeneratorKeepsItsHistory(t *testing.T) {
	c := Default()
	c.Users, c.Targets = 100, 50
	c.Mix.Switch, c.Mix.StaleBase = 0, 0
	on := map[topology.Relation]bool{}
	offs := 0
	for _, cmd := range generate(t, c, 20_000) {
		switch {
		case cmd.resend != nil:
			if o := cmd.resend; o.number >= cmd.number || o.relation != cmd.relation || o.desired != cmd.desired || o.resend != nil {
				t.Fatalf("command %+v resends %+v", cmd, o)
			}
		case cmd.desired == cmd.relation.Kind.Active():
			on[cmd.relation] = true
		default:
			if offs++; !on[cmd.relation] {
				t.Fatalf("%s is put off, but is not on", cmd.relation.Key())
			}
			on[cmd.relation] = false
		}
	}
	if offs < 3000 {
		t.Errorf("only %d are put off", offs)
	}
}

func TestHotTarget(t *testing.T) {
	c := Default()
	c.Mix = Likes1()
	c.Mix.Hot, c.Mix.Follow = 0.578, 0
	g := newGenerator(c)
	for range 50_000 {
		if _, _, err := g.next(); err != nil {
			t.Fatal(err)
		}
	}
	if share := float64(g.made.Hottest) / 50_000; share < 0.55 || share > 0.68 {
		t.Errorf("the hot target takes %.3f", share)
	}
}

func TestActivesAreBounded(t *testing.T) {
	g := newGenerator(Default())
	for range 2 * activeRelations {
		g.on()
	}
	if len(g.active.list) != activeRelations || len(g.active.index) != activeRelations {
		t.Fatalf("%d listed, %d indexed, want %d", len(g.active.list), len(g.active.index), activeRelations)
	}
	for i, a := range g.active.list {
		if g.active.index[a.relation] != i {
			t.Fatalf("place %d is indexed as %d", i, g.active.index[a.relation])
		}
	}
	for len(g.active.list) > 0 {
		g.active.drop(g.active.pick(g.rng).relation)
	}
	if len(g.active.index) != 0 {
		t.Errorf("%d left in the index", len(g.active.index))
	}
}

func TestBatchSizes(t *testing.T) {
	c := Default()
	users, videos := userNames(c), targetNames(c, c.ReadSkew, 1)
	rng := rand.New(rand.NewPCG(1, 1))
	var items, one float64
	const n = 20_000
	for range n {
		b := newBatch(rng, users, videos)
		if len(b.videos) > maxBatch {
			t.Fatalf("%d videos", len(b.videos))
		}
		items += float64(len(b.videos))
		if len(b.videos) == 1 {
			one++
		}
	}
	expectNear(t, "mean batch", items/n, 1/0.382, 0.1)
	expectNear(t, "batches of one", one/n, 0.382, 0.02)
}

func TestOperationIDs(t *testing.T) {
	a, again, b := newOperationIDs("run"), newOperationIDs("run"), newOperationIDs("")
	seen := map[string]bool{}
	for n := int64(1); n <= 1000; n++ {
		for reissue := range 3 {
			id := a.id(n, reissue)
			if len(id) != 36 || seen[id] || id != again.id(n, reissue) || id == b.id(n, reissue) {
				t.Fatalf("id %s of command %d, reissue %d", id, n, reissue)
			}
			seen[id] = true
		}
	}
}

func TestEscapeID(t *testing.T) {
	for id, want := range map[string]string{
		"V9001": "V9001", ".": "%2E", "..": "%2E%2E", "...": "%2E%2E%2E", "a.b": "a.b", "a/b": "a%2Fb",
		"a b?c#d%": "a%20b%3Fc%23d%25", "a+b:c|d": "a%2Bb%3Ac%7Cd", "视": "%E8%A7%86",
	} {
		if got := escapeID(id); got != want {
			t.Errorf("id %q is written %s, want %s", id, got, want)
		}
	}
}
