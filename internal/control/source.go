package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/evidence"
)

// Source is how far a shard's feed is verified, and how it looked last.
type Source struct {
	Shard        int
	VerifiedSeal uint64
	SettledID    int64 // outbox id of that seal's row
	CDCOffset    int64
	VerifiedAt   time.Time
	Feed         *evidence.Feed // nil: never looked at
}

// FeedEvent is what someone did to a shard's slot or publication.
type FeedEvent struct {
	Shard  int
	At     time.Time // of noticing
	Cause  Cause
	Detail string
}

// SetVerified notes that a shard's feed is verified up to a seal, and how it
// looks now.
func (d *DB) SetVerified(ctx context.Context, s Source) error {
	feed, err := json.Marshal(s.Feed)
	if err == nil {
		_, err = d.pool.Exec(ctx, `
			INSERT INTO source (shard, verified_seal, settled_id, cdc_offset, feed) VALUES ($1, $2, $3, $4, nullif($5::jsonb, 'null'))
			ON CONFLICT (shard) DO UPDATE SET verified_seal = $2, settled_id = $3, cdc_offset = $4, verified_at = clock_timestamp(),
			    feed = coalesce(nullif($5::jsonb, 'null'), source.feed)`,
			s.Shard, int64(s.VerifiedSeal), s.SettledID, s.CDCOffset, feed)
	}
	if err != nil {
		return named(fmt.Errorf("noting how far shard %d is verified: %w", s.Shard, err))
	}
	return nil
}

// SetFeed notes how a shard's feed looks, and what was done to it since the
// last look.
func (d *DB) SetFeed(ctx context.Context, shard int, f evidence.Feed, events []FeedEvent) error {
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		for _, e := range events {
			if _, err := tx.Exec(ctx, "INSERT INTO feed_event (shard, cause, detail) VALUES ($1, $2, $3)", shard, e.Cause, e.Detail); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "INSERT INTO source (shard, feed) VALUES ($1, $2) ON CONFLICT (shard) DO UPDATE SET feed = $2", shard, text)
		return err
	})
	if err != nil {
		return named(fmt.Errorf("noting how the feed of shard %d looks: %w", shard, err))
	}
	return nil
}

// Source reads a shard's state; its zero value when nothing is known.
func (d *DB) Source(ctx context.Context, shard int) (Source, error) {
	s := Source{Shard: shard, CDCOffset: -1}
	var seal int64
	var feed []byte
	err := d.pool.QueryRow(ctx, "SELECT verified_seal, settled_id, cdc_offset, verified_at, feed FROM source WHERE shard = $1", shard).
		Scan(&seal, &s.SettledID, &s.CDCOffset, &s.VerifiedAt, &feed)
	if errors.Is(err, pgx.ErrNoRows) {
		return s, nil
	}
	if err == nil && feed != nil {
		err = json.Unmarshal(feed, &s.Feed)
	}
	if err != nil {
		return s, named(fmt.Errorf("reading how far shard %d is verified: %w", shard, err))
	}
	s.VerifiedSeal = uint64(seal)
	return s, nil
}

// FeedEvents lists what was done to a shard's feed since a time, newest first.
func (d *DB) FeedEvents(ctx context.Context, shard int, since time.Time) (out []FeedEvent, err error) {
	err = d.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, "SELECT shard, at, cause, detail FROM feed_event WHERE shard = $1 AND at >= $2 ORDER BY id DESC LIMIT 100", shard, since)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, pgx.RowToStructByPos[FeedEvent])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading what was done to the feed of shard %d: %w", shard, err)
	}
	return out, nil
}

// Exclusively runs do unless another process does the same thing, by name.
func (d *DB) Exclusively(ctx context.Context, what string, do func(context.Context) error) (ran bool, err error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return false, named(err)
	}
	defer conn.Release()
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(hashtextextended($1, 0))", what).Scan(&ran); err != nil || !ran {
		return false, named(err)
	}
	defer func() {
		// A lock that cannot be given back must not go back to the pool.
		if _, unlock := conn.Exec(context.WithoutCancel(ctx), "SELECT pg_advisory_unlock(hashtextextended($1, 0))", what); unlock != nil {
			_ = conn.Conn().Close(context.WithoutCancel(ctx))
		}
	}()
	return true, do(ctx)
}
