package cdc

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
)

// TestC04SilentConnection: the network swallows everything, no end is told. The
// emitter notices, and goes on when the server has freed the slot.
func TestC04SilentConnection(t *testing.T) {
	r := newRig(t)
	r.exec(`DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = ''1s''', current_database()); END$$`)
	r.ensureSlot()
	p := r.throughProxy()
	e := r.start(func(c *Config) { c.Silence = 500 * time.Millisecond })
	r.insert(5)
	r.awaitRows(5)
	// Quiet is not silent: the emitter asks and hears answers.
	end := time.Now().Add(time.Second)
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Restarts != 0 {
			t.Fatalf("an idle connection was given up: %s", s.LastError)
		}
		if time.Now().Before(end) {
			return io.ErrNoProgress
		}
		return nil
	})
	p.each(func(c *pipe) { c.freeze() })
	r.insert(5)
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Restarts == 0 || !strings.Contains(s.LastError, "has sent nothing for") {
			return fmt.Errorf("%d restarts, last error %q", s.Restarts, s.LastError)
		}
		return nil
	})
	checkOrder(t, r.awaitRows(10))
}

// TestC04SlowLossyNetwork: a round trip of seven seconds (here less), and one
// packet in ten is sent again. A connection that stands goes on, and one that
// was lost is made anew over the same network.
func TestC04SlowLossyNetwork(t *testing.T) {
	roundTrip, limit := scaled(400*time.Millisecond, 7*time.Second), scaled(patience, 10*time.Minute)
	r := newRig(t)
	r.exec(`DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = ''30s''', current_database()); END$$`)
	r.ensureSlot()
	p := r.throughProxy()
	e := r.start(func(c *Config) { c.StatusInterval, c.MonitorInterval = time.Second, time.Hour })
	r.insert(5)
	r.awaitRows(5)
	p.latency.Store(int64(roundTrip / 2))
	p.lossPercent.Store(10)
	arrived := func(rows int) {
		t.Helper()
		began := time.Now()
		testenv.Eventually(t, limit, func() error {
			if have := len(first(r.records())); have != rows {
				return fmt.Errorf("%d rows, want %d; status %+v", have, rows, e.Status())
			}
			return nil
		})
		t.Logf("%d rows after %v", rows, time.Since(began).Round(time.Millisecond))
	}
	r.insert(10)
	arrived(15)
	if s := e.Status(); s.Restarts != 0 {
		t.Errorf("a slow connection was given up: %s", s.LastError)
	}
	r.exec(`SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1`, r.cfg.Slot)
	r.insert(10)
	arrived(25)
	if s := e.Status(); s.Restarts == 0 || s.Restarts > 3 {
		t.Errorf("%d restarts: %s", s.Restarts, s.LastError)
	}
	checkOrder(t, r.records())
	p.latency.Store(0) // for the stop
}
