package privacy

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Revision names the rules as they are now: HiddenAt answers by them at any
// later time. It waits for events that are being applied.
func (s *Store) Revision(ctx context.Context) (revision int64, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		// Behind the lock every revision up to the newest is settled.
		if _, err := tx.Exec(ctx, "LOCK TABLE privacy_account_hidden IN SHARE MODE"); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM privacy_account_hidden_revision_seq`).Scan(&revision)
	})
	if err != nil {
		return 0, fmt.Errorf("asking for the revision of the privacy rules: %w", err)
	}
	return revision, nil
}

// HiddenAt tells which of users the rules of a revision hid from everybody but
// themselves: those whose accounts were private or not active. An account that
// nobody had spoken of was neither.
func (s *Store) HiddenAt(ctx context.Context, revision int64, users []string) ([]bool, error) {
	return s.chosen(ctx, `
		SELECT place FROM unnest($2::text[]) WITH ORDINALITY AS u (id, place)
		WHERE (SELECT hidden FROM privacy_account_hidden
		       WHERE account_id = id AND revision <= $1 ORDER BY revision DESC LIMIT 1)`, revision, users)
}
