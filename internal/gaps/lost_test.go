package gaps

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/topology"
)

// shardOf answers what a comparison asks: the events of its rows, from id 1 on,
// and which were deleted by hand.
type shardOf struct {
	Outbox
	events  []string // "": no relation row
	deleted []int64
}

func (s shardOf) Events(_ context.Context, _ int, from, to int64, visit func(int64, string) error) (int64, error) {
	for i, e := range s.events {
		if id := int64(i + 1); e != "" && id >= from && id <= to {
			if err := visit(id, e); err != nil {
				return 0, err
			}
		}
	}
	return 1, nil
}

func (s shardOf) Deleted(context.Context, int, idset.Ranges) (out []evidence.Deleted, err error) {
	for _, id := range s.deleted {
		out = append(out, evidence.Deleted{ID: id, AggregateType: topology.AggregateRelation})
	}
	return out, nil
}

func facts(events ...string) (out []control.LostFact) {
	for _, e := range events {
		var f control.LostFact
		if _, err := fmt.Sscanf(e, "%d%s", &f.OutboxID, &f.EventID); err != nil {
			panic(err)
		}
		f.Relation, f.Version = "like:u:"+f.EventID, 1
		out = append(out, f)
	}
	return out
}

func TestWhatAShardHasLostIsFoundEventByEvent(t *testing.T) {
	long := []string{"", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} // ids 1..11
	came := facts("2a", "3b", "4c", "5d", "6e", "7f", "8g", "9h", "10i", "11j")
	for name, c := range map[string]struct {
		events  []string
		deleted []int64
		passed  []control.LostFact
		from    int64
		missing idset.Ranges
		lost    []string
		again   bool // more must be read
	}{
		"nothing":               {events: long, passed: came, from: 12},
		"id used again":         {events: []string{"", "a", "b", "c", "d", "e", "f", "g", "h", "i", "new"}, passed: came, from: 12, missing: idset.Of(11), lost: []string{"j"}},
		"id not used again":     {events: append(slices.Clone(long[:10]), "", "new"), passed: came, from: 12, missing: idset.Of(12), lost: []string{"j"}},
		"deleted by hand":       {events: []string{"", "a", "b", "c", "d", "e", "f", "g", "h", "", "j"}, deleted: []int64{10}, passed: came, from: 12},
		"begins too late":       {events: []string{"", "new", "b", "c", "d", "e", "f", "g", "h", "i", "j"}, passed: came, from: 12, again: true},
		"begins behind from":    {events: long, passed: came, from: 2, again: true},
		"older than the outbox": {events: long, passed: append(facts("0z"), came...), from: 12},
	} {
		t.Run(name, func(t *testing.T) {
			k := &Keeper{cfg: Config{Outbox: shardOf{events: c.events, deleted: c.deleted}}}
			got, agreed, err := k.against(t.Context(), 0, c.passed, c.from, 20, false)
			if err != nil || agreed == c.again {
				t.Fatalf("agreed %v, %v", agreed, err)
			}
			if c.again {
				return
			}
			var lost []string
			for _, l := range got.lost {
				lost = append(lost, l.EventID)
			}
			if !slices.Equal(lost, c.lost) || !slices.Equal(got.missing, c.missing) {
				t.Errorf("lost %v, missing %v; want %v, %v", lost, got.missing, c.lost, c.missing)
			}
		})
	}
}

func TestWhatHealingRebuiltIsNotLost(t *testing.T) {
	f := control.LostFact{OutboxID: 3, Relation: "like:u:V", Version: 4}
	f.EventID = rebuiltEvent(1, f.Relation, f.Version)
	if !rebuilt(1, f) || rebuilt(2, f) {
		t.Error("a rebuilt event is not known again, or of another shard, too")
	}
}
