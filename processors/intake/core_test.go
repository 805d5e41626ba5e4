package intake

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Every event that a relation store can write arrives whole in facts, in the
// bucket of its relation and in its reverse shard, whatever its ids are (I11).
func TestEveryEventArrivesWhole(t *testing.T) {
	core := testCore(t)
	manifest := topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), 8)
	reverse := topology.NewReverseGeneration(1, 8, 16)
	rapid.Check(t, func(rt *rapid.T) {
		ev := drawEvent(rt)
		r := recordOf(t, envelopeOf(ev.SourceShard, topology.AggregateRelation, ev.AggregateKey, topology.TypeRelationChanged, jsonb(t, ev)))
		e := core.Apply(r)
		if e.Outcome != Changed {
			q := decodeAs(t, e.Emissions[0].Value, &tidemarkv1.Quarantined{})
			rt.Fatalf("%s: %v %s", e.Outcome, q.Reason, q.Detail)
		}
		relation, err := topology.ParseRelationKey(ev.AggregateKey)
		if err != nil {
			rt.Fatal(err)
		}
		fact := decodeAs(t, e.Emissions[0].Value, &tidemarkv1.RelationChange{})
		checkChange(rt, fact, ev)
		if at, rest, _ := topology.CutPartition(e.Emissions[0].Key); at != ev.SourceShard || rest != ev.AggregateKey {
			rt.Fatalf("fact has key %q", e.Emissions[0].Key)
		}
		counted := decodeAs(t, e.Emissions[1].Value, &tidemarkv1.BucketChange{}).GetRelation()
		place := manifest.Place(relation)
		if !counted.Placement.EqualVT(place) || e.Emissions[1].Key != topology.CountedKey(int(place.Partition), int(place.VirtualBucket), relation) {
			rt.Fatalf("placed at %v under %q, not at %v", counted.Placement, e.Emissions[1].Key, place)
		}
		counted.Placement = nil
		if !counted.EqualVT(fact) {
			rt.Fatalf("bucket-changes has %v, facts %v", counted, fact)
		}
		liked := decodeAs(t, e.Emissions[2].Value, &tidemarkv1.LikerChange{}).GetRelation()
		if at := reverse.Place(relation); !liked.Reverse.EqualVT(at) || e.Emissions[2].Key != topology.LikerKey(at, ev.AggregateKey) || e.Emissions[2].Topic != "tidemark.liker-changes" {
			rt.Fatalf("listed at %v under %q, not at %v", liked.Reverse, e.Emissions[2].Key, at)
		}
		liked.Reverse = nil
		if !liked.EqualVT(fact) {
			rt.Fatalf("liker-changes has %v, facts %v", liked, fact)
		}
	})
}

