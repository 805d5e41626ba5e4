package likers

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// change is version v of the like of V9001 by u7; a like's time is 100 v.
func change(v uint64, s topology.State) *tidemarkv1.RelationChange {
	return &tidemarkv1.RelationChange{
		Kind: tidemarkv1.Kind(s.Kind()), UserId: "u7", TargetId: "V9001",
		RelationVersion: v, State: tidemarkv1.State(s), StateChangedAtUs: int64(100 * v),
	}
}

func row(s topology.State, v uint64, likedAt int64) *tidemarkv1.LikerRelation {
	return &tidemarkv1.LikerRelation{State: tidemarkv1.State(s), Version: v, CurrentLikedAtUs: likedAt}
}

// The sequences of S 10.4, and what else can follow on what.
func TestI14ApplySequences(t *testing.T) {
	type step struct {
		change *tidemarkv1.RelationChange
		want   *tidemarkv1.LikerRelation // nil: nothing changes
		effect Effects
	}
	for name, steps := range map[string][]step{
		"cancel v12 before like v11: a tombstone, and v11 exposes nobody": {
			{change(12, topology.Unliked), row(topology.Unliked, 12, 0), Effects{}},
			{change(11, topology.Liked), nil, Effects{}},
		},
		"v11 then v12: the entry of v11 goes": {
			{change(11, topology.Liked), row(topology.Liked, 11, 1100), Effects{Add: 1100}},
			{change(12, topology.Unliked), row(topology.Unliked, 12, 0), Effects{Remove: 1100}},
		},
		"re-like v13: a new entry with its own time": {
			{change(11, topology.Liked), row(topology.Liked, 11, 1100), Effects{Add: 1100}},
			{change(12, topology.Unliked), row(topology.Unliked, 12, 0), Effects{Remove: 1100}},
			{change(13, topology.Liked), row(topology.Liked, 13, 1300), Effects{Add: 1300}},
		},
		"re-like v13 over a missing v12: the time of v13": {
			{change(11, topology.Liked), row(topology.Liked, 11, 1100), Effects{Add: 1100}},
			{change(13, topology.Liked), row(topology.Liked, 13, 1300), Effects{Remove: 1100, Add: 1300}},
			{change(12, topology.Unliked), nil, Effects{}},
		},
		"duplicates": {
			{change(11, topology.Liked), row(topology.Liked, 11, 1100), Effects{Add: 1100}},
			{change(11, topology.Liked), nil, Effects{}},
			{change(12, topology.Unliked), row(topology.Unliked, 12, 0), Effects{Remove: 1100}},
			{change(12, topology.Unliked), nil, Effects{}},
			{change(11, topology.Liked), nil, Effects{}},
		},
		"a dislike is in no list": {
			{change(1, topology.Liked), row(topology.Liked, 1, 100), Effects{Add: 100}},
			{change(2, topology.Disliked), row(topology.Disliked, 2, 0), Effects{Remove: 100}},
			{change(3, topology.Unliked), row(topology.Unliked, 3, 0), Effects{}},
		},
		"favorites": {
			{change(1, topology.Favorited), row(topology.Favorited, 1, 100), Effects{Add: 100}},
			{change(2, topology.Unfavorited), row(topology.Unfavorited, 2, 0), Effects{Remove: 100}},
		},
		"followers": {
			{change(2, topology.Unfollowed), row(topology.Unfollowed, 2, 0), Effects{}},
			{change(1, topology.Following), nil, Effects{}},
			{change(3, topology.Following), row(topology.Following, 3, 300), Effects{Add: 300}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var state *tidemarkv1.LikerRelation
			for i, s := range steps {
				got, effect := Apply(state, s.change)
				if !got.EqualVT(s.want) || effect != s.effect {
					t.Fatalf("step %d: %v, %+v; want %v, %+v", i, got, effect, s.want, s.effect)
				}
				if got != nil {
					state = got
				}
			}
		})
	}
}

// I3, I14: in any order and with any repetition, a relation ends as its
// highest version says, and the list as its relations say; no step shows a
// version that is below one that was seen.
func TestI14AnyDeliveryEndsInTheHighestVersion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []*tidemarkv1.RelationChange
		versions := rapid.IntRange(1, 8).Draw(t, "versions")
		states := []topology.State{topology.Unliked, topology.Liked, topology.Disliked}
		for v := range versions {
			c := change(uint64(v+1), rapid.SampledFrom(states).Draw(t, "state"))
			for range rapid.IntRange(0, 3).Draw(t, "copies") {
				all = append(all, c)
			}
		}
		var state, highest = (*tidemarkv1.LikerRelation)(nil), (*tidemarkv1.RelationChange)(nil)
		list := map[int64]bool{}
		for _, c := range rapid.Permutation(all).Draw(t, "order") {
			if c.RelationVersion > highest.GetRelationVersion() {
				highest = c
			}
			next, e := Apply(state, c)
			if e.Remove != 0 {
				if !list[e.Remove] {
					t.Fatalf("removes %d, which is not in the list", e.Remove)
				}
				delete(list, e.Remove)
			}
			if e.Add != 0 {
				list[e.Add] = true
			}
			if next != nil {
				state = next
			}
			want := row(topology.State(highest.State), highest.RelationVersion, 0)
			if topology.State(highest.State) == topology.Liked {
				want.CurrentLikedAtUs = highest.StateChangedAtUs
			}
			if !state.EqualVT(want) {
				t.Fatalf("%v, the highest version seen says %v", state, want)
			}
			if len(list) > 1 || list[want.CurrentLikedAtUs] != (want.CurrentLikedAtUs != 0) {
				t.Fatalf("the list is %v, the relation %v", list, want)
			}
		}
	})
}

