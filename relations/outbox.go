package relations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/topology"
)

// Outbox reads the shards' outboxes for those who check and heal the change
// feed. It is safe for concurrent use and connects when it is used; a
// connection that was lost is made again by the next call.
type Outbox struct{ pools []*pgxpool.Pool }

// OpenOutbox makes a reader of the shards at urls.
func OpenOutbox(urls []string) (*Outbox, error) {
	o := &Outbox{}
	for shard, url := range urls {
		pool, err := newPool(url, shard, 2)
		if err != nil {
			o.Close()
			return nil, err
		}
		o.pools = append(o.pools, pool)
	}
	return o, nil
}

// Close ends every connection.
func (o *Outbox) Close() {
	for _, p := range o.pools {
		p.Close()
	}
}

// Shards is the number of shards.
func (o *Outbox) Shards() int { return len(o.pools) }

// read runs do in one snapshot of a shard. The intervals to look at may be as
// long as an outage was.
func (o *Outbox) read(ctx context.Context, shard int, what string, do func(pgx.Tx) error) error {
	opts := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return o.ask(shard, what, func(q *pgxpool.Pool) error {
		return pgx.BeginTxFunc(ctx, q, opts, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SET LOCAL statement_timeout = '5min'; SET LOCAL idle_in_transaction_session_timeout = '5min'"); err != nil {
				return err
			}
			return do(tx)
		})
	})
}

// ask runs do, of one short statement, on a shard.
func (o *Outbox) ask(shard int, what string, do func(*pgxpool.Pool) error) error {
	if shard < 0 || shard >= len(o.pools) {
		return fmt.Errorf("%w: there is no relation shard %d", ErrInvalid, shard)
	}
	if err := do(o.pools[shard]); err != nil {
		return fmt.Errorf("relation shard %d: reading %s: %w", shard, what, err)
	}
	return nil
}

// RelationIDs lists which of ids are relation rows of the outbox.
func (o *Outbox) RelationIDs(ctx context.Context, shard int, ids idset.Ranges) (found idset.Ranges, err error) {
	err = o.eachID(ctx, shard, ids, "aggregatetype = '"+topology.AggregateRelation+"'", &found)
	return found, err
}

// PresentIDs lists which of ids are rows of the outbox, of any kind.
func (o *Outbox) PresentIDs(ctx context.Context, shard int, ids idset.Ranges) (found idset.Ranges, err error) {
	err = o.eachID(ctx, shard, ids, "true", &found)
	return found, err
}

func (o *Outbox) eachID(ctx context.Context, shard int, ids idset.Ranges, condition string, found *idset.Ranges) error {
	if len(ids) == 0 {
		return nil
	}
	return o.read(ctx, shard, "which outbox rows there are", func(tx pgx.Tx) error {
		*found = nil
		// One pass over the whole span: ids in question are dense where many
		// are, and the key is in order.
		rows, err := tx.Query(ctx, "SELECT id FROM outbox WHERE id BETWEEN $1 AND $2 AND "+condition+" ORDER BY id", ids[0].From, ids[len(ids)-1].To)
		if err != nil {
			return err
		}
		var id int64
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			if ids.Contains(id) {
				*found = found.Append(id)
			}
			return nil
		})
		return err
	})
}

// Events visits the relation rows with ids from..to: the id of each, and of its
// event. first is the lowest id of the outbox; 0 when it is empty.
func (o *Outbox) Events(ctx context.Context, shard int, from, to int64, visit func(id int64, event string) error) (first int64, err error) {
	err = o.read(ctx, shard, "events of the outbox", func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT coalesce(min(id), 0) FROM outbox").Scan(&first); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT id, coalesce(payload->>'eventId', '') FROM outbox WHERE id BETWEEN $1 AND $2 AND aggregatetype = $3 ORDER BY id",
			from, to, topology.AggregateRelation)
		if err != nil {
			return err
		}
		var id int64
		var event string
		_, err = pgx.ForEachRow(rows, []any{&id, &event}, func() error { return visit(id, event) })
		return err
	})
	return first, err
}

// Rows visits the relation rows among ids, in order. It stops at visit's first
// error.
func (o *Outbox) Rows(ctx context.Context, shard int, ids idset.Ranges, visit func(topology.OutboxRow) error) error {
	if len(ids) == 0 {
		return nil
	}
	return o.read(ctx, shard, "outbox rows", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT id, aggregatetype, aggregateid, type, payload::text, source_shard, created_at
			FROM outbox WHERE id BETWEEN $1 AND $2 AND aggregatetype = $3 ORDER BY id`,
			ids[0].From, ids[len(ids)-1].To, topology.AggregateRelation)
		if err != nil {
			return err
		}
		var r topology.OutboxRow
		var at time.Time
		_, err = pgx.ForEachRow(rows, []any{&r.ID, &r.AggregateType, &r.AggregateID, &r.Type, &r.Payload, &r.SourceShard, &at}, func() error {
			if !ids.Contains(r.ID) {
				return nil
			}
			r.CreatedAt = at.UTC().Format("2006-01-02T15:04:05.000000Z")
			return visit(r)
		})
		return err
	})
}

// Seals lists the seals that settled the ids from..to, as far as they are kept.
func (o *Outbox) Seals(ctx context.Context, shard int, from, to int64) (out []evidence.Seal, err error) {
	err = o.read(ctx, shard, "seals", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT number, from_id, outbox_id, sealed_at FROM seal
			WHERE outbox_id > $1 AND from_id <= $2 ORDER BY number`, from, to)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s evidence.Seal, err error) {
			var number int64
			err = row.Scan(&number, &s.FromID, &s.ToID, &s.SealedAt)
			s.Seal = uint64(number)
			return s, err
		})
		return err
	})
	return out, err
}