func drawEvent(rt *rapid.T) topology.Event {
	id := rapid.StringOfN(rapid.Rune(), 1, 60, topology.MaxIDBytes).Filter(func(s string) bool { return topology.CheckID(s) == nil })
	r := topology.Relation{Kind: rapid.SampledFrom(topology.Kinds()).Draw(rt, "kind"), User: id.Draw(rt, "user"), Target: id.Draw(rt, "target")}
	states := []topology.State{r.Kind.Initial(), r.Kind.Active()}
	e := topology.Event{
		EventID: "e-1", AggregateKey: r.Key(), Kind: r.Kind.String(), UserID: r.User, TargetID: r.Target,
		RelationVersion: rapid.Uint64Min(1).Draw(rt, "version"),
		AbsoluteState:   rapid.SampledFrom(states).Draw(rt, "state").String(),
		PreviousState:   rapid.SampledFrom(states).Draw(rt, "previous").String(),
		SourceShard:     rapid.IntRange(0, 3).Draw(rt, "shard"),
		StateChangedAt:  time.UnixMicro(rapid.Int64Range(1, maxMicros).Draw(rt, "changed")).UTC(),
	}
	if by := rapid.SampledFrom([]topology.Hidden{topology.Shown, topology.HiddenByRisk, topology.HiddenByPolicy}).Draw(rt, "hidden"); by != topology.Shown && e.AbsoluteState == r.Kind.Active().String() {
		e.Hidden, e.HiddenReason = by.String(), rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,63}`).Draw(rt, "reason")
	}
	return e
}

func checkChange(rt *rapid.T, c *tidemarkv1.RelationChange, ev topology.Event) {
	rt.Helper()
	switch {
	case c.EventId != ev.EventID, c.UserId != ev.UserID, c.TargetId != ev.TargetID, c.RelationVersion != ev.RelationVersion:
		rt.Fatalf("%v is not %+v", c, ev)
	case topology.Kind(c.Kind).String() != ev.Kind, topology.State(c.State).String() != ev.AbsoluteState, topology.State(c.PreviousState).String() != ev.PreviousState:
		rt.Fatalf("%v is not %+v", c, ev)
	case topology.Hidden(c.Hidden).String() != ev.Hidden, c.HiddenReason != ev.HiddenReason:
		rt.Fatalf("%v is not %+v", c, ev)
	case c.StateChangedAtUs != ev.StateChangedAt.UnixMicro(), int(c.Position.Shard) != ev.SourceShard, c.CdcOffset != 1000, c.Placement != nil:
		rt.Fatalf("%v is not %+v", c, ev)
	}
}

// underRace tells that the race detector runs, which empties pools at random.
var underRace bool

// A usual record takes the quick way and few allocations.
func TestUsualRecordsAreCheap(t *testing.T) {
	core, r := testCore(t), sampleRecord(t)
	if e := core.Apply(r); e.Slow || e.Outcome != Changed {
		t.Fatalf("%s, slow %v", e.Outcome, e.Slow)
	}
	if n := testing.AllocsPerRun(1000, func() { core.Apply(r) }); n > 10 && !underRace {
		t.Errorf("%v allocations for a record, at most 10 are due", n)
	}
	hidden := sampleEvent()
	hidden.Hidden, hidden.HiddenReason = "risk", "farm"
	if e := core.Apply(recordOf(t, envelopeOf(hidden.SourceShard, topology.AggregateRelation, hidden.AggregateKey, topology.TypeRelationChanged, jsonb(t, hidden)))); e.Slow || e.Outcome != Changed {
		t.Errorf("hidden: %s, slow %v", e.Outcome, e.Slow)
	}
	var env envelope
	var ev event
	if n := testing.AllocsPerRun(1000, func() {
		if !env.scan(r.Value) || !ev.scan(env.payload) {
			t.Error("not scanned")
		}
	}); n != 0 {
		t.Errorf("%v allocations for a scan", n)
	}
}

// What is set aside keeps its origin, whole up to the limit, and says nothing
// of its content in the detail.
func TestQuarantinedKeepsItsOrigin(t *testing.T) {
	core, r := testCore(t), sampleRecord(t)
	r.Key = "0003|" + r.Key
	r.Value = []byte(strings.Replace(string(r.Value), "V9001", "secret", 1) + strings.Repeat(" ", 70_000))
	em := core.Apply(r).Emissions[0]
	q := decodeAs(t, em.Value, &tidemarkv1.Quarantined{})
	if em.Key != "~"+r.Key {
		t.Errorf("key %q", em.Key)
	}
	if q.Topic != r.Topic || int(q.Partition) != r.Partition || q.Offset != r.Offset || q.FirstSeenUs != r.Timestamp.UnixMicro() || string(q.Key) != r.Key {
		t.Errorf("origin %v", q)
	}
	if !q.Truncated || string(q.Value) != string(r.Value[:topology.MaxQuarantinedValue]) {
		t.Errorf("truncated %v, %d bytes", q.Truncated, len(q.Value))
	}
	if strings.Contains(q.Detail, "secret") {
		t.Errorf("detail tells content: %q", q.Detail)
	}
}

func TestI15NewCoreRefusesForeignContracts(t *testing.T) {
	topo, err := topology.New(topology.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	reverse := topology.NewReverseGeneration(1, topo.Config.LikerPartitions, topo.Config.ReverseShards)
	if _, err := NewCore(topo, topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), 9), reverse); err == nil {
		t.Error("a manifest of 9 partitions was taken for 8")
	}
	reverse.Users.Modulus = 32
	_, err = NewCore(topo, topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), 8), reverse)
	if err == nil || !strings.Contains(err.Error(), "reverse generation 1: reverse shards is configured as 16") {
		t.Errorf("a reverse generation of 32 shards was taken for 16: %v", err)
	}
}
