package relations

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// everything is where a hold begins that keeps every row.
const everything = 1

// holds lists what needs outbox rows: the slots, unproven seals, and what the
// configuration knows.
func (r *Retention) holds(ctx context.Context, conn *pgx.Conn) ([]Hold, error) {
	slots, err := slotHolds(ctx, conn)
	if err != nil {
		return nil, err
	}
	seals, err := sealHolds(ctx, conn)
	if err != nil {
		return nil, err
	}
	all := slices.Concat(slots, seals)
	if r.config.Holds == nil {
		return all, nil
	}
	more, err := r.config.Holds(ctx, r.config.Shard)
	if err != nil {
		more = []Hold{{everything, fmt.Sprintf("what else needs it cannot be told: %v", err)}}
	}
	return append(all, more...), nil
}

// slotHolds turns the confirmed position of each logical slot into an id. Rows
// below a seal's id end in the log below the position noted with the seal; so
// what is below the newest seal that a slot has confirmed is in the feed.
func slotHolds(ctx context.Context, conn *pgx.Conn) ([]Hold, error) {
	rows, err := conn.Query(ctx, `
		SELECT s.slot_name, coalesce((SELECT max(outbox_id) FROM seal WHERE lsn <= s.confirmed_flush_lsn), $1)
		FROM pg_replication_slots s WHERE s.slot_type = 'logical' AND s.database = current_database()`, everything)
	if err != nil {
		return nil, fmt.Errorf("reading the replication slots: %w", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h Hold, err error) {
		var name string
		err = row.Scan(&name, &h.FromID)
		h.Reason = fmt.Sprintf("replication slot %s has not confirmed it", name)
		return h, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the replication slots: %w", err)
	}
	if len(out) == 0 {
		return []Hold{{everything, "the database has no replication slot: its rows may not be in the change feed"}}, nil
	}
	return out, nil
}

// sealHolds keeps what the proofs of seals still have to count, and what no
// seal has settled.
func sealHolds(ctx context.Context, conn *pgx.Conn) ([]Hold, error) {
	var h Hold
	var number *int64
	err := conn.QueryRow(ctx, `
		SELECT (SELECT min(number) FROM seal WHERE NOT proven),
		       coalesce((SELECT from_id FROM seal WHERE NOT proven ORDER BY number LIMIT 1), (SELECT max(outbox_id) FROM seal), $1)`, everything).
		Scan(&number, &h.FromID)
	if err != nil {
		return nil, fmt.Errorf("reading unproven seals: %w", err)
	}
	h.Reason = "no seal has settled it"
	if number != nil {
		h.Reason = fmt.Sprintf("seal %d is not proven", *number)
	}
	return []Hold{h}, nil
}
