package relations

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/topology"
)

// What a command may write to the log, in bytes, without the full pages that
// follow a checkpoint: one that makes a relation or changes one, one that changes
// nothing (its own record), and a retry (nothing but its share of the
// transaction). Each has room for a commit of its own, 46 bytes, since on a busy
// machine transactions are small. The first two only keep it from growing: 900 is
// wanted (decision 23 has where they go).
const (
	walMade      = 1260
	walChanged   = 1270
	walUnchanged = 340
	walRetry     = 100
)

func TestCommandsAreCheapInTheLog(t *testing.T) {
	for _, ids := range []struct {
		name    string
		version func() (uuid.UUID, error)
		more    float64 // bytes: places all over the index of the ids are split
	}{
		{"ids that rise, as the client library makes them", uuid.NewV7, 0},
		{"ids without an order", uuid.NewRandom, 60},
	} {
		t.Run(ids.name, func(t *testing.T) { commandsAreCheap(t, ids.version, ids.more) })
	}
}

func commandsAreCheap(t *testing.T, newID func() (uuid.UUID, error), more float64) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	conn := dial(t, urls[0])
	ctx := context.Background()
	exec := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	at := func() (lsn int64) {
		t.Helper()
		if err := conn.QueryRow(ctx, "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").Scan(&lsn); err != nil {
			t.Fatal(err)
		}
		return lsn
	}
	const n = 3000
	run := func(ids []string, state topology.State) float64 {
		t.Helper()
		before := at()
		var group errgroup.Group
		group.SetLimit(64)
		for i, id := range ids {
			group.Go(func() error {
				r := relation(topology.Like, fmt.Sprintf("user%d", i), fmt.Sprintf("video%d", i%100))
				_, err := s.Set(ctx, command(id, r, state))
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		after := at()
		logWAL(t, conn, before, after, n)
		return float64(after-before) / n
	}
	fresh := func() []string {
		ids := make([]string, n)
		for i := range ids {
			id, err := newID()
			if err != nil {
				t.Fatal(err)
			}
			ids[i] = id.String()
		}
		return ids
	}
	// How many full pages there are depends on the last checkpoint.
	defer exec("SELECT pg_reload_conf()")
	defer exec("ALTER SYSTEM RESET full_page_writes")
	exec("ALTER SYSTEM SET full_page_writes = off")
	exec("SELECT pg_reload_conf()")
	made := run(fresh(), topology.Liked)
	changed := run(fresh(), topology.Disliked)
	nothing := fresh()
	unchanged := run(nothing, topology.Disliked)
	retry := run(nothing, topology.Disliked)
	t.Logf("bytes of WAL per command: %.0f made, %.0f changed, %.0f unchanged, %.0f retry", made, changed, unchanged, retry)
	if made > walMade+more || changed > walChanged+more || unchanged > walUnchanged+more || retry > walRetry {
		t.Errorf("more than %d, %d, %d (and %.0f), %d", walMade, walChanged, walUnchanged, more, walRetry)
	}
}

// logWAL tells where it goes, by the first relation and the sort of each record.
func logWAL(t *testing.T, conn *pgx.Conn, from, to int64, commands int) {
	t.Helper()
	ctx := context.Background()
	if to-from < int64(commands) {
		return // and what is behind the end of the log cannot be asked for
	}
	if _, err := conn.Exec(ctx, "CREATE EXTENSION IF NOT EXISTS pg_walinspect"); err != nil {
		t.Logf("PostgreSQL older than 15, or without its extensions: %v", err)
		return
	}
	rows, err := conn.Query(ctx, `
		WITH sums AS (
		    SELECT (regexp_match(block_ref, 'rel [0-9]+/[0-9]+/([0-9]+)'))[1] AS file, resource_manager || ' ' || record_type AS record,
		           count(*) AS n, sum(record_length) AS bytes
		    FROM pg_get_wal_records_info('0/0'::pg_lsn + $1::bigint, '0/0'::pg_lsn + $2::bigint) GROUP BY 1, 2)
		SELECT coalesce(c.relname, '-'), record, n, bytes
		FROM sums LEFT JOIN pg_class c ON pg_relation_filenode(c.oid)::text = file
		WHERE bytes > $3 ORDER BY bytes DESC`, from, to, commands)
	if err != nil {
		t.Fatal(err)
	}
	var table, record string
	var n, bytes int64
	_, err = pgx.ForEachRow(rows, []any{&table, &record, &n, &bytes}, func() error {
		t.Logf("%-24s %-20s %5.0f bytes, %6.1f per command", table, record, float64(bytes)/float64(n), float64(bytes)/float64(commands))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
