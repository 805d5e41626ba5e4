package relations

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/topology"
)

var (
	farm    = topology.Hiding{By: topology.HiddenByRisk, Reason: "device-farm"}
	rules25 = topology.Hiding{By: topology.HiddenByPolicy, Reason: "rules.25"}
)

func mustHide(t testing.TB, s *Store, id string, r topology.Relation, h topology.Hiding) Result {
	t.Helper()
	res, err := s.SetHiding(context.Background(), HidingCommand{OperationID: id, Relation: r, Hiding: h})
	if err != nil {
		t.Fatalf("hiding %s: %v", id, err)
	}
	return res
}

func wantHiding(t testing.TB, f Fact, h topology.Hiding) {
	t.Helper()
	if f.Hiding != h {
		t.Errorf("version %d is hidden by %q because of %q, want %q and %q", f.Version, f.Hiding.By, f.Hiding.Reason, h.By, h.Reason)
	}
}

// A command's hiding goes into the row and the event of what it begins, and
// nothing else has one.
func TestC5ACommandBeginsAHiddenRelation(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	first := mustSet(t, s, hiddenCommand("op1", v9001, farm))
	wantResult(t, first, Applied, topology.Liked, 1)
	wantHiding(t, first.Current, farm)
	// The same operation with another verdict is the same operation.
	again := mustSet(t, s, hiddenCommand("op1", v9001, rules25))
	if !again.Replayed || again.Operation != first.Operation {
		t.Errorf("the retry is %+v, the first answer was %+v", again, first)
	}
	wantHiding(t, again.Current, farm)
	// What changes nothing changes no hiding.
	same := mustSet(t, s, hiddenCommand("op2", v9001, topology.Hiding{}))
	wantResult(t, same, Unchanged, topology.Liked, 1)
	wantHiding(t, same.Current, farm)
	for i, tc := range []struct {
		state topology.State
		want  topology.Hiding
	}{{topology.Disliked, topology.Hiding{}}, {topology.Liked, farm}, {topology.Unliked, topology.Hiding{}}, {topology.Liked, farm}} {
		cmd := hiddenCommand(fmt.Sprintf("next%d", i), v9001, farm)
		cmd.Desired = tc.state
		wantHiding(t, mustSet(t, s, cmd).Current, tc.want)
	}
	op, err := s.Operation(t.Context(), v9001.User, "op1")
	if err != nil {
		t.Fatal(err)
	}
	wantHiding(t, op.Current, farm)
	states, err := s.States(t.Context(), v9001.User, topology.Like, []string{v9001.Target})
	if err != nil {
		t.Fatal(err)
	}
	wantHiding(t, states[0], farm)
	rows := outbox(t, urls[0])
	if e := rows[0].event; e.Hidden != "risk" || e.HiddenReason != "device-farm" || rows[1].event.Hidden != "" {
		t.Errorf("events %+v, %+v", e, rows[1].event)
	}
	checkHistory(t, s, urls)
}

func TestJ2AnOperatorHidesAndShowsWhatIsThere(t *testing.T) {
	urls := migrated(t, 2)
	s := openAt(t, urls, nil)
	liked := mustSet(t, s, command("op1", v9001, topology.Liked))
	for _, step := range []struct {
		id       string
		hiding   topology.Hiding
		outcome  Outcome
		version  uint64
		replayed bool
		now      topology.Hiding
	}{
		{"case-1", farm, Applied, 2, false, farm},
		{"case-1", farm, Applied, 2, true, farm},        // the answer was lost
		{"case-2", farm, Unchanged, 2, false, farm},     // hidden so already
		{"case-3", rules25, Applied, 3, false, rules25}, // by another and for another reason
		{"undo-3", topology.Hiding{}, Applied, 4, false, topology.Hiding{}},
		{"undo-4", topology.Hiding{}, Unchanged, 4, false, topology.Hiding{}},
		{"case-3", rules25, Applied, 3, true, topology.Hiding{}}, // a late retry hides nothing again
	} {
		res := mustHide(t, s, step.id, v9001, step.hiding)
		wantResult(t, res, step.outcome, topology.Liked, step.version)
		wantHiding(t, res.Current, step.now)
		if res.Replayed != step.replayed {
			t.Errorf("%s: replayed %v", step.id, res.Replayed)
		}
		if !res.Current.StateChangedAt.Equal(liked.Current.StateChangedAt) {
			t.Errorf("%s: the like is dated %v, was %v: lists are ordered by it", step.id, res.Current.StateChangedAt, liked.Current.StateChangedAt)
		}
	}
	stale := uint64(3) // who decides has not seen version 4
	late, err := s.SetHiding(t.Context(), HidingCommand{OperationID: "case-4", Relation: v9001, Hiding: farm, BaseVersion: &stale})
	if err != nil {
		t.Fatal(err)
	}
	wantResult(t, late, Rejected, topology.Liked, 4)
	wantHiding(t, late.Current, topology.Hiding{})
	if _, err := s.SetHiding(t.Context(), HidingCommand{OperationID: "case-1", Relation: v9001, Hiding: rules25}); !errors.Is(err, ErrOperationConflict) {
		t.Errorf("another hiding under the id of one: %v", err)
	}
	// An operator's id is none of the user's, also when both chose the same.
	if _, err := s.Operation(t.Context(), v9001.User, "case-1"); !errors.Is(err, ErrOperationNotFound) {
		t.Errorf("the user's operation case-1: %v", err)
	}
	wantResult(t, mustSet(t, s, command("case-1", v9001, topology.Unliked)), Applied, topology.Unliked, 5)
	wantResult(t, mustHide(t, s, "case-5", v9001, farm), Rejected, topology.Unliked, 5)
	never := relation(topology.Follow, "u8", "w")
	wantResult(t, mustHide(t, s, "case-5", never, farm), Rejected, topology.Unfollowed, 0) // one case, many relations
	checkHistory(t, s, urls)
}