// Proofs lists the proofs of the seals first..last, as far as their rows are in
// the outbox; those have ids above from.
func (o *Outbox) Proofs(ctx context.Context, shard int, from int64, first, last uint64) (out []topology.SealProof, err error) {
	err = o.read(ctx, shard, "proofs of seals", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT payload FROM outbox
			WHERE id > $1 AND aggregatetype = $2 AND (payload->>'seal')::numeric BETWEEN $3 AND $4 ORDER BY id`,
			from, topology.AggregateProof, int64(first), int64(last))
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, pgx.RowTo[topology.SealProof])
		return err
	})
	return out, err
}

// Deleted lists the rows among ids that someone deleted by hand.
func (o *Outbox) Deleted(ctx context.Context, shard int, ids idset.Ranges) ([]evidence.Deleted, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	all, err := o.deleted(ctx, shard, "id BETWEEN $1 AND $2", ids[0].From, ids[len(ids)-1].To)
	var out []evidence.Deleted
	for _, d := range all {
		if ids.Contains(d.ID) {
			out = append(out, d)
		}
	}
	return out, err
}

// UnnamedDeletions lists at most 1000 rows up to an id that someone deleted by
// hand and that NameDeletions has not been told of.
func (o *Outbox) UnnamedDeletions(ctx context.Context, shard int, upTo int64) ([]evidence.Deleted, error) {
	return o.deleted(ctx, shard, "NOT named AND id <= $1 ORDER BY id LIMIT 1000", upTo)
}

func (o *Outbox) deleted(ctx context.Context, shard int, condition string, args ...any) (out []evidence.Deleted, err error) {
	err = o.ask(shard, "deleted outbox rows", func(q *pgxpool.Pool) error {
		rows, err := q.Query(ctx, "SELECT id, aggregatetype, aggregateid, deleted_at, deleted_by FROM outbox_deleted WHERE "+condition, args...)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, pgx.RowToStructByPos[evidence.Deleted])
		return err
	})
	return out, err
}

// NameDeletions notes that gaps have these deleted rows.
func (o *Outbox) NameDeletions(ctx context.Context, shard int, ids idset.Ranges) error {
	_, err := o.pools[shard].Exec(ctx, "UPDATE outbox_deleted SET named = true WHERE id <@ $1::text::int8multirange AND NOT named", ids.Multirange())
	if err != nil {
		return fmt.Errorf("relation shard %d: noting deleted outbox rows as named: %w", shard, err)
	}
	return nil
}

// Fact reads a relation as it is now; ok is false when it never was.
func (o *Outbox) Fact(ctx context.Context, shard int, r topology.Relation) (f evidence.Fact, ok bool, err error) {
	err = o.read(ctx, shard, "a relation", func(tx pgx.Tx) error {
		row := tx.QueryRow(ctx, `
			SELECT `+factSQL+` FROM relation r
			WHERE user_id = $1 AND kind = $2 AND target_id = $3`, r.User, int16(r.Kind), r.Target)
		have, err := scanFact(row)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		f, ok = evidence.Fact(have), err == nil
		return err
	})
	return f, ok, err
}

// FactsChanged visits every relation whose newest version was written in
// from..to, also one with the state of the version before. It reads the whole
// table: for repairs only.
func (o *Outbox) FactsChanged(ctx context.Context, shard int, from, to time.Time, visit func(evidence.Fact) error) error {
	return o.read(ctx, shard, "relations by time", func(tx pgx.Tx) error {
		return streamFacts(ctx, tx, func(f Fact) error { return visit(evidence.Fact(f)) }, "WHERE r.updated_at BETWEEN $1 AND $2", from, to)
	})
}

const feedSQL = `
	SELECT current_database(), (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint,
	       s.slot_name IS NOT NULL, coalesce((s.confirmed_flush_lsn - '0/0'::pg_lsn)::bigint, 0), coalesce(t.total_txns, -1),
	       coalesce((SELECT concat_ws(' ', p.oid, p.xmin, (
	           SELECT string_agg(concat_ws(' ', r.oid, r.xmin), ',' ORDER BY r.oid) FROM pg_publication_rel r WHERE r.prpubid = p.oid))
	        FROM pg_publication p WHERE p.pubname = $2), '')
	FROM (SELECT 1) AS one
	LEFT JOIN pg_replication_slots s ON s.slot_name = $1
	LEFT JOIN pg_stat_replication_slots t ON t.slot_name = $1`

// Feed tells what stands between a shard's outbox and its change feed.
func (o *Outbox) Feed(ctx context.Context, shard int, slot, publication string) (f evidence.Feed, err error) {
	err = o.ask(shard, "the state of the change feed", func(q *pgxpool.Pool) error {
		var lsn, confirmed int64
		err := q.QueryRow(ctx, feedSQL, slot, publication).
			Scan(&f.Database, &lsn, &f.SlotExists, &confirmed, &f.Transactions, &f.Publication)
		f.LSN, f.Confirmed, f.Publication = uint64(lsn), uint64(confirmed), strings.TrimSpace(f.Publication)
		return err
	})
	return f, err
}
