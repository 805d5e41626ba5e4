package cdc

import (
	"context"
	"errors"
)

// Errors that Run or EnsureSlot return, wrapped with shard, slot and what to
// do. The first two are fatal: trying again cannot help and going on could
// lose facts, so a person decides.
var (
	// ErrSlotVanished: the slot does not exist although the partition has
	// records, so what was committed since the last record may be missing.
	ErrSlotVanished = errors.New("the replication slot has vanished")
	// ErrSlotUnusable: a slot of that name exists but cannot feed this shard:
	// another plugin or database, physical, temporary, never finished, or its
	// WAL was removed.
	ErrSlotUnusable = errors.New("the replication slot cannot be used")

	// ErrSlotBlocked: creating the slot waited too long for an older
	// transaction.
	ErrSlotBlocked = errors.New("creating the replication slot is blocked by an older transaction")
	// ErrPublication: the publication does not publish the outbox's inserts.
	ErrPublication = errors.New("the publication does not publish the outbox")
	// ErrSlotInUse: the slot cannot be dropped while someone reads it.
	ErrSlotInUse = errors.New("the replication slot is in use")
	// ErrOutboxShape: the outbox lacks a column or has one of another type.
	ErrOutboxShape = errors.New("the outbox is not as expected")
	// ErrProtocol: PostgreSQL sent what its protocol does not allow here.
	ErrProtocol = errors.New("unexpected replication message")
)

// fatal tells whether a session's error ends Run.
func fatal(err error) bool {
	return errors.Is(err, ErrSlotVanished) || errors.Is(err, ErrSlotUnusable)
}

// errInterrupted: the reader was told to stop.
var errInterrupted = errors.New("interrupted")

func ended(ctx context.Context) bool { return ctx.Err() != nil }
