package cdc

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
)

// TestSilentConnection: the network swallows everything, no end is told. The
// emitter notices, and goes on when the server has freed the slot.
func TestSilentConnection(t *testing.T) {
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
