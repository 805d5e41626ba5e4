package cdc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
)

func (e *running) awaitEnd() error {
	e.t.Helper()
	select {
	case <-e.ended:
	case <-time.After(patience):
		e.t.Fatalf("Run does not end; status %+v", e.Status())
	}
	return e.err
}

// TestD08VanishedSlot: a slot that is gone while the partition has records
// ends Run by name; AllowNewSlot goes on.
func TestD08VanishedSlot(t *testing.T) {
	r := newRig(t)
	e := r.start() // an empty partition: the slot is made
	e.awaitState(StateStreaming)
	r.insert(5)
	r.awaitRows(5)
	e.stop()
	r.exec(`SELECT pg_drop_replication_slot($1)`, r.cfg.Slot)
	r.insert(1)

	e = r.start()
	err := e.awaitEnd()
	if !errors.Is(err, ErrSlotVanished) {
		t.Fatalf("Run returned %v", err)
	}
	for _, text := range []string{"shard 2", r.cfg.Slot, "offset 5", "AllowNewSlot"} {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not have %q", err, text)
		}
	}
	if s := e.Status(); s.State != StateFailed || e.Ready() == nil {
		t.Errorf("status %+v", s)
	}
	if s, err := lookUpSlot(t.Context(), r.db, r.cfg.Slot); s != nil || err != nil {
		t.Errorf("slot %+v, %v: it must not be made silently", s, err)
	}

	e = r.start(func(c *Config) { c.AllowNewSlot = true })
	e.awaitState(StateStreaming)
	r.insert(2)
	checkOrder(t, r.awaitRows(7)) // the row in between is the gap
}

