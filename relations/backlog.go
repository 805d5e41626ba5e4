package relations

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidemark/tidemark/internal/evidence"
)

// Seals without a place in the log are older than every one that has it. A
// seal's own row commits after its place.
const backlogSQL = `
	WITH covered AS (
	    SELECT number, outbox_id FROM seal WHERE lsn IS NULL OR lsn <= '0/0'::pg_lsn + $1 ORDER BY number DESC LIMIT 1),
	at AS (
	    SELECT coalesce(max(number), 0) AS seal, coalesce(max(outbox_id), 1) AS id FROM covered),
	late AS (
	    SELECT (SELECT sealed_at FROM seal WHERE number > at.seal ORDER BY number LIMIT 1) AS seal,
	           (SELECT created_at FROM outbox WHERE id >= at.id ORDER BY id LIMIT 1) AS row
	    FROM at)
	SELECT at.seal, at.id,
	       coalesce(extract(epoch FROM clock_timestamp() - late.seal), 0)::float8,
	       late.row IS NOT NULL, coalesce(extract(epoch FROM clock_timestamp() - late.row), 0)::float8,
	       (SELECT coalesce(sum(pg_total_relation_size(relid)), 0)::bigint FROM pg_partition_tree('outbox'))
	FROM at, late`

// Backlog tells what the outbox has beyond a position in the log. It is cheap:
// a few look-ups by key.
func (o *Outbox) Backlog(ctx context.Context, shard int, position uint64) (b evidence.Backlog, err error) {
	err = o.ask(shard, "what the change feed has not brought yet", func(q *pgxpool.Pool) error {
		var seal int64
		var behind, oldest float64
		err := q.QueryRow(ctx, backlogSQL, int64(position)).Scan(&seal, &b.FromID, &behind, &b.Rows, &oldest, &b.Bytes)
		b.Covered, b.Behind, b.Oldest = uint64(seal), seconds(behind), seconds(oldest)
		return err
	})
	return b, err
}

// seconds is an age. One below zero is of a row that was written meanwhile.
func seconds(s float64) time.Duration { return time.Duration(max(s, 0) * float64(time.Second)) }

// CountFrom counts rows of the outbox from an id on, up to limit.
func (o *Outbox) CountFrom(ctx context.Context, shard int, id, limit int64) (n int64, err error) {
	err = o.ask(shard, "how many outbox rows there are", func(q *pgxpool.Pool) error {
		return q.QueryRow(ctx, "SELECT count(*) FROM (SELECT FROM outbox WHERE id >= $1 LIMIT $2) AS counted", id, limit).Scan(&n)
	})
	return n, err
}

// Written tells whether the outbox ever had a row.
func (o *Outbox) Written(ctx context.Context, shard int) (written bool, err error) {
	err = o.ask(shard, "whether the outbox was written", func(q *pgxpool.Pool) error {
		return q.QueryRow(ctx, "SELECT is_called FROM outbox_id_seq").Scan(&written)
	})
	return written, err
}

// Parts lists the time partitions of the outbox by name.
func (o *Outbox) Parts(ctx context.Context, shard int) (parts []evidence.OutboxPart, err error) {
	err = o.ask(shard, "the partitions of the outbox", func(q *pgxpool.Pool) error {
		rows, err := q.Query(ctx, `
			SELECT c.relname, pg_total_relation_size(c.oid), c.reltuples::bigint
			FROM pg_partition_tree('outbox') t JOIN pg_class c ON c.oid = t.relid WHERE t.isleaf ORDER BY c.relname`)
		if err != nil {
			return err
		}
		parts, err = pgx.CollectRows(rows, pgx.RowToStructByPos[evidence.OutboxPart])
		return err
	})
	return parts, err
}
