package relations

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

var errNotYet = errors.New("not yet")

// Reads that wait for a connection are seen: while none is given back, and by the
// pool's counters once they have got theirs.
func TestWaitsForAConnectionAreMeasured(t *testing.T) {
	s := open(t, 1, func(c *Config) { c.ReadConns = 2 })
	read := func() {
		if _, err := s.States(t.Context(), "u1", topology.Like, []string{"V1"}); err != nil {
			t.Error(err)
		}
	}
	read()
	waits := s.PoolWaits()
	read()
	if w := waits.Longest(); w > 50*time.Millisecond {
		t.Errorf("one read at a time has waited %v", w)
	}
	db := dial(t, s.config.URLs[0])
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), "LOCK TABLE relation IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	var reads sync.WaitGroup
	for range 8 {
		reads.Go(read)
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		stat := s.shards[0].pool.Stat()
		if stat.AcquiredConns() < 2 {
			return errNotYet
		}
		return nil
	})
	waits.Longest()
	held := time.Now()
	testenv.Eventually(t, 20*time.Second, func() error {
		if time.Since(held) < 300*time.Millisecond {
			return errNotYet
		}
		return nil
	})
	if w := waits.Longest(); w < 300*time.Millisecond {
		t.Errorf("waited %v where no connection was free for 300 ms", w)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	reads.Wait()
	if w := waits.Longest(); w < 200*time.Millisecond {
		t.Errorf("six of eight reads waited over 300 ms: %v on average", w)
	}
	if w := waits.Longest(); w != 0 {
		t.Errorf("waited %v for nothing", w)
	}
}
