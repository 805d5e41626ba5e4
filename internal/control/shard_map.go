package control

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// A shard map is changed in three steps, so that at no moment two processes
// write with different maps: its successor is stored, every shard is fenced to
// the successor's id (relations.Fence), and only then it is activated. Between
// the last two steps nobody writes. Whoever was interrupted does the three
// again; each finds what is done already.

// StoreShardMap stores the successor of the active map, made for so many
// shards: its id is the next one. The same map again is no error.
func (d *DB) StoreShardMap(ctx context.Context, m topology.ShardMap, shards int) error {
	return named(pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		active, err := lockActiveMap(ctx, tx)
		if err != nil {
			return err
		}
		if m.ID != active+1 {
			return fmt.Errorf("shard map %d is active, so its successor is %d, not %d", active, active+1, m.ID)
		}
		if err := m.Check(shards); err != nil {
			return err
		}
		stored, _, err := loadShardMap(ctx, tx, &m.ID)
		switch {
		case err == nil && (stored.Contract != m.Contract || !slices.Equal(stored.Slots, m.Slots)):
			return fmt.Errorf("shard map %d is stored with other slots: finish that change first (`tidemark shards fence`)", m.ID)
		case err == nil:
			return nil
		case !errors.Is(err, ErrNotBootstrapped):
			return err
		}
		return storeShardMap(ctx, tx, m, shards)
	}))
}

// StoredShardMap reads a map by its id; ErrNotBootstrapped when there is none.
func (d *DB) StoredShardMap(ctx context.Context, id uint32) (m topology.ShardMap, shards int, err error) {
	err = d.read(ctx, func(tx pgx.Tx) (err error) {
		m, shards, err = loadShardMap(ctx, tx, &id)
		return err
	})
	return m, shards, err
}

// ActivateShardMap makes map to, the successor of from, the one that processes
// read. Every shard has to be fenced to it before. It is no error when to is
// active already.
func (d *DB) ActivateShardMap(ctx context.Context, from, to uint32, who, reason string) error {
	return named(pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		active, err := lockActiveMap(ctx, tx)
		switch {
		case err != nil || active == to:
			return err
		case active != from || to != from+1:
			return fmt.Errorf("shard map %d is active: %d cannot follow %d", active, to, from)
		}
		if _, err := tx.Exec(ctx, "UPDATE activation SET shard_map = $1, revision = revision + 1", int64(to)); err != nil {
			return fmt.Errorf("activating shard map %d: %w", to, err)
		}
		return audit(ctx, tx, Entry{
			Who: who, Action: "shard-map.activated", Subject: fmt.Sprintf("shard-map:%d", to), Reason: reason,
			Detail: map[string]any{"from": from},
		})
	}))
}

func lockActiveMap(ctx context.Context, tx pgx.Tx) (id uint32, err error) {
	err = tx.QueryRow(ctx, "SELECT shard_map FROM activation FOR UPDATE").Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrNotBootstrapped
	}
	return id, err
}
