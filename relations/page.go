package relations

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidemark/tidemark/topology"
)

// Relations gives a shard's relations behind one, in the order of their primary
// key, at most limit; none when there are no more. Each page is of its own
// moment.
func (o *Outbox) Relations(ctx context.Context, shard int, after topology.Relation, limit int) (page []Fact, err error) {
	err = o.ask(shard, "a page of relations", func(q *pgxpool.Pool) error {
		rows, err := q.Query(ctx, `
			SELECT `+factSQL+` FROM relation r
			WHERE (user_id, kind, target_id) > ($1, $2, $3) ORDER BY user_id, kind, target_id LIMIT $4`,
			after.User, int16(after.Kind), after.Target, limit)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (Fact, error) { return scanFact(row) })
		return err
	})
	return page, err
}

// Extent tells about how many relations a shard has, as its statistics say, and
// its newest seal, 0 before the first.
func (o *Outbox) Extent(ctx context.Context, shard int) (relations int64, seal uint64, err error) {
	err = o.ask(shard, "how many relations there are", func(q *pgxpool.Pool) error {
		return q.QueryRow(ctx, `
			SELECT greatest(0, (SELECT reltuples::bigint FROM pg_class WHERE oid = 'relation'::regclass)), coalesce(max(number), 0) FROM seal`).Scan(&relations, &seal)
	})
	return relations, seal, err
}
