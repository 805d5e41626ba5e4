package control

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Entry is a line of the audit: who did what to what, and why.
type Entry struct {
	ID      int64          `json:"id"`
	At      time.Time      `json:"at"`
	Who     string         `json:"who"`
	Action  string         `json:"action"`  // such as gap.healed
	Subject string         `json:"subject"` // such as gap:2:4711
	Reason  string         `json:"reason,omitempty"`
	Detail  map[string]any `json:"detail,omitempty"`
}

type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Audit writes a line; ID and At are the database's.
func (d *DB) Audit(ctx context.Context, e Entry) error { return named(audit(ctx, d.pool, e)) }

// audit writes a line in the transaction of what it tells.
func audit(ctx context.Context, tx execer, e Entry) error {
	if e.Detail == nil {
		e.Detail = map[string]any{}
	}
	detail, err := json.Marshal(e.Detail)
	if err == nil {
		_, err = tx.Exec(ctx, "INSERT INTO audit (who, action, subject, reason, detail) VALUES ($1, $2, $3, $4, $5)",
			e.Who, e.Action, e.Subject, e.Reason, detail)
	}
	if err != nil {
		return fmt.Errorf("writing the audit: %w", err)
	}
	return nil
}

// audited changes something, and writes the line if that changed anything; doing
// says in an error what was tried.
func (d *DB) audited(ctx context.Context, doing string, e Entry, sql string, args ...any) (changed bool, err error) {
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		if changed = tag.RowsAffected() > 0; err != nil || !changed {
			return err
		}
		return audit(ctx, tx, e)
	})
	if err != nil {
		return false, named(fmt.Errorf("%s: %w", doing, err))
	}
	return changed, nil
}

// Entries lists the audit of a subject, or of all when it is empty, newest
// first, at most limit.
func (d *DB) Entries(ctx context.Context, subject string, limit int) (out []Entry, err error) {
	err = d.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT id, at, who, action, subject, reason, detail FROM audit
			WHERE $1 = '' OR subject = $1 ORDER BY id DESC LIMIT $2`, subject, limit)
		if err != nil {
			return fmt.Errorf("reading the audit: %w", err)
		}
		out, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Entry])
		return err
	})
	return out, err
}