// TestDroppedWhileStreaming: dropping a slot in use needs its walsender ended;
// the emitter then finds it gone.
func TestDroppedWhileStreaming(t *testing.T) {
	r := newRig(t)
	e := r.start()
	e.awaitState(StateStreaming)
	r.insert(1)
	r.awaitRows(1)
	testenv.Eventually(t, patience, func() error {
		_, err := r.db.Exec(t.Context(), `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, r.cfg.Slot)
		if err == nil {
			_, err = r.db.Exec(t.Context(), `SELECT pg_drop_replication_slot($1)`, r.cfg.Slot)
		}
		return err
	})
	if err := e.awaitEnd(); !errors.Is(err, ErrSlotVanished) {
		t.Errorf("Run returned %v", err)
	}
}

// TestD10UnusableSlots are refused by name, by Run and by EnsureSlot.
func TestD10UnusableSlots(t *testing.T) {
	other := testenv.Postgres(t)
	for _, c := range []struct {
		name, create, want string
	}{
		{"physical", `SELECT pg_create_physical_replication_slot($1)`, "is physical"},
		{"another plugin", `SELECT pg_create_logical_replication_slot($1, 'test_decoding')`, "test_decoding"},
		{"another database", "", "belongs to database"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			db := r.db
			create := c.create
			if create == "" {
				db, create = r.connect(other), `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`
			}
			if _, err := db.Exec(t.Context(), create, r.cfg.Slot); err != nil {
				if strings.Contains(err.Error(), "test_decoding") {
					t.Skip("this PostgreSQL has no test_decoding")
				}
				t.Fatal(err)
			}
			defer func() { _, _ = r.db.Exec(context.Background(), `SELECT pg_drop_replication_slot($1)`, r.cfg.Slot) }()
			if err := EnsureSlot(t.Context(), r.cfg.URL, r.cfg.Slot); !errors.Is(err, ErrSlotUnusable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("EnsureSlot returned %v", err)
			}
			if err := r.start().awaitEnd(); !errors.Is(err, ErrSlotUnusable) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Run returned %v", err)
			}
		})
	}
}

func TestSlotChecks(t *testing.T) {
	good := slot{kind: "logical", plugin: "pgoutput", database: "d", walStatus: "reserved"}
	position := mustLSN(1)
	good.confirmed = &position
	if err := good.check("s", "d"); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*slot){
		"temporary":       func(s *slot) { s.temporary = true },
		"has removed":     func(s *slot) { s.walStatus = "lost" },
		"never finished":  func(s *slot) { s.confirmed = nil },
		"not pgoutput":    func(s *slot) { s.plugin = "wal2json" },
		"belongs to data": func(s *slot) { s.database = "e" },
	} {
		s := good
		change(&s)
		if err := s.check("s", "d"); !errors.Is(err, ErrSlotUnusable) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	making := good
	making.confirmed, making.activePID = nil, 7
	if err := making.check("s", "d"); err != nil {
		t.Errorf("a slot that another process is making: %v", err)
	}
}

// TestD19CreationIsBlocked: an open transaction holds slot creation up; who it
// is and for how long is reported, EnsureSlot gives up with its context, and
// Run goes on when the transaction ends.
func TestD19CreationIsBlocked(t *testing.T) {
	r := newRig(t)
	holder := r.connect(r.cfg.URL)
	tx, err := holder.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO other VALUES (1, 'x')`); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("pid %d (idle in transaction", holder.PgConn().PID())

	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	err = EnsureSlot(ctx, r.cfg.URL, r.cfg.Slot)
	if !errors.Is(err, ErrSlotBlocked) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "open for 00:00:0") {
		t.Errorf("EnsureSlot returned %v", err)
	}
	e := r.start(func(c *Config) { c.SlotTimeout = 1500 * time.Millisecond })
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Restarts == 0 || !strings.Contains(s.LastError, want) {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	e.awaitState(StateCreatingSlot)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.awaitState(StateStreaming)
	r.insert(1)
	r.awaitRows(1)
}

func TestEnsureSlotTwice(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	before := r.confirmed()
	r.insert(1)
	r.ensureSlot()
	if got := r.confirmed(); got != before {
		t.Errorf("the slot moved from %s to %s", before, got)
	}
	if err := EnsureSlot(t.Context(), r.cfg.URL, "No"); err == nil {
		t.Error("a bad slot name was accepted")
	}
	r.start()
	r.awaitRows(1) // committed after the slot and before the first Run
}

// TestD12StandbyTakesOver: two emitters on one slot; the second waits without
// restarting and takes over within seconds, also when the first is
// killed, not stopped.
func TestD12StandbyTakesOver(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	one := r.start(killable)
	one.awaitState(StateStreaming)
	two := r.start()
	two.awaitState(StateStandby)
	if s := two.Status(); s.Connected || two.Ready() != nil {
		t.Errorf("standby status %+v", s)
	}
	r.insert(3)
	r.awaitRows(3)
	one.stop()
	began := time.Now()
	two.awaitState(StateStreaming)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("taking over took %v", took)
	}
	if s := two.Status(); s.Restarts != 0 {
		t.Errorf("%d restarts while standing by: %s", s.Restarts, s.LastError)
	}
	r.insert(3)
	checkOrder(t, r.awaitRows(6))
}

// TestD17PublicationIsChecked: what would give a silent stream is refused by name
// and retried.
func TestD17PublicationIsChecked(t *testing.T) {
	r := newRig(t)
	r.exec(`DROP PUBLICATION tidemark_outbox`)
	e := r.start()
	expect := func(text string) {
		t.Helper()
		testenv.Eventually(t, patience, func() error {
			if err := e.Ready(); err == nil || !strings.Contains(err.Error(), text) {
				return fmt.Errorf("ready says %w, want %q", err, text)
			}
			return nil
		})
	}
	expect("does not exist; `tidemark cdc create-slot` makes it")
	r.exec(`CREATE PUBLICATION tidemark_outbox FOR TABLE outbox WITH (publish = 'insert', publish_via_partition_root = false)`)
	expect("publish_via_partition_root = true")
	r.exec(`ALTER PUBLICATION tidemark_outbox SET (publish_via_partition_root = true, publish = 'update')`)
	expect("publish = 'insert'")
	r.exec(`ALTER PUBLICATION tidemark_outbox SET (publish = 'insert')`)
	r.exec(`ALTER PUBLICATION tidemark_outbox DROP TABLE outbox`)
	expect("ADD TABLE public.outbox")
	r.exec(`ALTER PUBLICATION tidemark_outbox ADD TABLE outbox`)
	e.awaitState(StateStreaming)
	r.insert(1)
	r.awaitRows(1)
}

// TestD22OutboxShapeStopsTheShard: a renamed column is named, nothing is emitted
// or confirmed.
func TestD22OutboxShapeStopsTheShard(t *testing.T) {
	r := newRig(t)
	e := r.start()
	e.awaitState(StateStreaming)
	r.insert(1)
	r.awaitRows(1)
	r.exec(`ALTER TABLE outbox RENAME COLUMN payload TO body`)
	r.exec(`INSERT INTO outbox (aggregatetype, aggregateid, type, body, source_shard) VALUES ('relation', 'k', 't', '{}', 2)`)
	bound := r.serverLSN()
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Restarts < 2 || !strings.Contains(s.LastError, "column payload is missing") {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	if got := r.confirmed(); got >= bound {
		t.Errorf("position %s was confirmed, the row ends at %s", got, bound)
	}
}

// TestD10SlotInTheMaking has no confirmed position yet: who wants to stream
// waits until it has.
func TestD10SlotInTheMaking(t *testing.T) {
	r := newRig(t)
	tx, err := r.connect(r.direct).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `INSERT INTO other VALUES (1, 'x')`); err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 1)
	go func() { made <- EnsureSlot(t.Context(), r.direct, r.cfg.Slot) }()
	r.await(`SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1 AND confirmed_flush_lsn IS NULL)`, r.cfg.Slot)
	e := r.start()
	e.awaitState(StateStandby)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	e.awaitState(StateStreaming)
	r.insert(1)
	r.awaitRows(1)
	if s := e.Status(); s.Restarts != 0 {
		t.Errorf("%d restarts: %s", s.Restarts, s.LastError)
	}
}

// TestD10CopiedSlot goes on where the copied one stood.
func TestD10CopiedSlot(t *testing.T) {
	r := newRig(t)
	wanted := r.cfg.Slot
	r.cfg.Slot += "_source"
	r.ensureSlot()
	r.insert(3)
	r.exec(`SELECT pg_copy_logical_replication_slot($1, $2)`, r.cfg.Slot, wanted)
	r.cfg.Slot = wanted
	r.insert(2)
	r.start()
	checkOrder(t, r.awaitRows(5))
}

// TestD17ShardThatIsMadeLater: its emitter runs before its schema is there,
// says so, and has every row from the first.
func TestD17ShardThatIsMadeLater(t *testing.T) {
	r := newRig(t)
	r.exec(`DROP PUBLICATION tidemark_outbox; DROP TABLE outbox, versions, other`)
	e := r.start()
	testenv.Eventually(t, patience, func() error {
		if err := e.Ready(); err == nil || !strings.Contains(err.Error(), "publication tidemark_outbox does not exist") {
			return fmt.Errorf("ready says %w", err)
		}
		return nil
	})
	r.exec(ddl)
	r.ensureSlot()
	r.insert(3)
	checkOrder(t, r.awaitRows(3))
}
