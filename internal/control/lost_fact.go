package control

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/idset"
)

// LostFact is a version of a relation that was counted and that its shard has
// lost since, in a failover or by a restore.
type LostFact struct {
	OutboxID int64 // of the row that the outbox had
	EventID  string
	Relation string // key
	Version  uint64
}

// AddLostFacts notes facts that a shard has lost; those that are known already
// change nothing.
func (d *DB) AddLostFacts(ctx context.Context, shard int, facts []LostFact) error {
	var b pgx.Batch
	for _, f := range facts {
		b.Queue(`INSERT INTO lost_fact (shard, event_id, outbox_id, relation, version) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING`,
			shard, f.EventID, f.OutboxID, f.Relation, int64(f.Version))
	}
	if err := d.pool.SendBatch(ctx, &b).Close(); err != nil {
		return named(fmt.Errorf("noting facts that shard %d has lost: %w", shard, err))
	}
	return nil
}

// LostFacts lists the lost facts whose outbox rows had these ids, by relation,
// the newest version of each first.
func (d *DB) LostFacts(ctx context.Context, shard int, ids idset.Ranges) (out []LostFact, err error) {
	rows, err := d.pool.Query(ctx, `
		SELECT outbox_id, event_id, relation, version FROM lost_fact
		WHERE shard = $1 AND outbox_id <@ $2::text::int8multirange ORDER BY relation, version DESC`, shard, ids.Multirange())
	if err == nil {
		out, err = pgx.CollectRows(rows, pgx.RowToStructByPos[LostFact])
	}
	if err != nil {
		return nil, named(fmt.Errorf("reading facts that shard %d has lost: %w", shard, err))
	}
	return out, nil
}
