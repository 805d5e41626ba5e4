package cases

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { testenv.Main(m) }

var (
	farm  = topology.Hiding{By: topology.HiddenByRisk, Reason: "device-farm"}
	rules = topology.Hiding{By: topology.HiddenByPolicy, Reason: "rules.25"}
)

func newDesk(t *testing.T) *Desk {
	t.Helper()
	urls := []string{testenv.Postgres(t), testenv.Postgres(t), testenv.Postgres(t)}
	for shard, url := range urls[:2] {
		if err := relations.Migrate(t.Context(), url, shard); err != nil {
			t.Fatal(err)
		}
	}
	if err := control.Migrate(t.Context(), urls[2]); err != nil {
		t.Fatal(err)
	}
	db, err := control.Open(t.Context(), urls[2])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	store, err := relations.Open(t.Context(), relations.Config{URLs: urls[:2], Map: topology.NewShardMap(1, 2), CommandTimeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return &Desk{Store: store, DB: db}
}

// set is a user's command on a video.
func (d *Desk) set(t *testing.T, id, user, video string, s topology.State, h topology.Hiding) {
	t.Helper()
	_, err := d.Store.Set(t.Context(), relations.Command{OperationID: id, Relation: like(user, video), Desired: s, Hiding: h})
	if err != nil {
		t.Fatal(err)
	}
}

func like(user, video string) topology.Relation {
	return topology.Relation{Kind: topology.Like, User: user, Target: video}
}

func (d *Desk) wantHidings(t *testing.T, want map[topology.Relation]topology.Hiding) {
	t.Helper()
	for r, h := range want {
		facts, err := d.Store.States(t.Context(), r.User, r.Kind, []string{r.Target})
		if err != nil || facts[0].Hiding != h {
			t.Errorf("%s likes %s hidden by %+v, %v; want %+v", r.User, r.Target, facts[0].Hiding, err, h)
		}
	}
}

func wantDone(t *testing.T, got Done, err error, want Done) {
	t.Helper()
	if err != nil || got != want {
		t.Errorf("done %+v, %v; want %+v", got, err, want)
	}
}

func ann(id string, h topology.Hiding) control.RiskCase {
	return control.RiskCase{ID: id, Who: "ann", Purpose: "ticket 4711", Hiding: h}
}

// An undo gives back what each relation had before the case, and leaves alone
// what changed since (J2).
func TestAnUndoGivesBackWhatWas(t *testing.T) {
	d := newDesk(t)
	d.set(t, "1", "u1", "V1", topology.Liked, topology.Hiding{})
	d.set(t, "2", "u1", "V2", topology.Liked, rules)
	d.set(t, "3", "u2", "V1", topology.Liked, farm)
	d.set(t, "4", "u2", "V2", topology.Disliked, topology.Hiding{})
	d.set(t, "5", "u3", "V1", topology.Liked, topology.Hiding{})
	all := []topology.Relation{like("u1", "V1"), like("u1", "V2"), like("u2", "V1"), like("u2", "V2"), like("u3", "V1"), like("u4", "V1")}
	want := Done{Relations: 6, Applied: 3, Unchanged: 1, Rejected: 2}
	done, err := d.Preview(t.Context(), farm, These(all))
	wantDone(t, done, err, want)
	d.wantHidings(t, map[topology.Relation]topology.Hiding{all[0]: {}, all[1]: rules})
	done, err = d.Run(t.Context(), ann("c", farm), These(all))
	wantDone(t, done, err, want)
	d.wantHidings(t, map[topology.Relation]topology.Hiding{all[0]: farm, all[1]: farm, all[2]: farm, all[3]: {}, all[4]: farm, all[5]: {}})

	// Meanwhile u3 likes anew, and a rule hides that for the same reason.
	d.set(t, "6", "u3", "V1", topology.Unliked, topology.Hiding{})
	d.set(t, "7", "u3", "V1", topology.Liked, farm)
	want = Done{Relations: 3, Applied: 2, Skipped: 1}
	done, err = d.PreviewUndo(t.Context(), "c")
	wantDone(t, done, err, want)
	done, err = d.Undo(t.Context(), "c", ann("", topology.Hiding{}))
	wantDone(t, done, err, want)
	d.wantHidings(t, map[topology.Relation]topology.Hiding{all[0]: {}, all[1]: rules, all[2]: farm, all[4]: farm})

	if _, err := d.Run(t.Context(), ann("c", farm), These(all)); err == nil {
		t.Error("a case that was undone ran again")
	}
	if _, err := d.Undo(t.Context(), "none", ann("", topology.Hiding{})); !errors.Is(err, control.ErrRiskCaseUnknown) {
		t.Errorf("an undo of nothing: %v", err)
	}
	// The undo of the undo.
	done, err = d.Undo(t.Context(), "undo-c", ann("", topology.Hiding{}))
	wantDone(t, done, err, Done{Relations: 2, Applied: 2})
	d.wantHidings(t, map[topology.Relation]topology.Hiding{all[0]: farm, all[1]: farm})
}

// A case that was interrupted between hiding and noting goes on under its id, and
// its undo still knows what was before.
func TestACaseGoesOnWhereItWasInterrupted(t *testing.T) {
	d := newDesk(t)
	const likes = pageSize + 200
	for i := range likes {
		d.set(t, fmt.Sprint(i), "u1", fmt.Sprint("V", i), topology.Liked, topology.Hiding{})
	}
	ctx, stop := context.WithCancel(t.Context())
	d.Progress = func(Done) { stop() }
	done, err := d.Run(ctx, ann("c", farm), d.AllOf("u1", topology.Like))
	if !errors.Is(err, context.Canceled) || done.Applied != pageSize {
		t.Fatalf("interrupted: %+v, %v", done, err)
	}
	// One more was hidden, and nobody noted that.
	d.Progress = nil
	if err := d.DB.PlanRiskCase(t.Context(), "c", []control.CaseRelation{{Relation: like("u1", "V0"), WasVersion: 1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Store.SetHiding(t.Context(), relations.HidingCommand{OperationID: "c", Relation: like("u1", "V0"), Hiding: farm}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Run(t.Context(), ann("c", rules), d.AllOf("u1", topology.Like)); !errors.Is(err, control.ErrRiskCaseReused) {
		t.Errorf("the id of another case: %v", err)
	}
	done, err = d.Run(t.Context(), ann("c", farm), d.AllOf("u1", topology.Like))
	wantDone(t, done, err, Done{Relations: likes, Applied: likes})
	if c, err := d.DB.RiskCase(t.Context(), "c"); err != nil || c.EndedAt == nil || c.Relations != likes || c.Applied != likes {
		t.Errorf("the case is %+v, %v", c, err)
	}
	done, err = d.Undo(t.Context(), "c", ann("", topology.Hiding{}))
	wantDone(t, done, err, Done{Relations: likes, Applied: likes})
	d.wantHidings(t, map[topology.Relation]topology.Hiding{like("u1", "V0"): {}, like("u1", "V999"): {}})
	lines, err := d.DB.Entries(t.Context(), "risk:c", 10)
	if err != nil || len(lines) != 3 || lines[0].Action != "risk.ended" || lines[1].Action != "risk.resumed" || lines[2].Action != "risk.begun" || lines[2].Reason != "ticket 4711" {
		t.Errorf("the audit has %+v, %v", lines, err)
	}
}
