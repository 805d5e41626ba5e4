package relations

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func openOutbox(t *testing.T, urls []string) *Outbox {
	t.Helper()
	o, err := OpenOutbox(urls)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.Close)
	return o
}

var everyID = idset.Ranges{{From: 1, To: 1 << 40}}

func TestOutboxTellsWhichRowsThereAre(t *testing.T) {
	urls := migrated(t, 1)
	s, o := openAt(t, urls, nil), openOutbox(t, urls)
	for n := range 5 {
		mustSet(t, s, command(fmt.Sprint("op", n), relation(topology.Like, "u", fmt.Sprint("V", n)), topology.Liked))
	}
	b, err := s.Barrier(t.Context()) // a seal's row
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
	rows := outbox(t, urls[0])
	found, err := o.RelationIDs(t.Context(), 0, everyID)
	if err != nil || found.Count() != 5 || found.Contains(b.Shards[0].OutboxID) {
		t.Fatalf("relation rows %v, %v", found, err)
	}
	all, err := o.PresentIDs(t.Context(), 0, everyID)
	if err != nil || all.Count() != 6 {
		t.Fatalf("rows %v, %v", all, err)
	}
	asked := idset.Of(rows[1].id, rows[3].id, 999)
	if found, err = o.RelationIDs(t.Context(), 0, asked); err != nil || !slices.Equal(found, idset.Of(rows[1].id, rows[3].id)) {
		t.Fatalf("of %v there are %v, %v", asked, found, err)
	}
	var keys []string
	err = o.Rows(t.Context(), 0, asked, func(r topology.OutboxRow) error {
		if _, err := time.Parse(time.RFC3339Nano, r.CreatedAt); err != nil || r.SourceShard != 0 || r.Type != topology.TypeRelationChanged {
			t.Errorf("row %+v", r)
		}
		keys = append(keys, r.AggregateID)
		return nil
	})
	if err != nil || !slices.Equal(keys, []string{rows[1].key, rows[3].key}) {
		t.Fatalf("rows %v, %v", keys, err)
	}
	seals, err := o.Seals(t.Context(), 0, rows[2].id, rows[2].id)
	if err != nil || len(seals) != 1 || seals[0].Seal != 1 || seals[0].FromID != 1 || seals[0].ToID != b.Shards[0].OutboxID {
		t.Fatalf("seals %v, %v", seals, err)
	}
	if f, ok, err := o.Fact(t.Context(), 0, relation(topology.Like, "u", "V2")); err != nil || !ok || f.Version != 1 || f.State != topology.Liked {
		t.Fatalf("fact %v, %v, %v", f, ok, err)
	}
	if _, ok, err := o.Fact(t.Context(), 0, relation(topology.Like, "u", "none")); err != nil || ok {
		t.Fatalf("a fact that never was: %v, %v", ok, err)
	}
}

// A row that someone deletes by hand leaves its id and key, in partitions that
// were there before the trail and in those made later.
func TestDeletedRowsLeaveATrail(t *testing.T) {
	urls := migrated(t, 1)
	s, o := openAt(t, urls, nil), openOutbox(t, urls)
	if err := s.EnsurePartitions(t.Context(), time.Now().Add(9*day)); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		mustSet(t, s, command(fmt.Sprint("op", n), relation(topology.Like, "u", fmt.Sprint("V", n)), topology.Liked))
	}
	rows := outbox(t, urls[0])
	db := dial(t, urls[0])
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("DELETE FROM outbox WHERE id = $1", rows[1].id)
	exec(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
		VALUES ('relation', 'like:u:later', 'RelationChanged', '{}', 0, now() + interval '8 days')`)
	exec("DELETE FROM outbox WHERE aggregateid = 'like:u:later'")
	got, err := o.Deleted(t.Context(), 0, everyID)
	if err != nil || len(got) != 2 || got[0].ID != rows[1].id || got[0].AggregateID != rows[1].key || got[0].AggregateType != topology.AggregateRelation || got[0].DeletedBy == "" || got[0].DeletedAt.IsZero() {
		t.Fatalf("trail %+v, %v", got, err)
	}
	for _, upTo := range []int64{rows[1].id - 1, rows[1].id} {
		if got, err = o.UnnamedDeletions(t.Context(), 0, upTo); err != nil || len(got) != int(upTo-rows[1].id+1) {
			t.Fatalf("unnamed up to %d: %+v, %v", upTo, got, err)
		}
	}
	if err := o.NameDeletions(t.Context(), 0, idset.Of(rows[1].id)); err != nil {
		t.Fatal(err)
	}
	if got, err = o.UnnamedDeletions(t.Context(), 0, rows[1].id); err != nil || len(got) != 0 {
		t.Fatalf("unnamed: %+v, %v", got, err)
	}
	var facts []evidence.Fact
	err = o.FactsChanged(t.Context(), 0, rows[1].event.StateChangedAt, rows[1].event.StateChangedAt, func(f evidence.Fact) error {
		facts = append(facts, f)
		return nil
	})
	if err != nil || len(facts) != 1 || facts[0].Relation.Key() != rows[1].key {
		t.Fatalf("facts of the time %v, %v", facts, err)
	}
}

func TestOutboxHasTheProofs(t *testing.T) {
	urls := migrated(t, 1)
	s, o := openAt(t, urls, nil), openOutbox(t, urls)
	mustSet(t, s, command("op", relation(topology.Like, "u", "V"), topology.Liked))
	stop := startSealer(t, urls[0], nil)
	testenv.Eventually(t, 20*time.Second, func() error {
		if _, proofs := seals(t, urls[0]); len(proofs) < 4 {
			return fmt.Errorf("%d proofs", len(proofs))
		}
		return nil
	})
	stop()
	_, want := seals(t, urls[0])
	got, err := o.Proofs(t.Context(), 0, 0, 2, 3)
	if err != nil || !slices.Equal(got, want[1:3]) {
		t.Errorf("proofs %v, %v; want %v", got, err, want[1:3])
	}
}

// What was done to the slot and the publication shows.
func TestFeedShowsWhatWasDoneToIt(t *testing.T) {
	urls := migrated(t, 1)
	o, db := openOutbox(t, urls), dial(t, urls[0])
	exec := func(sql string) {
		t.Helper()
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	look := func() evidence.Feed {
		t.Helper()
		f, err := o.Feed(t.Context(), 0, "feed_shows", Publication)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	before := look()
	if before.SlotExists || before.Publication == "" || before.LSN == 0 || before.Database == "" || before.Transactions != -1 {
		t.Fatalf("without a slot: %+v", before)
	}
	exec("SELECT pg_create_logical_replication_slot('feed_shows', 'pgoutput')")
	with := look()
	if !with.SlotExists || with.Confirmed == 0 || with.Publication != before.Publication {
		t.Fatalf("with a slot: %+v", with)
	}
	exec("ALTER PUBLICATION tidemark_outbox DROP TABLE outbox")
	exec("ALTER PUBLICATION tidemark_outbox ADD TABLE outbox")
	again := look()
	if again.Publication == with.Publication || again.Publication == "" {
		t.Errorf("the publication was %q and is %q", with.Publication, again.Publication)
	}
	exec("ALTER PUBLICATION tidemark_outbox SET (publish = 'update')")
	exec("ALTER PUBLICATION tidemark_outbox SET (publish = 'insert')")
	if look().Publication == again.Publication {
		t.Error("a change of what is published does not show")
	}
	exec("SELECT pg_drop_replication_slot('feed_shows')")
	if look().SlotExists {
		t.Error("the slot is still there")
	}
}
