package cdc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/internal/testenv"
)

// TestInspect: what an operator is told of a slot and its publication in each
// state.
func TestInspect(t *testing.T) {
	r := newRig(t)
	look := func() Inspection {
		t.Helper()
		i, err := Inspect(t.Context(), r.cfg.URL, r.cfg.Slot, "tidemark_outbox")
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	if i := look(); i.Slot.Exists || i.Slot.Name != r.cfg.Slot || !i.PublicationExists || i.PublicationError != nil {
		t.Errorf("no slot: %+v", i)
	}
	r.ensureSlot()
	r.insert(100)
	s := look().Slot
	if !s.Exists || s.Unusable != nil || s.Making || s.WALStatus != "reserved" || s.Confirmed == 0 || s.LagBytes <= 0 || s.RetainedBytes < s.LagBytes || s.SafeBytes != -1 || s.Reader != nil {
		t.Errorf("a slot that nobody reads: %+v", s)
	}
	e := r.start()
	e.awaitState(StateStreaming)
	if s = look().Slot; s.Reader == nil || s.Reader.Application != "tidemark cdc shard 2" || s.Reader.Since.IsZero() || s.Reader.PID != e.Status().PID {
		t.Errorf("a slot in use: %+v, reader %+v, emitter %+v", s, s.Reader, e.Status())
	}
	e.stop()

	r.exec(`SELECT pg_drop_replication_slot($1)`, r.cfg.Slot)
	r.exec(`SELECT pg_create_physical_replication_slot($1)`, r.cfg.Slot)
	if s = look().Slot; s.Unusable == nil || !strings.Contains(s.Unusable.Error(), "is physical") {
		t.Errorf("another slot: %+v", s)
	}
	r.exec(`SELECT pg_drop_replication_slot($1)`, r.cfg.Slot)

	altered := func(sql, want string) {
		t.Helper()
		r.exec(sql)
		if i := look(); !i.PublicationExists || i.PublicationError == nil || !strings.Contains(i.PublicationError.Error(), want) {
			t.Errorf("after %s: %+v", sql, i)
		}
	}
	altered("ALTER PUBLICATION tidemark_outbox SET (publish = 'insert, delete')", "SET (publish = 'insert')")
	altered("ALTER PUBLICATION tidemark_outbox SET (publish = 'delete')", "SET (publish = 'insert')")
	altered("ALTER PUBLICATION tidemark_outbox SET (publish = 'insert', publish_via_partition_root = false)", "publish_via_partition_root = true")
	r.exec("ALTER PUBLICATION tidemark_outbox SET (publish = 'insert', publish_via_partition_root = true)")
	altered("ALTER PUBLICATION tidemark_outbox DROP TABLE outbox", "ADD TABLE public.outbox")
	r.exec("ALTER PUBLICATION tidemark_outbox ADD TABLE outbox")
	if i := look(); i.PublicationError != nil {
		t.Errorf("as it should be: %+v", i)
	}
	var version int
	if err := r.db.QueryRow(t.Context(), "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
		t.Fatal(err)
	}
	if version >= 150000 {
		altered("ALTER PUBLICATION tidemark_outbox SET TABLE outbox WHERE (id > 5)", "row filter")
		altered("ALTER PUBLICATION tidemark_outbox SET TABLE outbox (id, created_at, payload)", "SET TABLE public.outbox")
	}
	r.exec("DROP PUBLICATION tidemark_outbox")
	if i := look(); i.PublicationExists || i.PublicationError == nil {
		t.Errorf("no publication: %+v", i)
	}
	if err := CreatePublication(t.Context(), r.cfg.URL, "tidemark_outbox"); err != nil {
		t.Fatal(err)
	}
	if i := look(); !i.PublicationExists || i.PublicationError != nil {
		t.Errorf("created: %+v", i)
	}
}

// TestInspectWhileCreating: a slot whose creation waits has no position, and
// creation says whom it waits for.
func TestInspectWhileCreating(t *testing.T) {
	r := newRig(t)
	holder := r.connect(r.cfg.URL)
	if _, err := holder.Exec(t.Context(), `BEGIN; INSERT INTO other VALUES (1, 'x')`); err != nil {
		t.Fatal(err)
	}
	blockers := make(chan string, 100)
	made := make(chan error, 1)
	go func() {
		made <- EnsureSlotReporting(t.Context(), r.cfg.URL, r.cfg.Slot, func(b string) { blockers <- b })
	}()
	if b := <-blockers; !strings.Contains(b, fmt.Sprintf("pid %d ", holder.PgConn().PID())) {
		t.Errorf("blocked by %s", b)
	}
	testenv.Eventually(t, patience, func() error {
		i, err := Inspect(t.Context(), r.cfg.URL, r.cfg.Slot, "tidemark_outbox")
		if err == nil && !(i.Slot.Exists && i.Slot.Making && i.Slot.Unusable == nil) {
			err = fmt.Errorf("slot %+v", i.Slot)
		}
		return err
	})
	if _, err := holder.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := <-made; err != nil {
		t.Error(err)
	}
}
