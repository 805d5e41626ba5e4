package control

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/internal/idset"
)

func sampleGap(ids ...int64) Gap {
	return Gap{Shard: 2, Seal: 7, Missing: idset.Of(ids...), Rows: int64(len(ids)), Exact: true, Cause: CauseSlotRecreated, FirstSeen: time.Unix(1_700_000_000, 0)}
}

func raise(t *testing.T, db *DB, g Gap, want bool) {
	t.Helper()
	if raised, err := db.RaiseGap(t.Context(), g, "intake"); err != nil || raised != want {
		t.Fatalf("raising %v: %v, %v; want %v", g.Missing, raised, err, want)
	}
}

func onlyGap(t *testing.T, db *DB) Gap {
	t.Helper()
	all, err := db.Gaps(t.Context(), GapFilter{})
	if err != nil || len(all) != 1 {
		t.Fatalf("gaps %v, %v", all, err)
	}
	return all[0]
}

// A gap that is told again changes nothing, whatever its state; new ids open
// it again.
func TestRaisingAGapIsIdempotent(t *testing.T) {
	db := openEmpty(t)
	raise(t, db, sampleGap(5, 6, 9), true)
	raise(t, db, sampleGap(5, 6, 9), false)
	raise(t, db, sampleGap(6), false)
	g := onlyGap(t, db)
	if g.State != GapOpen || g.Rows != 3 || !g.Exact || g.Cause != CauseSlotRecreated || !g.FirstSeen.Equal(time.Unix(1_700_000_000, 0)) || !slices.Equal(g.Missing, idset.Of(5, 6, 9)) {
		t.Fatalf("gap %+v", g)
	}
	if err := db.MarkSent(t.Context(), g, 100, 102, "ann", "from the outbox"); err != nil {
		t.Fatal(err)
	}
	if err := db.MarkHealed(t.Context(), onlyGap(t, db), "ann"); err != nil {
		t.Fatal(err)
	}
	raise(t, db, sampleGap(5, 6, 9), false)
	if g = onlyGap(t, db); g.State != GapHealed || g.HealedBy != "ann" || g.HealedAt == nil || g.Note != "from the outbox" || *g.SentLast != 102 {
		t.Fatalf("gap %+v", g)
	}
	raise(t, db, sampleGap(9, 11), true)
	if g = onlyGap(t, db); g.State != GapOpen || g.Rows != 4 || g.HealedAt != nil || g.SentFirst != nil || !slices.Equal(g.Missing, idset.Of(5, 6, 9, 11)) {
		t.Fatalf("gap %+v", g)
	}
	entries, err := db.Entries(t.Context(), g.Subject(), 10)
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, e := range entries {
		actions = append(actions, e.Who+" "+e.Action)
	}
	if want := []string{"intake gap.raised", "ann gap.healed", "ann gap.sent", "intake gap.raised"}; !slices.Equal(actions, want) {
		t.Errorf("audit %v, want %v", actions, want)
	}
}

// A shard that went back gives seals and ids of a healed gap to other rows. What
// is told of them then opens the gap again; the same told once more, as an
// intake does that reads its input again, does not.
func TestASourceThatWentBackOpensAHealedGapAgain(t *testing.T) {
	db := openEmpty(t)
	raise(t, db, sampleGap(5, 6, 9), true)
	g := onlyGap(t, db)
	if err := db.MarkSent(t.Context(), g, 100, 102, "ann", ""); err != nil {
		t.Fatal(err)
	}
	back := sampleGap(6)
	back.Cause, back.FirstSeen = CauseSourceWentBack, g.FirstSeen.Add(time.Minute)
	for _, state := range []GapState{GapHealing, GapHealed} {
		if g = onlyGap(t, db); g.State != state {
			t.Fatalf("gap %+v, want it %s", g, state)
		}
		raise(t, db, back, true)
		if g = onlyGap(t, db); g.State != GapOpen || g.Cause != CauseSourceWentBack || g.HealedAt != nil || g.SentLast != nil || !slices.Equal(g.Missing, idset.Of(5, 6, 9)) || !g.FirstSeen.Equal(back.FirstSeen) {
			t.Fatalf("gap %+v", g)
		}
		if err := db.MarkHealed(t.Context(), g, "ann"); err != nil {
			t.Fatal(err)
		}
		raise(t, db, back, false)
		back.FirstSeen = back.FirstSeen.Add(time.Minute)
	}
}

