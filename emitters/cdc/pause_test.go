package cdc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/tidemark/tidemark/internal/testenv"
)

// TestPauseUnderLoad: both emitters of a shard stop at once, everything that
// was sent is confirmed and the slot is free; while paused nothing comes and
// the WAL stays; resumed, every row is there, in order.
func TestPauseUnderLoad(t *testing.T) {
	r := newRig(t)
	one := r.start()
	one.awaitState(StateStreaming)
	two := r.start()
	two.awaitState(StateStandby)

	writer, ctx := r.connect(r.cfg.URL), t.Context()
	loading, stopLoad := context.WithCancel(ctx)
	var load sync.WaitGroup
	rows := 0
	load.Go(func() {
		for loading.Err() == nil {
			if _, err := writer.Exec(ctx, `INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard)
				SELECT 'relation', 'like:u:V', 'RelationChanged', '{}', 2 FROM generate_series(1, 3)`); err != nil {
				t.Error(err)
				return
			}
			rows += 3
		}
	})
	defer load.Wait()
	defer stopLoad()
	testenv.Eventually(t, patience, func() error {
		if n := one.Status().Acked; n < 500 {
			return fmt.Errorf("%d records are acked", n)
		}
		return nil
	})
	for _, e := range []*running{one, two} {
		e.Pause("ann: upgrade")
	}
	began := time.Now()
	for _, e := range []*running{one, two} {
		e.awaitState(StatePaused)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("pausing took %v", took)
	}
	if s := one.Status(); s.Emitted != s.Acked || s.UnackedRecords != 0 || s.Connected || s.PID != 0 || s.Restarts != 0 {
		t.Errorf("paused status %+v", s)
	}
	held, confirmed := r.records(), r.confirmed()
	// What is not confirmed is of the one transaction whose commit had not come.
	cut := 0
	for last := held[len(held)-1]; pglogrepl.LSN(held[len(held)-1-cut].Source.LSN) >= confirmed; cut++ {
		if at := held[len(held)-1-cut]; at.Source.TxID != last.Source.TxID {
			t.Fatalf("only %s is confirmed, and transactions %d and %d stand above", confirmed, at.Source.TxID, last.Source.TxID)
		}
	}

	// Paused: the load goes on, nothing comes.
	bound := r.serverLSN() + 100_000
	testenv.Eventually(t, patience, func() error {
		for _, e := range []*running{one, two} {
			s := e.Status()
			if s.State != StatePaused || e.Ready() != nil || !strings.Contains(s.Detail(), "paused: ann: upgrade") {
				t.Fatalf("status %+v, ready %v", s, e.Ready())
			}
			if s.ServerLSN < bound || s.RetainedBytes < 100_000 || s.LagBytes < 100_000 {
				return fmt.Errorf("status %+v", s)
			}
		}
		return nil
	})
	if now := r.records(); len(now) != len(held) || r.confirmed() != confirmed {
		t.Errorf("%d records and position %s after %d and %s while paused", len(now), r.confirmed(), len(held), confirmed)
	}
	one.Resume()
	two.Resume()
	stopLoad()
	load.Wait()
	all := r.awaitRows(rows)
	checkOrder(t, all)
	if len(all) != rows+cut {
		t.Errorf("%d records of %d rows, %d of them sent before the commit came: nothing else comes twice", len(all), rows, cut)
	}
}

