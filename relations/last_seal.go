package relations

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// LastSeal is the number of a shard's newest committed seal; 0 before the
// first.
func (s *Store) LastSeal(ctx context.Context, shard int) (uint64, error) {
	if shard < 0 || shard >= len(s.shards) {
		return 0, fmt.Errorf("%w: there is no relation shard %d", ErrInvalid, shard)
	}
	var number int64
	err := s.shards[shard].read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT coalesce(max(number), 0) FROM seal").Scan(&number)
	})
	if err != nil {
		return 0, fmt.Errorf("reading the last seal of relation shard %d: %w", shard, err)
	}
	return uint64(number), nil
}
