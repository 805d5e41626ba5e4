package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs.
const (
	stateInUse     = "55006" // object in use: the slot is active
	stateDuplicate = "42710" // duplicate object: the slot exists
	stateUndefined = "42704" // undefined object: it does not
)

func hasState(err error, state string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == state
}

// slot is a row of pg_replication_slots.
type slot struct {
	kind      string // logical or physical
	plugin    string
	database  string
	temporary bool
	activePID int64          // 0: nobody uses it
	confirmed *pglogrepl.LSN // nil: null
	walStatus string         // reserved, extended, unreserved, lost
}

const slotQuery = `
SELECT slot_type, coalesce(plugin, ''), coalesce(database, ''), temporary,
       coalesce(active_pid, 0)::bigint, confirmed_flush_lsn::text, coalesce(wal_status, '')
FROM pg_replication_slots WHERE slot_name = $1`

// lookUpSlot returns nil when there is no slot of that name.
func lookUpSlot(ctx context.Context, conn *pgx.Conn, name string) (*slot, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var s slot
	var confirmed *string
	err := conn.QueryRow(ctx, slotQuery, name).
		Scan(&s.kind, &s.plugin, &s.database, &s.temporary, &s.activePID, &confirmed, &s.walStatus)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading slot %s: %w", name, err)
	}
	if confirmed != nil {
		lsn, err := pglogrepl.ParseLSN(*confirmed)
		if err != nil {
			return nil, fmt.Errorf("reading slot %s: confirmed position: %w", name, err)
		}
		s.confirmed = &lsn
	}
	return &s, nil
}

// check refuses a slot that cannot feed database, with what to do.
func (s *slot) check(name, database string) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: slot %s %s", ErrSlotUnusable, name, fmt.Sprintf(format, args...))
	}
	const drop = "; drop it or configure another name"
	switch {
	case s.kind != "logical":
		return refuse("is %s, not logical"+drop, s.kind)
	case s.plugin != "pgoutput":
		return refuse("uses plugin %s, not pgoutput"+drop, s.plugin)
	case s.database != database:
		return refuse("belongs to database %s, not %s"+drop, s.database, database)
	case s.temporary:
		return refuse("is temporary: it ends with its connection" + drop)
	case s.walStatus == "lost":
		return refuse("needs WAL that the server has removed (max_slot_wal_keep_size); facts committed meanwhile are not in the stream: drop it, create a new one and heal the gap")
	case s.confirmed == nil && s.activePID == 0:
		return refuse("has no confirmed position: its creation never finished; drop it")
	}
	return nil
}

// EnsureSlot creates the logical replication slot unless it exists, so that
// every fact committed afterwards is in the stream. Migrating the schema calls
// it right after the publication was created and before the first fact: a slot
// older than its publication cannot be read, and facts older than the slot are
// not in the stream.
//
// Creation waits for every transaction that was open before. When ctx ends, or
// after a minute if it has no deadline, it gives up with ErrSlotBlocked, which
// names the oldest one's process and age. An existing slot that cannot be used
// is ErrSlotUnusable.
func EnsureSlot(ctx context.Context, url, slot string) error {
	return EnsureSlotReporting(ctx, url, slot, func(string) {})
}

// EnsureSlotReporting is EnsureSlot; report is told about once a second which
// transaction creation waits for.
func EnsureSlotReporting(ctx context.Context, url, slot string, report func(blocker string)) error {
	if !nameForm.MatchString(slot) {
		return fmt.Errorf("slot %q is not 1 to 63 lower-case letters, digits or underscores", slot)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Minute)
		defer cancel()
	}
	conn, err := dialSQL(ctx, url, "tidemark cdc slot "+slot)
	if err != nil {
		return fmt.Errorf("ensuring slot %s: %w", slot, err)
	}
	defer closeSQL(conn)
	facts, err := readServerFacts(ctx, conn)
	if err != nil {
		return fmt.Errorf("ensuring slot %s: %w", slot, err)
	}
	have, err := lookUpSlot(ctx, conn, slot)
	if err != nil {
		return err
	}
	if have != nil {
		return have.check(slot, facts.database)
	}
	return createSlot(ctx, url, slot, report)
}