// A pause is obeyed before Run, between two tries and while creating a slot is
// blocked; an emitter can stop while it is paused.
func TestPauseAtAnyTime(t *testing.T) {
	r := newRig(t)
	early := r.start(func(c *Config) { c.Shard = 2 })
	early.Pause("first")
	early.awaitState(StatePaused)
	early.Pause("second")
	if s := early.Status(); s.Paused != "second" {
		t.Errorf("status %+v", s)
	}
	early.Resume()
	early.awaitState(StateStreaming)
	early.Pause("again")
	early.awaitState(StatePaused)
	early.stop()

	unpublished := r.start(func(c *Config) { c.Publication, c.MaxBackoff = "none", time.Hour })
	testenv.Eventually(t, patience, func() error {
		if unpublished.Status().Restarts == 0 {
			return errors.New("no try has failed yet")
		}
		return nil
	})
	unpublished.Pause("while it retries")
	unpublished.awaitState(StatePaused)

	holder := r.connect(r.cfg.URL)
	if _, err := holder.Exec(t.Context(), `BEGIN; INSERT INTO other VALUES (1, 'x')`); err != nil {
		t.Fatal(err)
	}
	creating := r.start(func(c *Config) { c.Slot += "_blocked" })
	creating.awaitState(StateCreatingSlot)
	creating.Pause("while it waits")
	creating.awaitState(StatePaused)
}

// TestOldestUnpublished: while nothing can be sent the age of what waits grows;
// once it is sent the age is small again, with or without knowledge of the rows.
func TestOldestUnpublished(t *testing.T) {
	r := newRig(t)
	var mu sync.Mutex
	backlog := Backlog{Bytes: 7}
	e := r.start(func(c *Config) {
		c.Backlog = func(_ context.Context, position pglogrepl.LSN) (Backlog, error) {
			mu.Lock()
			defer mu.Unlock()
			return backlog, nil
		}
	})
	e.awaitState(StateStreaming)
	expect := func(what string, ok func(Status) bool) {
		t.Helper()
		testenv.Eventually(t, patience, func() error {
			if s := e.Status(); !ok(s) {
				return fmt.Errorf("%s: status %+v", what, s)
			}
			return nil
		})
	}
	expect("nothing waits", func(s Status) bool { return s.OldestUnpublished == 0 && s.OutboxBytes == 7 })
	mu.Lock()
	backlog = Backlog{Rows: true, Oldest: time.Hour}
	mu.Unlock()
	// The rows' bound is an hour, but the position is known to move.
	expect("the position moves", func(s Status) bool {
		return s.OldestUnpublished > 0 && s.OldestUnpublished < time.Minute && time.Since(s.PublishedAt) < time.Minute
	})
	e.Pause("test")
	e.awaitState(StatePaused)
	r.insert(1)
	since := e.Status().PublishedAt
	expect("time passes", func(s Status) bool { return s.OldestUnpublished > 500*time.Millisecond })
	r.insert(1)
	if s := e.Status(); s.PublishedAt.Sub(since) > 500*time.Millisecond {
		t.Errorf("published at %v, then %v while paused", since, s.PublishedAt)
	}
	e.Resume()
	expect("it goes on", func(s Status) bool { return s.PublishedAt.After(since.Add(500 * time.Millisecond)) })
}

// TestGoingOnAfterTheSlotIsThere: an emitter whose slot vanished waits until a
// person has made a new one.
func TestGoingOnAfterTheSlotIsThere(t *testing.T) {
	r := newRig(t)
	e := r.start()
	e.awaitState(StateStreaming)
	r.insert(2)
	r.awaitRows(2)
	if err := DropSlot(t.Context(), r.cfg.URL, r.cfg.Slot, false); !errors.Is(err, ErrSlotInUse) || !strings.Contains(err.Error(), "PID") {
		t.Fatalf("dropping a slot in use: %v", err)
	}
	if err := DropSlot(t.Context(), r.cfg.URL, r.cfg.Slot, true); err != nil {
		t.Fatal(err)
	}
	if err := e.awaitEnd(); !errors.Is(err, ErrSlotVanished) {
		t.Fatalf("Run returned %v", err)
	}
	if err := DropSlot(t.Context(), r.cfg.URL, r.cfg.Slot, false); err != nil {
		t.Errorf("dropping a slot that is gone: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := e.AwaitSlot(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("AwaitSlot returned %v without a slot", err)
	}
	r.ensureSlot()
	if err := e.AwaitSlot(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	e.awaitState(StateStreaming)
	r.insert(1)
	r.awaitRows(3)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run returned %v", err)
	}
}
