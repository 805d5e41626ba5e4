package projection

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func change(version uint64, state topology.State) *tidemarkv1.RelationChange {
	return &tidemarkv1.RelationChange{Kind: tidemarkv1.Kind(state.Kind()), RelationVersion: version, State: tidemarkv1.State(state)}
}

func hiddenChange(version uint64, by topology.Hidden) *tidemarkv1.RelationChange {
	c := change(version, topology.Liked)
	if c.Hidden = tidemarkv1.Hidden(by); by != topology.Shown {
		c.HiddenReason = "farm"
	}
	return c
}

// counter is a bucket with its relations, as the table holds them.
type counter struct {
	relations map[string]*tidemarkv1.ProjectedRelation
	bucket    *tidemarkv1.BucketCount
}

func (c *counter) apply(t interface{ Fatal(...any) }, user string, ch *tidemarkv1.RelationChange, offset int64) bool {
	next, err := Apply(State{c.relations[user], c.bucket}, ch, Input{1, offset})
	if err != nil {
		t.Fatal(err)
	}
	if next == nil {
		return false
	}
	c.relations[user], c.bucket = next, next.Bucket
	return true
}

func newCounter() *counter { return &counter{relations: map[string]*tidemarkv1.ProjectedRelation{}} }

// The seed's sequences (S 7.3) and invariants I2-I6, one step a line.
func TestApplySequences(t *testing.T) {
	type step struct {
		version          uint64
		state            topology.State
		offset           int64
		wrote            bool
		active, disliked int64
		seq              uint64
	}
	for name, steps := range map[string][]step{
		"like counts once": {
			{1, topology.Liked, 0, true, 1, 0, 1},
		},
		"duplicate v11 changes nothing (I2)": {
			{11, topology.Liked, 0, true, 1, 0, 1},
			{11, topology.Liked, 1, false, 1, 0, 1},
		},
		"v12 before v11: cancel first, no -1, late like does not revive (I3, I4)": {
			{12, topology.Unliked, 0, true, 0, 0, 1},
			{11, topology.Liked, 1, false, 0, 0, 1},
		},
		"v12 over a missing v11 folds like and cancel": {
			{10, topology.Unliked, 0, true, 0, 0, 1},
			{12, topology.Unliked, 1, true, 0, 0, 2},
		},
		"liked again is no +1 (I5)": {
			{1, topology.Liked, 0, true, 1, 0, 1},
			{3, topology.Liked, 1, true, 1, 0, 2},
		},
		"like to dislike moves both counts": {
			{1, topology.Liked, 0, true, 1, 0, 1},
			{2, topology.Disliked, 1, true, 0, 1, 2},
			{3, topology.Unliked, 2, true, 0, 0, 3},
		},
		"follow and unfollow": {
			{1, topology.Following, 0, true, 1, 0, 1},
			{2, topology.Unfollowed, 1, true, 0, 0, 2},
		},
		"a replayed offset is not counted again": {
			{1, topology.Liked, 5, true, 1, 0, 1},
			{1, topology.Liked, 5, false, 1, 0, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCounter()
			for i, s := range steps {
				if got := c.apply(t, "u", change(s.version, s.state), s.offset); got != s.wrote {
					t.Fatalf("step %d: wrote %v, want %v", i, got, s.wrote)
				}
				if b := c.bucket; b.Active != s.active || b.Disliked != s.disliked || b.Seq != s.seq {
					t.Fatalf("step %d: bucket %v, want active %d disliked %d seq %d", i, b, s.active, s.disliked, s.seq)
				}
			}
		})
	}
}

