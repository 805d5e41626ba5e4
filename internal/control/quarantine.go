package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Origin is where a quarantined record stood when it was first set aside.
type Origin struct {
	Topic     string
	Partition int
	Offset    int64
	FirstSeen time.Time
}

// Subject names the record in the audit.
func (o Origin) Subject() string {
	return fmt.Sprintf("quarantine:%s/%d/%d", o.Topic, o.Partition, o.Offset)
}

// Decision is what became of a quarantined record.
type Decision struct {
	Origin
	Decision string // Replayed, Discarded
	At       time.Time
	Who      string
	Reason   string
	Times    int
}

// Decisions.
const (
	Replayed  = "REPLAYED"
	Discarded = "DISCARDED"
)

// Decide notes a decision, audits it, and does what was decided; when do fails,
// nothing is noted. A record can be decided on again.
func (d *DB) Decide(ctx context.Context, x Decision, do func(context.Context) error) error {
	if x.Reason == "" || x.Who == "" {
		return errors.New("a decision on a quarantined record needs who decides, and a reason")
	}
	err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			INSERT INTO quarantine_decision AS q (topic, partition, "offset", first_seen, decision, who, reason) VALUES ($1, $2, $3, $4, $5, $6, $7)
			ON CONFLICT (topic, partition, "offset", first_seen) DO UPDATE
			SET decision = $5, who = $6, reason = $7, at = clock_timestamp(), times = q.times + 1`,
			x.Topic, x.Partition, x.Offset, x.FirstSeen, x.Decision, x.Who, x.Reason)
		if err != nil {
			return err
		}
		action := map[string]string{Replayed: "quarantine.replayed", Discarded: "quarantine.discarded"}[x.Decision]
		if err := audit(ctx, tx, Entry{Who: x.Who, Action: action, Subject: x.Subject(), Reason: x.Reason}); err != nil {
			return err
		}
		if do == nil {
			return nil
		}
		return do(ctx)
	})
	if err != nil {
		return named(fmt.Errorf("deciding on a quarantined record: %w", err))
	}
	return nil
}

// Decisions lists every decision on quarantined records.
func (d *DB) Decisions(ctx context.Context) (out []Decision, err error) {
	err = d.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT topic, partition, "offset", first_seen, decision, at, who, reason, times FROM quarantine_decision`)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (x Decision, err error) {
			err = row.Scan(&x.Topic, &x.Partition, &x.Offset, &x.FirstSeen, &x.Decision, &x.At, &x.Who, &x.Reason, &x.Times)
			return x, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading decisions on quarantined records: %w", err)
	}
	return out, nil
}
