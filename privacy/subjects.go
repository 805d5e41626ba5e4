package privacy

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// subjects reads what events said last, in the order of keys. It is one round
// trip, and one snapshot for each sort.
func (s *Store) subjects(ctx context.Context, keys []subjectKey) ([]subject, error) {
	var places [sorts][]int
	var a, b [sorts][]string
	for i, k := range keys {
		places[k.sort] = append(places[k.sort], i)
		a[k.sort], b[k.sort] = append(a[k.sort], k.a), append(b[k.sort], k.b)
	}
	out := make([]subject, len(keys))
	var batch pgx.Batch
	queue := func(of sort, sql string, scan func(pgx.Rows) (int64, subject, error), args ...any) {
		if len(places[of]) == 0 {
			return
		}
		batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				at, found, err := scan(rows)
				if err != nil {
					return err
				}
				found.known = true
				out[places[of][at-1]] = found
			}
			return rows.Err()
		})
	}
	queue(ofAccount, `
		SELECT place, status FROM unnest($1::text[]) WITH ORDINALITY AS s (id, place)
		JOIN privacy_account ON account_id = id`,
		func(rows pgx.Rows) (at int64, v subject, err error) {
			err = rows.Scan(&at, &v.account)
			return at, v, err
		}, a[ofAccount])
	queue(ofVideo, `
		SELECT place, status, author_id FROM unnest($1::text[]) WITH ORDINALITY AS s (id, place)
		JOIN privacy_video ON video_id = id`,
		func(rows pgx.Rows) (at int64, v subject, err error) {
			err = rows.Scan(&at, &v.video, &v.author)
			return at, v, err
		}, a[ofVideo])
	queue(ofPair, `
		SELECT place, active FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS s (a, b, place)
		CROSS JOIN LATERAL (
		    SELECT active FROM privacy_block WHERE blocker_id = a AND blocked_id = b AND active
		    UNION ALL
		    SELECT active FROM privacy_block WHERE blocker_id = b AND blocked_id = a AND active
		    LIMIT 1) AS block`,
		func(rows pgx.Rows) (at int64, v subject, err error) {
			err = rows.Scan(&at, &v.blocked)
			return at, v, err
		}, a[ofPair], b[ofPair])
	if err := s.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("reading accounts, videos and blocks: %w", err)
	}
	return out, nil
}