// The ordered index does what the effects say.
func TestIndexFollowsEffects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := topology.NewReverseGeneration(1, 8, 16)
		rel := drawRelation(t)
		key := topology.LikerKey(g.Place(rel), rel.Key())
		states := []topology.State{rel.Kind.Initial(), rel.Kind.Active()}
		draw := func(v uint64) *tidemarkv1.RelationChange {
			return &tidemarkv1.RelationChange{
				Kind: tidemarkv1.Kind(rel.Kind), UserId: rel.User, TargetId: rel.Target, RelationVersion: v,
				State: tidemarkv1.State(rapid.SampledFrom(states).Draw(t, "state")), StateChangedAtUs: rapid.Int64Min(1).Draw(t, "at"),
			}
		}
		old, _ := Apply(nil, draw(1))
		now, e := Apply(old, draw(2))
		expect := func(r *tidemarkv1.LikerRelation, at int64) {
			got, ok := indexOf(t, key, r)
			if ok != (at != 0) {
				t.Fatalf("%v has an entry: %v", r, ok)
			}
			if f, fine := parseItem(got.Item); ok && (!fine || f != Frontier{at, rel.User}) {
				t.Fatalf("entry %+v of %+v, want %d", f, rel, at)
			}
			want := list("0001", topology.TargetKey(rel.Kind, rel.Target), topology.Hex4(g.Shard(rel.User)))
			if ok && got.Group != want {
				t.Fatalf("group %q, want %q", got.Group, want)
			}
		}
		expect(old, e.Remove)
		expect(now, e.Add)
	})
}

func drawRelation(t *rapid.T) topology.Relation {
	id := rapid.StringOfN(rapid.OneOf(rapid.RuneFrom([]rune(`%:|~a1`)), rapid.Rune()), 1, 20, topology.MaxIDBytes).
		Filter(func(s string) bool { return topology.CheckID(s) == nil })
	return topology.Relation{Kind: rapid.SampledFrom(topology.Kinds()).Draw(t, "kind"), User: id.Draw(t, "user"), Target: id.Draw(t, "target")}
}

func indexOf(t require, key string, r *tidemarkv1.LikerRelation) (gokakit.Indexed, bool) {
	value, err := (&tidemarkv1.LikerRow{Body: &tidemarkv1.LikerRow_Relation{Relation: r}}).MarshalVT()
	if err != nil {
		t.Fatalf("%v", err)
	}
	got, ok, err := Schema{}.Index(key, value)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if v, err := (Schema{}).Version(value); err != nil || v != r.Version {
		t.Fatalf("version %d, %v", v, err)
	}
	return got, ok
}

type require interface{ Fatalf(string, ...any) }

// Items sort as the list is shown: newest first, of one time by user.
func TestItemsAreOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frontier := rapid.Custom(func(t *rapid.T) Frontier {
			return Frontier{rapid.OneOf(rapid.Int64Min(1), rapid.Int64Range(1, 5)).Draw(t, "at"), drawRelation(t).User}
		})
		a, b := frontier.Draw(t, "a"), frontier.Draw(t, "b")
		before := a.LikedAtUs > b.LikedAtUs || a.LikedAtUs == b.LikedAtUs && a.User < b.User
		if (a.item() < b.item()) != before {
			t.Fatalf("%+v and %+v have items %q and %q", a, b, a.item(), b.item())
		}
		if back, ok := parseItem(a.item()); !ok || back != a {
			t.Fatalf("%+v reads back as %+v", a, back)
		}
	})
}

func TestSchemaRefuses(t *testing.T) {
	value := encode(t, row(topology.Liked, 1, 100))
	for _, key := range []string{"", "like:u7:V9001", "0003|0001|000c", "0003|0001|000c|like", "0003-0001-000c-like:u:v", "0003|0001|000c|like:%zz:V"} {
		if _, _, err := (Schema{}).Index(key, value); err == nil {
			t.Errorf("key %q has an entry", key)
		}
	}
	for _, v := range [][]byte{{}, {0xff}} {
		if _, err := (Schema{}).Version(v); err == nil {
			t.Errorf("value %x has a version", v)
		}
	}
	if _, ok, err := (Schema{}).Index(topology.WatermarkKey(1, 2), encode(t, &tidemarkv1.SourceWatermark{Shard: 2, Seal: 9})); ok || err != nil {
		t.Errorf("a watermark has an entry: %v, %v", ok, err)
	}
}

// encode makes a row of the table.
func encode(t testing.TB, body any) []byte {
	t.Helper()
	var row tidemarkv1.LikerRow
	switch b := body.(type) {
	case *tidemarkv1.LikerRelation:
		row.Body = &tidemarkv1.LikerRow_Relation{Relation: b}
	case *tidemarkv1.SourceWatermark:
		row.Body = &tidemarkv1.LikerRow_Watermark{Watermark: b}
	default:
		panic(fmt.Sprintf("%T", body))
	}
	value, err := row.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestNextKeepsTheHighestSeal(t *testing.T) {
	var state *tidemarkv1.LikerRow
	var seen []uint64
	for _, seal := range []uint64{3, 2, 3, 5, 4} {
		c := &tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Watermark{Watermark: &tidemarkv1.SourceWatermark{Seal: seal}}}
		if row := next(state, c); row != nil {
			state = row
			seen = append(seen, seal)
		}
	}
	if !slices.Equal(seen, []uint64{3, 5}) {
		t.Errorf("took seals %v", seen)
	}
}