// DropSlot drops the slot. One that is being read is ErrSlotInUse, unless evict
// says to end its walsender: again and again until the slot is gone or ctx
// ends, since the reader may come back in between. A slot that does not exist
// is fine.
func DropSlot(ctx context.Context, url, slot string, evict bool) error {
	conn, err := dialSQL(ctx, url, "tidemark cdc slot "+slot)
	if err != nil {
		return fmt.Errorf("dropping slot %s: %w", slot, err)
	}
	defer closeSQL(conn)
	for {
		if evict {
			if _, err := conn.Exec(ctx, `SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active`, slot); err != nil {
				return fmt.Errorf("ending the reader of slot %s: %w", slot, err)
			}
		}
		_, err := conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, slot)
		switch {
		case err == nil || hasState(err, stateUndefined):
			return nil
		case !hasState(err, stateInUse):
			return fmt.Errorf("dropping slot %s: %w", slot, err)
		case !evict:
			return fmt.Errorf("dropping slot %s: %w: %w", slot, ErrSlotInUse, err)
		}
		if wait(ctx, 20*time.Millisecond) != nil {
			return fmt.Errorf("dropping slot %s: %w: its reader came back each time it was ended; pause the feed first", slot, ErrSlotInUse)
		}
	}
}

// CreatePublication makes the publication of the outbox as the emitter needs it. It must come
// before the slot: one that is older than its publication cannot be read.
func CreatePublication(ctx context.Context, url, publication string) error {
	conn, err := dialSQL(ctx, url, "tidemark cdc publication "+publication)
	if err == nil {
		defer closeSQL(conn)
		_, err = conn.Exec(ctx, fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert', publish_via_partition_root = true)",
			pgx.Identifier{publication}.Sanitize(), pgx.Identifier{defaultSchema, defaultTable}.Sanitize()))
	}
	if err != nil {
		return fmt.Errorf("creating publication %s: %w", publication, err)
	}
	return nil
}

// createSlot creates a permanent slot and tells report, about once a second,
// which transaction it waits for. A slot that exists meanwhile is fine.
func createSlot(ctx context.Context, url, name string, report func(string)) error {
	conn, err := dialSQL(ctx, url, "tidemark cdc slot "+name)
	if err != nil {
		return fmt.Errorf("creating slot %s: %w", name, err)
	}
	defer closeSQL(conn)
	watchCtx, stopWatch := context.WithCancel(ctx)
	watched := make(chan string, 1)
	go func() { watched <- watchBlockers(watchCtx, url, int64(conn.PgConn().PID()), report) }()

	started := time.Now()
	_, err = conn.Exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput', false)`, name)
	stopWatch()
	blocker := <-watched
	switch {
	case err == nil || hasState(err, stateDuplicate):
		return nil
	case ended(ctx) && blocker != "":
		return fmt.Errorf("creating slot %s: %w: after %s still waiting for %s; end that transaction or wait for it",
			name, ErrSlotBlocked, time.Since(started).Round(time.Millisecond), blocker)
	}
	return fmt.Errorf("creating slot %s: %w", name, err)
}

const blockerQuery = `
SELECT who || ', open for ' || date_trunc('milliseconds', clock_timestamp() - since)::text FROM (
  SELECT format('pid %s (%s, application %s)', pid, state, quote_literal(application_name)) AS who, xact_start AS since
  FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> $1 AND xact_start IS NOT NULL
  UNION ALL
  SELECT format('prepared transaction %s', quote_literal(gid)), prepared FROM pg_prepared_xacts
) t ORDER BY since LIMIT 1`

// watchBlockers reports the oldest transaction with an id until ctx ends and
// returns the last report; empty: nothing stood in the way.
func watchBlockers(ctx context.Context, url string, creator int64, report func(string)) (last string) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	// The first look waits a moment: creation usually takes milliseconds.
	first := time.NewTimer(100 * time.Millisecond)
	defer first.Stop()
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			closeSQL(conn)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return last
		case <-first.C:
		case <-tick.C:
		}
		if conn == nil {
			var err error
			if conn, err = dialSQL(ctx, url, "tidemark cdc watch"); err != nil {
				conn = nil
				continue // the creating connection reports what is wrong
			}
		}
		var blocker string
		if err := conn.QueryRow(ctx, blockerQuery, creator).Scan(&blocker); err == nil {
			last = blocker
			report(blocker)
		}
	}
}