func TestSetHidingRefusesByField(t *testing.T) {
	s := open(t, 1, nil)
	for name, h := range map[string]HidingCommand{
		"no operation": {Relation: v9001, Hiding: farm},
		"kind":         {OperationID: "a", Relation: relation(9, "u", "v"), Hiding: farm},
		"no reason":    {OperationID: "a", Relation: v9001, Hiding: topology.Hiding{By: topology.HiddenByPolicy}},
		"by nobody":    {OperationID: "a", Relation: v9001, Hiding: topology.Hiding{Reason: "x"}},
		"unknown":      {OperationID: "a", Relation: v9001, Hiding: topology.Hiding{By: 3, Reason: "x"}},
	} {
		if _, err := s.SetHiding(t.Context(), h); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Hidings and commands of one relation, from two stores at once: every version
// comes once, and the last one is the fact.
func TestI1HidingsBesideCommands(t *testing.T) {
	urls := migrated(t, 1)
	stores := []*Store{openAt(t, urls, nil), openAt(t, urls, func(c *Config) { c.BatchLimit = 3 })}
	var group errgroup.Group
	for w := range 16 {
		group.Go(func() error {
			for i := range 10 {
				id, s := fmt.Sprintf("op-%d-%d", w, i), stores[w%2]
				var err error
				switch (w + i) % 4 {
				case 0:
					_, err = s.SetHiding(context.Background(), HidingCommand{OperationID: id, Relation: v9001, Hiding: []topology.Hiding{farm, rules25, {}}[i%3]})
				case 1:
					_, err = s.Set(context.Background(), command(id, v9001, topology.Unliked))
				default:
					_, err = s.Set(context.Background(), hiddenCommand(id, v9001, []topology.Hiding{{}, farm}[i%2]))
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	checkHistory(t, stores[0], urls)
}

// A repair writes a hidden relation as hidden, and finds it by when it was
// hidden.
func TestRepairsKeepAHiding(t *testing.T) {
	urls := migrated(t, 1)
	s, o := openAt(t, urls, nil), openOutbox(t, urls)
	past := time.Now().Add(-time.Hour)
	s.shards[0].clock = func(now time.Time) time.Time { return now.Add(-24 * time.Hour) }
	mustSet(t, s, command("op1", v9001, topology.Liked))
	s.shards[0].clock = nil
	mustHide(t, s, "case-1", v9001, farm)
	if err := o.Supersede(t.Context(), 0, v9001, 5, "gap:e"); err != nil {
		t.Fatal(err)
	}
	f, _, err := o.Fact(t.Context(), 0, v9001)
	if err != nil || f.Version != 6 || f.Hiding != farm {
		t.Errorf("superseded: %+v, %v", f, err)
	}
	if e := outbox(t, urls[0])[2].event; e.Hidden != "risk" || e.HiddenReason != farm.Reason || e.RelationVersion != 6 {
		t.Errorf("the event of the repair is %+v", e)
	}
	var changed []evidence.Fact
	err = o.FactsChanged(t.Context(), 0, past, time.Now().Add(time.Hour), func(f evidence.Fact) error {
		changed = append(changed, f)
		return nil
	})
	if err != nil || len(changed) != 1 || changed[0] != f {
		t.Errorf("changed lately: %+v, %v", changed, err)
	}
}
