package relations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tidemark/tidemark/topology"
)

// sealLockSQL waits for the transactions that write to the outbox, and keeps
// new ones out, until the seal is committed. Afterwards every lower id is
// committed or aborted, and every higher one commits later: ids come from the
// column's default inside the INSERT, which needs the table's lock first.
const sealLockSQL = `LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE`

// sealSQL writes the seal's outbox row and its number in one statement, and
// with it the time at which the lock was there. Parameters: the shard, the
// barrier that the seal is or null.
const sealSQL = `
	WITH next AS (
	    SELECT coalesce(max(number), 0) + 1 AS number, coalesce(max(outbox_id), 0) + 1 AS from_id, clock_timestamp() AS at
	    FROM seal),
	sealed AS (
	    INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
	    SELECT '` + topology.AggregateSeal + `', 'seal:' || number, '` + topology.TypeSealed + `',
	           jsonb_strip_nulls(jsonb_build_object('seal', number, 'barrierId', $2::text,
	               'sealedAt', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))),
	           $1, at
	    FROM next
	    RETURNING id)
	INSERT INTO seal (number, outbox_id, from_id, sealed_at, lsn, barrier_id)
	SELECT number, id, from_id, at, pg_current_wal_insert_lsn(), $2 FROM next, sealed
	RETURNING number, outbox_id, sealed_at, (lsn - '0/0'::pg_lsn)::bigint`

// A sealing is what one seal took.
type sealing struct {
	number     uint64
	outboxID   int64
	at         time.Time
	lsn        uint64        // end of the log when the seal's row was written
	wait, held time.Duration // of the outbox lock, by the database's clock
}

func (s *sealing) scan(row pgx.Row) error {
	var number, lsn int64
	err := row.Scan(&number, &s.outboxID, &s.at, &lsn)
	s.number, s.lsn = uint64(number), uint64(lsn)
	return err
}

// seal is step 1, in one round trip, so that the lock is not held while a
// packet travels. The statements after the lock are a few inserts by key.
//
// The commit does not wait for the disk, nor for a synchronous standby, since
// it would with the lock held. Nothing is lost by that: the feed sends only what
// is flushed, so a seal that a crash takes back was never seen, and its number
// is free again; and the proof, which follows at once, waits for both.
func seal(ctx context.Context, conn *pgx.Conn, shard int, lockTimeout time.Duration) (sealing, error) {
	var (
		out            sealing
		asked, release time.Time
	)
	at := func(t *time.Time) func(pgx.Row) error { return func(row pgx.Row) error { return row.Scan(t) } }
	var b pgx.Batch
	b.Queue("begin")
	b.Queue(fmt.Sprintf("SET LOCAL lock_timeout = %d", lockTimeout.Milliseconds()))
	b.Queue("SET LOCAL synchronous_commit = off")
	b.Queue(clockSQL).QueryRow(at(&asked))
	b.Queue(sealLockSQL)
	b.Queue(sealSQL, shard, nil).QueryRow(out.scan)
	b.Queue("commit")
	b.Queue(clockSQL).QueryRow(at(&release))
	if err := conn.SendBatch(ctx, &b).Close(); err != nil {
		return out, fmt.Errorf("sealing the outbox: %w", err)
	}
	out.wait, out.held = out.at.Sub(asked), release.Sub(out.at)
	return out, nil
}

// isLockTimeout tells that a seal gave way to a transaction that took long.
func isLockTimeout(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03"
}

// An interval is what a seal settled: the outbox ids from..to-1.
type interval struct {
	seal     uint64
	from, to int64
}

// nextUnproven is the oldest seal without a proof row.
func nextUnproven(ctx context.Context, conn *pgx.Conn) (iv interval, found bool, err error) {
	var number int64
	err = conn.QueryRow(ctx, `
		SELECT number, from_id, outbox_id FROM seal WHERE NOT proven ORDER BY number LIMIT 1`).
		Scan(&number, &iv.from, &iv.to)
	if errors.Is(err, pgx.ErrNoRows) {
		return iv, false, nil
	}
	if err != nil {
		return iv, false, fmt.Errorf("reading unproven seals: %w", err)
	}
	iv.seal = uint64(number)
	return iv, true, nil
}

// keepSeals is how many rows of table seal stay.
const keepSeals = 100_000

// prove is step 2, without a lock, since the interval no longer changes: it
// counts the interval's relation rows and inserts the proof row.
func prove(ctx context.Context, conn *pgx.Conn, shard int, iv interval) error {
	proof, err := countInterval(ctx, conn, iv)
	if err != nil {
		return fmt.Errorf("counting the interval of seal %d: %w", iv.seal, err)
	}
	payload, err := json.Marshal(proof)
	if err != nil {
		return fmt.Errorf("writing the proof of seal %d: %w", iv.seal, err)
	}
	// Nothing is inserted when an earlier attempt's lost answer was a success.
	_, err = conn.Exec(ctx, `
		WITH proven AS (UPDATE seal SET proven = true WHERE number = $1 AND NOT proven RETURNING number),
		     old AS (DELETE FROM seal WHERE number <= $1 - $5::bigint AND proven)
		INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
		SELECT $2, 'proof:' || number, $3, $4::jsonb, $6, clock_timestamp() FROM proven`,
		int64(iv.seal), topology.AggregateProof, topology.TypeSealProven, string(payload), keepSeals, shard)
	if err != nil {
		return fmt.Errorf("writing the proof of seal %d: %w", iv.seal, err)
	}
	return nil
}

// countInterval streams the interval's event ids.
func countInterval(ctx context.Context, conn *pgx.Conn, iv interval) (topology.SealProof, error) {
	proof := topology.SealProof{Seal: iv.seal, FromID: iv.from, ToID: iv.to}
	rows, err := conn.Query(ctx, `
		SELECT coalesce(payload->>'eventId', '') FROM outbox WHERE id >= $1 AND id < $2 AND aggregatetype = $3`,
		iv.from, iv.to, topology.AggregateRelation)
	if err != nil {
		return proof, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return proof, err
		}
		proof.Rows++
		proof.XorSum ^= xxhash.Sum64String(id)
	}
	return proof, rows.Err()
}
