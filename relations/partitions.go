package relations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A timeTable is a table that is partitioned by created_at, UTC.
type timeTable struct {
	name  string
	span  time.Duration // of one partition, counted from a Monday
	ahead time.Duration // how far partitions are made
}

const day = 24 * time.Hour

var timeTables = []timeTable{
	{name: "outbox", span: day, ahead: 7 * day},
	{name: "command", span: 7 * day, ahead: 21 * day},
}

// minAhead is how far partitions must reach for a shard to be ready.
const minAhead = day

// start is the beginning of the partition that holds at. The zero time, from
// which Truncate counts, was a Monday.
func (t timeTable) start(at time.Time) time.Time { return at.UTC().Truncate(t.span) }

// partition is the name of the partition that begins at start.
func (t timeTable) partition(start time.Time) string {
	return fmt.Sprintf("%s_%s", t.name, start.Format("20060102"))
}

// wanted lists the beginnings of the partitions that should be there at now:
// the one before, for a clock that steps back, to ahead.
func (t timeTable) wanted(now time.Time) []time.Time {
	var starts []time.Time
	for at := t.start(now).Add(-t.span); !at.After(now.Add(t.ahead)); at = at.Add(t.span) {
		starts = append(starts, at)
	}
	return starts
}

// endedBefore lists the partitions of have that end not after before, oldest
// first. What has another form of name is left alone.
func (t timeTable) endedBefore(have map[string]bool, before time.Time) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(have)) {
		date, ok := strings.CutPrefix(name, t.name+"_")
		start, err := time.Parse("20060102", date)
		if ok && err == nil && !start.Add(t.span).After(before) {
			names = append(names, name)
		}
	}
	return names
}

// missing lists the partitions of from..to that the database does not have.
func missing(have map[string]bool, t timeTable, from, to time.Time) []string {
	var names []string
	for at := t.start(from); !at.After(to); at = at.Add(t.span) {
		if name := t.partition(at); !have[name] {
			names = append(names, name)
		}
	}
	return names
}

// querier is what a connection, a pool and a transaction can do.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// attached is the set of partitions that t has.
func attached(ctx context.Context, q querier, t timeTable) (map[string]bool, error) {
	rows, err := q.Query(ctx, `
		SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = to_regclass($1)`, t.name)
	if err != nil {
		return nil, fmt.Errorf("reading the partitions of table %s: %w", t.name, err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("reading the partitions of table %s: %w", t.name, err)
	}
	have := make(map[string]bool, len(names))
	for _, name := range names {
		have[name] = true
	}
	return have, nil
}

// ensurePartitionsNow makes a shard's partitions by the database's clock,
// which also dates the rows.
func ensurePartitionsNow(ctx context.Context, conn *pgx.Conn, shard int) error {
	var now time.Time
	if err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return fmt.Errorf("relation shard %d: reading the clock: %w", shard, err)
	}
	return ensurePartitions(ctx, conn, shard, now)
}

// partitionKey is the advisory lock of making partitions ("tdmkpart").
const partitionKey = 0x74646d6b70617274

// ensurePartitions makes the partitions that should be there at now.
func ensurePartitions(ctx context.Context, conn *pgx.Conn, shard int, now time.Time) error {
	for _, t := range timeTables {
		have, err := attached(ctx, conn, t)
		if err != nil {
			return fmt.Errorf("relation shard %d: %w", shard, err)
		}
		for _, at := range t.wanted(now) {
			if have[t.partition(at)] {
				continue
			}
			if err := makePartition(ctx, conn, t, at); err != nil {
				return fmt.Errorf("relation shard %d: making partition %s: %w", shard, t.partition(at), err)
			}
		}
	}
	return nil
}

// makePartition attaches a table that it made apart: unlike CREATE TABLE ...
// PARTITION OF, that does not lock out the writers and readers of the parent.
func makePartition(ctx context.Context, conn *pgx.Conn, t timeTable, start time.Time) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(partitionKey)); err != nil {
			return err
		}
		have, err := attached(ctx, tx, t)
		if err != nil || have[t.partition(start)] {
			return err
		}
		const bound = "2006-01-02 15:04:05+00"
		name := t.partition(start)
		// The names and bounds come from timeTables and a date.
		_, err = tx.Exec(ctx, fmt.Sprintf(`
			CREATE TABLE %[1]s (LIKE %[2]s INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
			ALTER TABLE %[2]s ATTACH PARTITION %[1]s FOR VALUES FROM ('%[3]s') TO ('%[4]s')`,
			name, t.name, start.Format(bound), start.Add(t.span).Format(bound)))
		return err
	})
}

// checkAhead says whether the partitions reach minAhead past now.
func checkAhead(ctx context.Context, q querier, now time.Time) error {
	var errs []error
	for _, t := range timeTables {
		have, err := attached(ctx, q, t)
		if err != nil {
			return err
		}
		if names := missing(have, t, now, now.Add(minAhead)); len(names) > 0 {
			errs = append(errs, fmt.Errorf("table %s has no partition %s: run `tidemark schema migrate`", t.name, names[0]))
		}
	}
	return errors.Join(errs...)
}

// isMissingPartition recognises the refusal of a row that no partition takes.
func isMissingPartition(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23514" && pg.ConstraintName == ""
}
