package relations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The fence of the shard map. A shard stores the epoch of the one map (its id)
// whose writers it serves. Every transaction of commands holds the fence's
// lock shared from its first statement to its end, reads the epoch after that,
// and decides only commands that were routed by the map of that epoch. Fence
// takes the lock alone, so once it returns
//
//   - no transaction that an older map routed is under way, also none whose
//     process was paused before its commit,
//   - and none will write: whoever comes later reads the new epoch.
//
// An advisory lock and not FOR SHARE on the row: that would write the row's
// page, and the log, in every transaction. Lock and epoch are two statements
// because a statement sees what was committed when it began, not when its lock
// was granted; both go with the round trip that the locks of the batch need
// anyway.
const fenceKey = 0x74646d6b666e6365 // "tdmkfnce"

// errOtherMap answers a command that was routed by another map than the
// shard's. Nothing of it was written.
var errOtherMap = errors.New("its commands are routed by another shard map")

// ErrFenceBusy says that transactions did not end in time to raise a shard's
// epoch. Nothing was changed; try again.
var ErrFenceBusy = errors.New("transactions under way did not end in time")

// Fence makes a shard serve the writers of the map with id to and no others;
// its epoch must be from, or to already. Writers wait behind it for the
// transactions under way, at most for wait.
func Fence(ctx context.Context, url string, shard int, from, to uint32, wait time.Duration) error {
	conn, err := dialShard(ctx, url, shard)
	if err != nil {
		return err
	}
	defer discard(conn)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", max(1, wait.Milliseconds()))); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(fenceKey)); err != nil {
			return err
		}
		is, err := mapEpoch(ctx, tx)
		switch {
		case err != nil || is == to:
			return err
		case is != from:
			return fmt.Errorf("its map epoch is %d, not %d: somebody else changes the map", is, from)
		}
		_, err = tx.Exec(ctx, "UPDATE shard SET map_epoch = $1", int64(to))
		return err
	})
	if isLockTimeout(err) {
		err = ErrFenceBusy
	}
	if err != nil {
		return fmt.Errorf("relation shard %d: raising its map epoch: %w", shard, err)
	}
	return nil
}

// MapEpoch reads which map's writers a shard serves.
func MapEpoch(ctx context.Context, url string, shard int) (uint32, error) {
	conn, err := dialShard(ctx, url, shard)
	if err != nil {
		return 0, err
	}
	defer discard(conn)
	epoch, err := mapEpoch(ctx, conn)
	if err != nil {
		return 0, fmt.Errorf("relation shard %d: reading its map epoch: %w", shard, err)
	}
	return epoch, nil
}

func dialShard(ctx context.Context, url string, shard int) (*pgx.Conn, error) {
	config, err := parseURL(shard, url)
	if err != nil {
		return nil, err
	}
	conn, err := connect(ctx, config, shard)
	if err != nil {
		return nil, fmt.Errorf("relation shard %d: %w", shard, err)
	}
	return conn, nil
}

type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func mapEpoch(ctx context.Context, q rowQuerier) (uint32, error) {
	var epoch int64
	err := q.QueryRow(ctx, "SELECT map_epoch FROM shard").Scan(&epoch)
	return uint32(epoch), err
}
