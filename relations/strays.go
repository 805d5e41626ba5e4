package relations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// usersSQL walks the users of the relation table one index look-up each.
const usersSQL = `
	WITH RECURSIVE users (id) AS (
	    (SELECT user_id FROM relation ORDER BY user_id LIMIT 1)
	    UNION ALL
	    SELECT (SELECT user_id FROM relation WHERE user_id > users.id ORDER BY user_id LIMIT 1)
	    FROM users WHERE users.id IS NOT NULL)
	SELECT id FROM users WHERE id IS NOT NULL LIMIT $1`

// Strays looks through at most limit users that have facts on a shard and lists
// those whom shardOf puts elsewhere: nobody finds their relations there.
func Strays(ctx context.Context, url string, shard int, shardOf func(user string) int, limit int) (strays []string, looked int, err error) {
	conn, err := dialShard(ctx, url, shard)
	if err != nil {
		return nil, 0, err
	}
	defer discard(conn)
	rows, err := conn.Query(ctx, usersSQL, limit)
	if err == nil {
		var user string
		_, err = pgx.ForEachRow(rows, []any{&user}, func() error {
			looked++
			if shardOf(user) != shard {
				strays = append(strays, user)
			}
			return nil
		})
	}
	if err != nil {
		return nil, 0, fmt.Errorf("relation shard %d: looking for users who belong elsewhere: %w", shard, err)
	}
	return strays, looked, nil
}