// C5: each step a version; the display is what is left of the raw count.
func TestC5ApplyCountsHiddenRelationsApart(t *testing.T) {
	c := newCounter()
	risk, policy := topology.HiddenByRisk, topology.HiddenByPolicy
	for i, s := range []struct {
		user   string
		change *tidemarkv1.RelationChange
		wrote  bool
		want   topology.Counts
	}{
		{"a", hiddenChange(1, risk), true, topology.Counts{Raw: 1, RiskHidden: 1}},
		{"a", hiddenChange(1, risk), false, topology.Counts{Raw: 1, RiskHidden: 1}},
		{"b", hiddenChange(1, topology.Shown), true, topology.Counts{Raw: 2, RiskHidden: 1}},
		{"a", hiddenChange(2, policy), true, topology.Counts{Raw: 2, PolicyHidden: 1}},
		{"a", hiddenChange(4, topology.Shown), true, topology.Counts{Raw: 2}},
		{"a", hiddenChange(3, risk), false, topology.Counts{Raw: 2}}, // the hiding before comes late
		{"a", hiddenChange(5, risk), true, topology.Counts{Raw: 2, RiskHidden: 1}},
		{"a", change(6, topology.Disliked), true, topology.Counts{Raw: 1, Disliked: 1}},
		{"a", hiddenChange(7, policy), true, topology.Counts{Raw: 2, PolicyHidden: 1}},
		{"a", change(8, topology.Unliked), true, topology.Counts{Raw: 1}},
	} {
		if got := c.apply(t, s.user, s.change, int64(i)); got != s.wrote {
			t.Fatalf("step %d: wrote %v, want %v", i, got, s.wrote)
		}
		if got := topology.CountsOfBucket(c.bucket); got != s.want {
			t.Fatalf("step %d: %v, want %v", i, got, s.want)
		}
		if r := c.relations[s.user]; s.wrote && (r.Hidden != s.change.Hidden || r.HiddenReason != s.change.HiddenReason) {
			t.Fatalf("step %d: the relation is hidden by %v because of %q", i, r.Hidden, r.HiddenReason)
		}
	}
}

func TestApplyRestoresALostRelationWithoutCountingIt(t *testing.T) {
	bucket := &tidemarkv1.BucketCount{Active: 7, Seq: 9, InputOffset: 40, InputEpoch: 1}
	next, err := Apply(State{Bucket: bucket}, change(3, topology.Liked), Input{1, 40})
	if err != nil {
		t.Fatal(err)
	}
	if next.Version != 3 || !next.Bucket.EqualVT(bucket) {
		t.Fatalf("got %v", next)
	}
}

// The offsets of an input topic that was deleted and made anew begin again;
// they must not be taken for ones that the bucket includes.
func TestApplyCountsAfterTheInputTopicWasMadeAnew(t *testing.T) {
	old := State{
		Relation: &tidemarkv1.ProjectedRelation{State: tidemarkv1.State(topology.Liked), Version: 1, InputOffset: 40},
		Bucket:   &tidemarkv1.BucketCount{Active: 7, Seq: 9, InputOffset: 40, InputEpoch: 1},
	}
	next, err := Apply(old, change(2, topology.Unliked), Input{2, 0})
	if err != nil {
		t.Fatal(err)
	}
	if b := next.Bucket; b.Active != 6 || b.Seq != 10 || b.InputEpoch != 2 || b.InputOffset != 0 {
		t.Fatalf("bucket %v", b)
	}
}

func TestApplyRefusesANegativeBucket(t *testing.T) {
	old := State{
		Relation: &tidemarkv1.ProjectedRelation{State: tidemarkv1.State(topology.Liked), Version: 1},
		Bucket:   &tidemarkv1.BucketCount{Seq: 1, InputOffset: 0},
	}
	if _, err := Apply(old, change(2, topology.Unliked), Input{1, 1}); !errors.Is(err, ErrNegative) {
		t.Fatalf("got %v", err)
	}
}

