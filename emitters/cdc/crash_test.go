package cdc

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
)

// writer commits transactions of random size until stopped. Rows of a key
// carry a version that rises in commit order, as a relation's does.
type writer struct {
	rows int
	stop func()
}

func (r *rig) write(workers int, pause time.Duration) *writer {
	w := &writer{}
	quit := make(chan struct{})
	var mu sync.Mutex
	var done sync.WaitGroup
	for range workers {
		conn := r.connect(r.direct)
		done.Go(func() {
			for {
				select {
				case <-quit:
					return
				case <-time.After(pause):
				}
				n := 1 + rand.IntN(6)
				tag, err := conn.Exec(r.t.Context(), `
					WITH v AS (INSERT INTO versions SELECT DISTINCT 'k' || $2::int + g % 5, 1 FROM generate_series(1, $1::int) g ORDER BY 1
						ON CONFLICT (key) DO UPDATE SET version = versions.version + 1 RETURNING key, version)
					INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard)
					SELECT 'relation', key, 'RelationChanged', to_jsonb(version), 2 FROM v`, n, rand.IntN(5))
				if err != nil {
					r.t.Errorf("writing: %v", err)
					return
				}
				mu.Lock()
				w.rows += int(tag.RowsAffected())
				mu.Unlock()
			}
		})
	}
	w.stop = sync.OnceFunc(func() { close(quit); done.Wait() })
	r.t.Cleanup(w.stop)
	return w
}

// checkVersions: the first copies of a key's rows have versions 1, 2, 3, ...
func checkVersions(t testing.TB, all []record) {
	t.Helper()
	versions := map[string]int{}
	for _, rec := range first(all) {
		versions[rec.key]++
		if want := fmt.Sprint(versions[rec.key]); rec.After.Payload != want {
			t.Fatalf("offset %d: key %s has version %s, want %s", rec.offset, rec.key, rec.After.Payload, want)
		}
	}
}

// TestD02KilledInsideATransaction kills the emitter in the middle of one large
// transaction: the rest of it is not lost, and with a window of 100 records no
// more are ever on their way.
func TestD02KilledInsideATransaction(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	const rows = 10_000
	r.insert(rows)
	end := r.serverLSN()
	r.slowKafka(2 * time.Millisecond)
	small := func(c *Config) { c.StopGrace, c.MaxInFlightRecords = -1, 100 }
	for range 20 {
		e := r.start(small)
		target := uint64(1 + rand.IntN(rows/2))
		testenv.Eventually(t, patience, func() error {
			s := e.Status()
			if s.UnackedRecords > 100 {
				t.Errorf("%d records on their way, more than 100", s.UnackedRecords)
			}
			if s.Acked < target {
				return fmt.Errorf("%d acked; last error %s", s.Acked, s.LastError)
			}
			return nil
		})
		e.stop()
		if got := r.confirmed(); e.Status().Acked < rows && got >= end {
			t.Fatalf("position %s was confirmed, the transaction ends at %s", got, end)
		}
	}
	r.start()
	checkOrder(t, r.awaitRows(rows))
}

// TestD01OpenAcrossRestart: a transaction that was open while the emitter was
// killed, and while others committed, arrives when it commits.
func TestD01OpenAcrossRestart(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	run := r.start(killable)
	other := r.connect(r.direct)
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const insert = `INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard) VALUES ('relation', 'open', 'RelationChanged', '{}', 2)`
	rows := 0
	for range 4 {
		if _, err := tx.Exec(t.Context(), insert); err != nil {
			t.Fatal(err)
		}
		rows += 3
		r.insert(3)
		r.awaitRows(rows)
		run.stop()
		run = r.start(killable)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := r.awaitRows(16)
	checkOrder(t, all)
	open := 0
	for _, rec := range first(all) {
		if rec.key == "open" {
			open++
		}
	}
	if open != 4 {
		t.Errorf("%d rows of the open transaction, want 4", open)
	}
}

// TestC02GracefulRestarts: 50 of them (here 20) under load. What was acked is
// confirmed at a stop, so hardly anything is sent twice, and a stop takes less
// than five seconds.
func TestC02GracefulRestarts(t *testing.T) {
	restarts := scaled(20, 50)
	r := newRig(t)
	r.ensureSlot()
	w := r.write(2, 2*time.Millisecond)
	for range restarts {
		e := r.start(func(c *Config) { c.StatusInterval = time.Hour }) // only the farewell tells
		e.awaitAcked(10)
		began := time.Now()
		e.stop()
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("stopping took %v", took)
		}
		s := e.Status()
		if s.State != StateStopped || s.Connected || s.Acked != s.Emitted {
			t.Errorf("status after the stop: %+v", s)
		}
	}
	w.stop()
	r.start()
	all := r.awaitRows(w.rows)
	checkOrder(t, all)
	checkVersions(t, all)
	// A stop may fall inside a transaction, whose rows, six at most, come again.
	if twice := len(all) - w.rows; twice > restarts*6 {
		t.Errorf("%d records were sent twice in %d graceful restarts", twice, restarts)
	}
}

// TestD11RestartedOverAndOver: every two seconds for five minutes (here more
// often and for seconds), killed and in order by turns, under load. Every life
// gets further than the one before.
func TestD11RestartedOverAndOver(t *testing.T) {
	every, until := scaled(100*time.Millisecond, 2*time.Second), time.Now().Add(scaled(5*time.Second, 5*time.Minute))
	r := newRig(t)
	r.ensureSlot()
	stopSampling := r.sampleConfirmed()
	w := r.write(2, 5*time.Millisecond)
	lives := 0
	for ; time.Now().Before(until); lives++ {
		from, began := r.confirmed(), time.Now()
		e := r.start(func(c *Config) { c.StopGrace = []time.Duration{-1, time.Second}[lives%2] })
		testenv.Eventually(t, patience, func() error {
			if at := r.confirmed(); at <= from || time.Since(began) < every {
				return fmt.Errorf("confirmed %s, as at the start of the life; status %+v", at, e.Status())
			}
			return nil
		})
		e.stop()
	}
	w.stop()
	stopSampling()
	r.start()
	all := r.awaitRows(w.rows)
	t.Logf("%d lives, %d rows, %d records", lives, w.rows, len(all))
	checkOrder(t, all)
	checkVersions(t, all)
}

// awaitAcked waits until the emitter has had n acknowledgements.
func (e *running) awaitAcked(n uint64) {
	e.t.Helper()
	testenv.Eventually(e.t, patience, func() error {
		if s := e.Status(); s.Acked < n {
			return fmt.Errorf("%d acked; last error %s", s.Acked, s.LastError)
		}
		return nil
	})
}

// TestC04WalsenderTerminated: the emitter reconnects by itself.
func TestC04WalsenderTerminated(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	e := r.start()
	stopSampling := r.sampleConfirmed()
	for i := range 5 {
		r.insert(10)
		r.awaitRows(10 * (i + 1))
		e.awaitState(StateStreaming)
		r.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, r.cfg.Slot)
	}
	r.insert(10)
	checkOrder(t, r.awaitRows(60))
	stopSampling()
	if s := e.Status(); s.Restarts < 4 || s.LastError == "" {
		t.Errorf("%d restarts, last error %q", s.Restarts, s.LastError)
	}
}
