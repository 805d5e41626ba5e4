package control

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// OverloadSubject names the overload level in the audit.
const OverloadSubject = "overload"

// OverloadReport is the level that a process has gone to by itself. Levels are
// those of internal/overload.
type OverloadReport struct {
	Instance string        `json:"instance"`
	Level    int           `json:"level"`
	Why      string        `json:"why"`
	Silent   time.Duration `json:"silent"` // since it was last said, by the database's clock
}

// OverloadOrder is the level that an operator wants of all processes.
type OverloadOrder struct {
	Level  int       `json:"level"`
	Who    string    `json:"who"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// ReportOverload says what level a process is at.
func (d *DB) ReportOverload(ctx context.Context, instance string, level int, why string) error {
	_, err := d.pool.Exec(ctx, `
		INSERT INTO overload_report (instance, level, why) VALUES ($1, $2, $3)
		ON CONFLICT (instance) DO UPDATE SET level = excluded.level, why = excluded.why, seen_at = clock_timestamp()`, instance, level, why)
	if err != nil {
		return named(fmt.Errorf("saying the overload level: %w", err))
	}
	return nil
}

// Overload is what processes have said within silence, and what an operator
// wants; order nil: processes decide.
func (d *DB) Overload(ctx context.Context, silence time.Duration) (reports []OverloadReport, order *OverloadOrder, err error) {
	err = d.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT instance, level::int, why, clock_timestamp() - seen_at AS silent FROM overload_report
			WHERE clock_timestamp() - seen_at <= $1 ORDER BY instance`, silence)
		if err == nil {
			reports, err = pgx.CollectRows(rows, pgx.RowToStructByPos[OverloadReport])
		}
		if err != nil {
			return fmt.Errorf("reading overload levels: %w", err)
		}
		rows, err = tx.Query(ctx, "SELECT level::int, who, reason, at FROM overload_order")
		var orders []OverloadOrder
		if err == nil {
			orders, err = pgx.CollectRows(rows, pgx.RowToStructByPos[OverloadOrder])
		}
		if err != nil {
			return fmt.Errorf("reading the overload order: %w", err)
		}
		if len(orders) == 1 {
			order = &orders[0]
		}
		return nil
	})
	return reports, order, err
}

// OrderOverload sets the level of all processes until FreeOverload.
func (d *DB) OrderOverload(ctx context.Context, level int, name, who, reason string) error {
	e := Entry{Who: who, Action: "overload.ordered", Subject: OverloadSubject, Reason: reason, Detail: map[string]any{"level": name}}
	_, err := d.audited(ctx, "ordering an overload level", e, `
		INSERT INTO overload_order (level, who, reason) VALUES ($1, $2, $3)
		ON CONFLICT (only_one) DO UPDATE SET level = excluded.level, who = excluded.who, reason = excluded.reason, at = clock_timestamp()`, level, who, reason)
	return err
}

// FreeOverload lets processes decide again; changed is false when they did.
func (d *DB) FreeOverload(ctx context.Context, who, reason string) (changed bool, err error) {
	e := Entry{Who: who, Action: "overload.freed", Subject: OverloadSubject, Reason: reason}
	return d.audited(ctx, "freeing the overload level", e, "DELETE FROM overload_order")
}
