package relations

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/topology"
)

// What a command may write to the log, in bytes, without the full pages that
// follow a checkpoint: one that makes a transition, one that changes nothing
// (its own record), and a retry (nothing but its share of the transaction).
// The first only keeps it from growing: the design wants 900 (docs/test-matrix.md).
const (
	walEffective = 1400
	walUnchanged = 450
	walRetry     = 100
)

func TestCommandsAreCheapInTheLog(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	conn := dial(t, urls[0])
	ctx := context.Background()
	const n = 3000
	run := func(prefix string, state topology.State) float64 {
		t.Helper()
		var before, after int64
		wal := func(into *int64) {
			t.Helper()
			if err := conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(into); err != nil {
				t.Fatal(err)
			}
		}
		wal(&before)
		var group errgroup.Group
		group.SetLimit(64)
		for i := range n {
			group.Go(func() error {
				r := relation(topology.Like, fmt.Sprintf("user%d", i), fmt.Sprintf("video%d", i%100))
				_, err := s.Set(ctx, command(fmt.Sprintf("%s-%d", prefix, i), r, state))
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		wal(&after)
		return float64(after-before) / n
	}
	// How many full pages there are depends on the last checkpoint.
	fullPages := func(change string) {
		t.Helper()
		for _, q := range []string{"ALTER SYSTEM " + change, "SELECT pg_reload_conf()"} {
			if _, err := conn.Exec(ctx, q); err != nil {
				t.Fatal(err)
			}
		}
	}
	fullPages("SET full_page_writes = off")
	defer fullPages("RESET full_page_writes")
	run("0190f5fe-7a00-7000-8000-00000000first", topology.Liked)
	effective := run("0190f5fe-7a00-7000-8000-0000000000on", topology.Disliked)
	unchanged := run("0190f5fe-7a00-7000-8000-000000000nop", topology.Disliked)
	retry := run("0190f5fe-7a00-7000-8000-000000000nop", topology.Disliked)
	t.Logf("bytes of WAL per command: %.0f effective, %.0f unchanged, %.0f retry", effective, unchanged, retry)
	if effective > walEffective || unchanged > walUnchanged || retry > walRetry {
		t.Errorf("more than %d, %d, %d", walEffective, walUnchanged, walRetry)
	}
}
