package cdc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Inspection is how a shard's slot and publication are, seen from outside.
type Inspection struct {
	Slot SlotStatus

	PublicationExists bool
	// PublicationError says why not all of the outbox's inserts, or more than
	// them, are published, and what to do; nil: it is as it should be.
	PublicationError error
}

// SlotStatus is a replication slot as its server shows it.
type SlotStatus struct {
	Name   string
	Exists bool
	// Unusable says why the slot cannot feed the shard; nil: it can.
	Unusable  error
	WALStatus string // reserved, extended, unreserved, lost
	// Making: a process is creating the slot right now; it has no position yet.
	Making bool
	// Confirmed is the position up to which the reader has said to have
	// everything; LagBytes of WAL lie beyond it, RetainedBytes the slot keeps.
	Confirmed, ServerLSN    pglogrepl.LSN
	LagBytes, RetainedBytes int64
	// SafeBytes is how much WAL may still be written before the slot is in
	// danger; below 0: no limit is set.
	SafeBytes int64
	// Reader has the slot; nil: nobody.
	Reader *SlotReader
}

// SlotReader is the process that has a slot.
type SlotReader struct {
	PID         int       // of its walsender
	Application string    // application_name
	Client      string    // address; "" over a Unix socket
	Since       time.Time // when it connected
}

const inspectQuery = `
SELECT w.pos::text, coalesce(pg_wal_lsn_diff(w.pos, s.confirmed_flush_lsn), 0)::bigint,
       coalesce(pg_wal_lsn_diff(w.pos, s.restart_lsn), 0)::bigint, coalesce(s.safe_wal_size, -1),
       coalesce(s.active_pid, 0)::int, coalesce(a.application_name, ''), coalesce(host(a.client_addr), ''),
       coalesce(a.backend_start, clock_timestamp())
FROM pg_replication_slots s
LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid,
     (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END AS pos) w
WHERE s.slot_name = $1`

// Inspect looks at a slot and at the publication of the outbox.
func Inspect(ctx context.Context, url, slot, publication string) (Inspection, error) {
	i := Inspection{Slot: SlotStatus{Name: slot, SafeBytes: -1}}
	conn, err := dialSQL(ctx, url, "tidemark cdc status "+slot)
	if err != nil {
		return i, err
	}
	defer closeSQL(conn)
	if i.Slot, err = inspectSlot(ctx, conn, slot); err != nil {
		return i, err
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)", publication).Scan(&i.PublicationExists)
	if err != nil {
		return i, fmt.Errorf("reading publication %s: %w", publication, err)
	}
	others, err := checkPublication(ctx, conn, publication, defaultSchema, defaultTable)
	switch {
	case errors.Is(err, ErrPublication):
		i.PublicationError = err
	case err != nil:
		return i, err
	case others:
		i.PublicationError = fmt.Errorf("publication %s also publishes updates, deletes or truncates, which are not passed on: run ALTER PUBLICATION %s SET (publish = 'insert')", publication, publication)
	}
	return i, nil
}

func inspectSlot(ctx context.Context, conn *pgx.Conn, name string) (SlotStatus, error) {
	out := SlotStatus{Name: name, SafeBytes: -1}
	facts, err := readServerFacts(ctx, conn)
	if err != nil {
		return out, err
	}
	s, err := lookUpSlot(ctx, conn, name)
	if err != nil || s == nil {
		return out, err
	}
	out.Exists, out.WALStatus, out.Unusable = true, s.walStatus, s.check(name, facts.database)
	if s.confirmed == nil {
		out.Making = out.Unusable == nil
	} else {
		out.Confirmed = *s.confirmed
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	var server string
	var r SlotReader
	err = conn.QueryRow(ctx, inspectQuery, name).
		Scan(&server, &out.LagBytes, &out.RetainedBytes, &out.SafeBytes, &r.PID, &r.Application, &r.Client, &r.Since)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // dropped since the first look
		return SlotStatus{Name: name, SafeBytes: -1}, nil
	case err != nil:
		return out, fmt.Errorf("reading slot %s: %w", name, err)
	}
	if r.PID != 0 {
		out.Reader = &r
	}
	out.ServerLSN, err = pglogrepl.ParseLSN(server)
	return out, err
}