// C6, C5: a bucket that has lost a hiding, or the relation that one is of, is
// wrong.
func TestApplyRefusesABucketThatHidesMoreThanItHas(t *testing.T) {
	shown := &tidemarkv1.ProjectedRelation{State: tidemarkv1.State(topology.Liked), Version: 1}
	hidden := &tidemarkv1.ProjectedRelation{State: tidemarkv1.State(topology.Liked), Version: 1, Hidden: tidemarkv1.Hidden_HIDDEN_RISK, HiddenReason: "farm"}
	for name, test := range map[string]struct {
		relation *tidemarkv1.ProjectedRelation
		bucket   *tidemarkv1.BucketCount
		change   *tidemarkv1.RelationChange
	}{
		"a hiding that was not counted":         {hidden, &tidemarkv1.BucketCount{Active: 3, Seq: 1}, hiddenChange(2, topology.Shown)},
		"another hider's instead":               {hidden, &tidemarkv1.BucketCount{Active: 3, PolicyHidden: 1, Seq: 1}, change(2, topology.Unliked)},
		"more hidden than there are":            {shown, &tidemarkv1.BucketCount{Active: 1, PolicyHidden: 1, Seq: 1}, hiddenChange(2, topology.HiddenByRisk)},
		"fewer left than are hidden":            {shown, &tidemarkv1.BucketCount{Active: 2, RiskHidden: 2, Seq: 1}, change(2, topology.Unliked)},
		"a hidden one in a bucket of minus one": {nil, &tidemarkv1.BucketCount{Active: -1, Seq: 1}, hiddenChange(1, topology.HiddenByRisk)},
	} {
		if next, err := Apply(State{test.relation, test.bucket}, test.change, Input{1, 1}); !errors.Is(err, ErrNegative) {
			t.Errorf("%s: %v, %v", name, next, err)
		}
	}
}

// However a bucket's changes are duplicated and reordered, and however often a
// suffix of the input is read again, the counts are those of each relation's
// highest version (I2-I6), hidden ones too (C5), whatever the clocks of the shards
// say.
func TestApplyEqualsTheFactsAfterAnyDelivery(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		states := []topology.State{topology.Unliked, topology.Liked, topology.Liked, topology.Disliked}
		hiders := []topology.Hidden{topology.Shown, topology.HiddenByRisk, topology.HiddenByPolicy}
		clock := rapid.Int64Range(0, 1<<52)
		type delivery struct {
			user string
			c    *tidemarkv1.RelationChange
		}
		var input []delivery
		facts := map[string]*tidemarkv1.RelationChange{}
		for _, user := range []string{"a", "b", "c"} {
			for v := range rapid.IntRange(0, 5).Draw(t, "versions") {
				c := change(uint64(v+1), rapid.SampledFrom(states).Draw(t, "state"))
				if c.State == tidemarkv1.State(topology.Liked) {
					c = hiddenChange(uint64(v+1), rapid.SampledFrom(hiders).Draw(t, "hidden"))
				}
				c.StateChangedAtUs, c.CommittedAtUs = clock.Draw(t, "changed at"), clock.Draw(t, "committed at")
				facts[user] = c
				for range rapid.IntRange(1, 3).Draw(t, "copies") {
					input = append(input, delivery{user, c})
				}
			}
		}
		input = rapid.Permutation(input).Draw(t, "order")
		c := newCounter()
		var seq uint64
		read := func(from, to int) {
			for o := from; o < to; o++ {
				c.apply(t, input[o].user, input[o].c, int64(o))
				if s := c.bucket.GetSeq(); s < seq {
					t.Fatalf("seq went back from %d to %d", seq, s)
				}
				seq = c.bucket.GetSeq()
				if counts := topology.CountsOfBucket(c.bucket); !counts.Possible() {
					t.Fatalf("C5: %v", counts)
				}
			}
		}
		at := 0
		for range rapid.IntRange(0, 5).Draw(t, "restarts") {
			stop := rapid.IntRange(at, len(input)).Draw(t, "stop")
			read(at, stop)
			at = rapid.IntRange(0, stop).Draw(t, "committed")
		}
		read(at, len(input))
		var want topology.Counts
		for user, f := range facts {
			want = want.Plus(counted(f.State, f.Hidden))
			if r := c.relations[user]; r.Version != f.RelationVersion || r.State != f.State || r.Hidden != f.Hidden || r.HiddenReason != f.HiddenReason {
				t.Fatalf("relation %s is %v, its fact %v", user, r, f)
			}
		}
		if got := topology.CountsOfBucket(c.bucket); got != want {
			t.Fatalf("bucket %v, facts %v", got, want)
		}
	})
}

func TestSchemaReadsWhatApplyWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &tidemarkv1.ProjectedRelation{
			State: tidemarkv1.State(topology.Liked), Version: rapid.Uint64Min(1).Draw(t, "version"),
			StateChangedAtUs: rapid.Int64().Draw(t, "at"), InputOffset: rapid.Int64Min(0).Draw(t, "offset"),
			Position:      &tidemarkv1.SourcePosition{Shard: rapid.Uint32().Draw(t, "shard"), Lsn: rapid.Uint64().Draw(t, "lsn")},
			CommittedAtUs: rapid.Int64Min(0).Draw(t, "committed"),
			Bucket: &tidemarkv1.BucketCount{Active: rapid.Int64Min(0).Draw(t, "active"), Disliked: rapid.Int64Min(0).Draw(t, "disliked"),
				Seq: rapid.Uint64Min(1).Draw(t, "seq"), InputOffset: rapid.Int64Min(0).Draw(t, "bucket offset"),
				RiskHidden: rapid.Int64Min(0).Draw(t, "risk"), PolicyHidden: rapid.Int64Min(0).Draw(t, "policy")},
			Hidden: tidemarkv1.Hidden(rapid.IntRange(0, 2).Draw(t, "hidden")), HiddenReason: rapid.StringN(0, 20, 64).Draw(t, "reason"),
		}
		value, err := (&tidemarkv1.ProjectionRow{Body: &tidemarkv1.ProjectionRow_Relation{Relation: r}}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		if v, err := (Schema{}).Version(value); err != nil || v != r.Version {
			t.Fatalf("version %d, %v", v, err)
		}
		if _, at := news(value); at != r.CommittedAtUs {
			t.Fatalf("committed at %d, want %d", at, r.CommittedAtUs)
		}
		var got []gokakit.Derived
		key := topology.CountedKey(3, 0x1f2, topology.Relation{Kind: topology.Like, User: "u:7", Target: "V|9"})
		if err := (Schema{}).Derive(key, value, func(d gokakit.Derived) { got = append(got, d) }); err != nil {
			t.Fatal(err)
		}
		if len(got) != 1 || got[0].Group != topology.TargetKey(topology.Like, "V|9") || got[0].Item != "01f2" || got[0].Seq != r.Bucket.Seq {
			t.Fatalf("derived %+v", got)
		}
		b, err := decodeBucket(got[0].Value)
		if err != nil || !b.EqualVT(r.Bucket) {
			t.Fatalf("bucket %v, %v", b, err)
		}
	})
}

func FuzzSchema(f *testing.F) {
	value, _ := (&tidemarkv1.ProjectionRow{Body: &tidemarkv1.ProjectionRow_Watermark{Watermark: &tidemarkv1.SourceWatermark{Shard: 1, Seal: 2}}}).MarshalVT()
	f.Add("0001|0002|like:u:v", value)
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		_, _ = Schema{}.Version(value)
		_ = Schema{}.Derive(key, value, func(gokakit.Derived) {})
		news(value)
	})
}

func FuzzDecode(f *testing.F) {
	m := topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), 8)
	rel := topology.Relation{Kind: topology.Like, User: "u", Target: "v"}
	c := change(1, topology.Liked)
	c.UserId, c.TargetId, c.Placement = rel.User, rel.Target, m.Place(rel)
	value, _ := (&tidemarkv1.BucketChange{Body: &tidemarkv1.BucketChange_Relation{Relation: c}}).MarshalVT()
	f.Add(topology.CountedKey(int(c.Placement.Partition), int(c.Placement.VirtualBucket), rel), value, int(c.Placement.Partition))
	f.Fuzz(func(t *testing.T, key string, value []byte, partition int) {
		var b tidemarkv1.BucketChange
		if decode(m, topology.Record{Key: key, Value: value, Partition: partition}, &b) == nil && b.GetRelation() != nil {
			if next, err := Apply(State{}, b.GetRelation(), Input{1, 0}); err == nil && next == nil {
				t.Fatal("a first change of a relation was not counted")
			}
		}
	})
}