func TestAStaleReadingOfAGapChangesNothing(t *testing.T) {
	db := openEmpty(t)
	raise(t, db, sampleGap(5), true)
	stale := onlyGap(t, db)
	raise(t, db, sampleGap(6), true)
	for name, err := range map[string]error{
		"sent":   db.MarkSent(t.Context(), stale, 1, 1, "ann", ""),
		"healed": db.MarkHealed(t.Context(), stale, "ann"),
		"reopen": db.Reopen(t.Context(), stale, "ann", "lost again"),
	} {
		if !errors.Is(err, ErrGapChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if g := onlyGap(t, db); g.State != GapOpen {
		t.Errorf("gap %+v", g)
	}
}

func TestGapsAreFiltered(t *testing.T) {
	db := openEmpty(t)
	for shard := range 3 {
		g := sampleGap(int64(shard + 1))
		g.Shard = shard
		raise(t, db, g, true)
	}
	one := 1
	got, err := db.Gaps(t.Context(), GapFilter{Shard: &one, States: []GapState{GapOpen, GapHealing}})
	if err != nil || len(got) != 1 || got[0].Shard != 1 {
		t.Fatalf("gaps of shard 1: %v, %v", got, err)
	}
	if got, err = db.Gaps(t.Context(), GapFilter{States: []GapState{GapHealed}}); err != nil || len(got) != 0 {
		t.Fatalf("healed gaps: %v, %v", got, err)
	}
}

func TestSourceIsRemembered(t *testing.T) {
	db := openEmpty(t)
	s, err := db.Source(t.Context(), 1)
	if err != nil || s.VerifiedSeal != 0 || s.Feed != nil {
		t.Fatalf("before anything: %+v, %v", s, err)
	}
	feed := evidence.Feed{Database: "d", LSN: 7, SlotExists: true, Transactions: 9, Publication: "1 2"}
	if err := db.SetFeed(t.Context(), 1, feed, nil); err != nil {
		t.Fatal(err)
	}
	if err := db.SetVerified(t.Context(), Source{Shard: 1, VerifiedSeal: 4, SettledID: 40, CDCOffset: 44}); err != nil {
		t.Fatal(err)
	}
	if err := db.SetFeed(t.Context(), 1, feed, []FeedEvent{{Cause: CauseSlotRecreated, Detail: "it was gone"}}); err != nil {
		t.Fatal(err)
	}
	s, err = db.Source(t.Context(), 1)
	if err != nil || s.VerifiedSeal != 4 || s.SettledID != 40 || s.CDCOffset != 44 || s.Feed == nil || *s.Feed != feed {
		t.Fatalf("%+v, %v", s, err)
	}
	events, err := db.FeedEvents(t.Context(), 1, s.VerifiedAt)
	if err != nil || len(events) != 1 || events[0].Cause != CauseSlotRecreated || events[0].Detail != "it was gone" {
		t.Fatalf("events %v, %v", events, err)
	}
}

func TestTheAuditIsImmutable(t *testing.T) {
	db := openEmpty(t)
	if err := db.Audit(t.Context(), Entry{Who: "ann", Action: "test", Subject: "s", Reason: "r", Detail: map[string]any{"n": 1.0}}); err != nil {
		t.Fatal(err)
	}
	if e, err := db.Entries(t.Context(), "", 10); err != nil || len(e) != 1 || e[0].Detail["n"] != 1.0 || e[0].Reason != "r" {
		t.Fatalf("entries %v, %v", e, err)
	}
	for _, sql := range []string{"UPDATE audit SET who = 'bob'", "DELETE FROM audit"} {
		var pg *pgconn.PgError
		if _, err := db.pool.Exec(t.Context(), sql); !errors.As(err, &pg) || pg.Code != "55000" {
			t.Errorf("%s: %v", sql, err)
		}
	}
	if err := db.Audit(t.Context(), Entry{Action: "test"}); err == nil {
		t.Error("an entry without a name is taken")
	}
}
