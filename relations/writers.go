package relations

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// writersSQL lists the transactions that have written to the outbox and have
// not ended.
const writersSQL = `
	SELECT virtualtransaction FROM pg_locks
	WHERE locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
	  AND relation = 'outbox'::regclass AND mode = 'RowExclusiveLock' AND granted`

const writersInterval = 5 * time.Millisecond

// AwaitWriters waits until every transaction that is writing to a shard's
// outbox now has ended, so that whoever reads the shard afterwards sees what
// the change feed has told up to now.
//
// Without it they may not: a commit is sent to the feed when it is in the log
// on disk, which is before the server takes the transaction off the list that
// snapshots are made by. A process that gets no time just then has rows in
// Kafka that no query sees. Locks are released after that. A lock that waits
// for them, as a seal's does, would keep new writers out.
func (o *Outbox) AwaitWriters(ctx context.Context, shard int) error {
	return o.ask(shard, "the writers under way", func(q *pgxpool.Pool) error { return awaitWriters(ctx, q) })
}

// awaitWriters must not be called inside of a transaction that has its snapshot.
func awaitWriters(ctx context.Context, q querier) error {
	under, err := writers(ctx, q)
	if err != nil {
		return err
	}
	tick := time.NewTicker(writersInterval)
	defer tick.Stop()
	for len(under) > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		now, err := writers(ctx, q)
		if err != nil {
			return err
		}
		for w := range under {
			if !now[w] {
				delete(under, w)
			}
		}
	}
	return nil
}

func writers(ctx context.Context, q querier) (map[string]bool, error) {
	rows, err := q.Query(ctx, writersSQL)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	under := make(map[string]bool, len(all))
	for _, w := range all {
		under[w] = true
	}
	return under, err
}
