package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

const monitorQuery = `
SELECT w.pos::text, s.confirmed_flush_lsn::text, pg_wal_lsn_diff(w.pos, s.restart_lsn)::bigint
FROM pg_replication_slots s,
     (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS pos) w
WHERE s.slot_name = $1`

// monitor looks at the slot from outside, on a connection of its own, until
// ctx ends: how much WAL it holds matters most while nothing streams or Kafka
// takes nothing, when the stream itself tells nothing.
func (e *Emitter) monitor(ctx context.Context) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			closeSQL(conn)
		}
	}()
	for {
		if conn == nil {
			conn, _ = dialSQL(ctx, e.cfg.URL, fmt.Sprintf("tidemark cdc monitor %d", e.cfg.Shard)) // sessions report what is wrong
		}
		if conn != nil {
			if err := e.look(ctx, conn); err != nil {
				closeSQL(conn)
				conn = nil
			}
		}
		if wait(ctx, e.cfg.MonitorInterval) != nil {
			return
		}
	}
}

func (e *Emitter) look(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	now := time.Now() // before the log's end is read: see sample
	var server string
	var confirmed *string
	var retained *int64
	err := conn.QueryRow(ctx, monitorQuery, e.cfg.Slot).Scan(&server, &confirmed, &retained)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && (confirmed == nil || retained == nil) {
		return nil // no slot yet
	}
	if err != nil {
		return fmt.Errorf("reading the slot's lag: %w", err)
	}
	at, err := pglogrepl.ParseLSN(server)
	if err != nil {
		return err
	}
	upTo, err := pglogrepl.ParseLSN(*confirmed)
	if err != nil {
		return err
	}
	position := e.board.sawSlot(sample{now, at}, upTo, *retained)
	if e.cfg.Backlog == nil {
		return nil
	}
	l, err := e.cfg.Backlog(ctx, position)
	if err != nil {
		return fmt.Errorf("reading what the outbox has beyond %s: %w", position, err)
	}
	e.board.sawBacklog(l, now)
	return nil
}
