package gaps

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/topology"
)

func TestChangesOfAFeed(t *testing.T) {
	whole := evidence.Feed{SlotExists: true, Transactions: 10, Publication: "1 700"}
	for name, c := range map[string]struct {
		was  *evidence.Feed
		now  evidence.Feed
		want []control.Cause
	}{
		"never looked":       {nil, evidence.Feed{}, nil},
		"goes on":            {&whole, evidence.Feed{SlotExists: true, Transactions: 12, Publication: "1 700"}, nil},
		"statistics unknown": {&whole, evidence.Feed{SlotExists: true, Transactions: -1, Publication: "1 700"}, nil},
		"slot gone":          {&whole, evidence.Feed{Transactions: -1, Publication: "1 700"}, []control.Cause{control.CauseSlotRecreated}},
		"slot back":          {&evidence.Feed{Transactions: -1, Publication: "1 700"}, whole, []control.Cause{control.CauseSlotRecreated}},
		"slot anew":          {&whole, evidence.Feed{SlotExists: true, Transactions: 3, Publication: "1 700"}, []control.Cause{control.CauseSlotRecreated}},
		"publication":        {&whole, evidence.Feed{SlotExists: true, Transactions: 10, Publication: "1 701"}, []control.Cause{control.CausePublication}},
		"both":               {&whole, evidence.Feed{Transactions: -1}, []control.Cause{control.CauseSlotRecreated, control.CausePublication}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []control.Cause
			for _, e := range changes(c.was, c.now) {
				got = append(got, e.Cause)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// Every id goes to the seal that settled it, or to the one that told.
func TestIdsArePartedBySeals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var seals []evidence.Seal
		at := int64(1)
		for n := uint64(5); n < 5+uint64(rapid.IntRange(0, 6).Draw(t, "seals")); n++ {
			to := at + int64(rapid.IntRange(0, 20).Draw(t, "length"))
			seals = append(seals, evidence.Seal{Seal: n, FromID: at, ToID: to})
			at = to + 1
		}
		ids := idset.Of(rapid.SliceOfN(rapid.Int64Range(1, 150), 0, 40).Draw(t, "ids")...)
		var all idset.Ranges
		for _, g := range bySeal(99, ids, seals) {
			i := slices.IndexFunc(seals, func(s evidence.Seal) bool { return s.Seal == g.Seal })
			for _, id := range g.Missing.Ids(1000) {
				inside := i >= 0 && seals[i].FromID <= id && id <= seals[i].ToID
				beyond := i < 0 && g.Seal == 99 && id >= at
				if !inside && !beyond {
					t.Fatalf("id %d went to seal %d of %v", id, g.Seal, seals)
				}
			}
			if g.Rows != g.Missing.Count() || !g.Exact || len(g.Missing) == 0 {
				t.Fatalf("gap %+v", g)
			}
			all = all.Union(g.Missing)
		}
		if !slices.Equal(all, ids) {
			t.Fatalf("of %v came %v", ids, all)
		}
	})
}

func testWriter() writer {
	return writer{
		topic: "tidemark.cdc", name: "tidemark", mark: "2:4711", shard: 2, feed: evidence.Feed{Database: "shard2", LSN: 99},
		now: func() time.Time { return time.UnixMicro(1_700_000_000_000_001) },
	}
}

func decodeStrictly(t *testing.T, b []byte, v any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
}

func TestAHealingRecordIsTheRowAndSaysSo(t *testing.T) {
	row := topology.OutboxRow{ID: 77, AggregateType: "relation", AggregateID: "like:u<7>:V1", Type: "RelationChanged", Payload: `{"a": "<&>"}`, SourceShard: 2, CreatedAt: "2026-08-19T10:20:30.123456Z"}
	r, err := testWriter().row(row)
	if err != nil {
		t.Fatal(err)
	}
	var e topology.Envelope
	decodeStrictly(t, r.Value, &e)
	if string(r.Key) != row.AggregateID || r.Partition != 2 || r.Topic != "tidemark.cdc" || len(r.Headers) != 1 || r.Headers[0].Key != HealHeader || string(r.Headers[0].Value) != "2:4711" {
		t.Errorf("record %+v", r)
	}
	if *e.After != row || e.Before != nil || e.Op != "r" || e.Source.Snapshot != HealSnapshot || e.Source.Sequence != `["99","99"]` || e.Source.LSN != 99 || e.Source.TsUs != 1787134830123456 {
		t.Errorf("envelope %+v", e)
	}
	if bytes.Contains(r.Value, []byte(`\u003c`)) {
		t.Error("escaped like HTML")
	}
	row.CreatedAt = "yesterday"
	if _, err := testWriter().row(row); err == nil {
		t.Error("a row without a time is taken")
	}
}

func TestARebuiltRowIsTheFactAndTheSameEachTime(t *testing.T) {
	f := evidence.Fact{Relation: topology.Relation{Kind: topology.Follow, User: "a:b", Target: "c"}, State: topology.Unfollowed, Version: 6, StateChangedAt: time.UnixMicro(1_700_000_000_000_000)}
	r, err := testWriter().fact(31, f)
	if err != nil {
		t.Fatal(err)
	}
	var e topology.Envelope
	decodeStrictly(t, r.Value, &e)
	var event topology.Event
	decodeStrictly(t, []byte(e.After.Payload), &event)
	if e.After.ID != 31 || string(r.Key) != "follow:a%3Ab:c" || event.AggregateKey != string(r.Key) || event.RelationVersion != 6 || event.AbsoluteState != "UNFOLLOWED" || event.UserID != "a:b" || event.SourceShard != 2 || event.EventID == "" {
		t.Errorf("row %+v, event %+v", e.After, event)
	}
	again, _ := testWriter().fact(31, f)
	if !bytes.Equal(r.Value, again.Value) {
		t.Error("the second record differs")
	}
	f.Version++
	if other, _ := testWriter().fact(31, f); bytes.Contains(other.Value, []byte(event.EventID)) {
		t.Error("another version has the same event id")
	}
}
