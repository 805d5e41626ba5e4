package control

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// FeedSubject names a shard's change feed in the audit.
func FeedSubject(shard int) string { return fmt.Sprintf("cdc:%d", shard) }

// FeedPause says that an operator has paused the change feed of a shard.
type FeedPause struct {
	Shard  int
	At     time.Time
	Who    string
	Reason string
}

// PauseFeed pauses the feed of a shard, until ResumeFeed. changed is false when
// it was paused already: who did so first, and why, stays.
func (d *DB) PauseFeed(ctx context.Context, shard int, who, reason string) (changed bool, err error) {
	e := Entry{Who: who, Action: "cdc.paused", Subject: FeedSubject(shard), Reason: reason}
	return d.audited(ctx, "pausing or resuming a change feed", e, "INSERT INTO feed_pause (shard, who, reason) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", shard, who, reason)
}

// ResumeFeed lets the feed of a shard go on; changed is false when it was not
// paused.
func (d *DB) ResumeFeed(ctx context.Context, shard int, who, reason string) (changed bool, err error) {
	e := Entry{Who: who, Action: "cdc.resumed", Subject: FeedSubject(shard), Reason: reason}
	return d.audited(ctx, "pausing or resuming a change feed", e, "DELETE FROM feed_pause WHERE shard = $1", shard)
}

const pausesSQL = "SELECT shard, at, who, reason FROM feed_pause"

// FeedPauses lists which shards' feeds are paused.
func (d *DB) FeedPauses(ctx context.Context) (map[int]FeedPause, error) {
	rows, err := d.pool.Query(ctx, pausesSQL)
	if err == nil {
		var out map[int]FeedPause
		if out, err = collectPauses(rows); err == nil {
			return out, nil
		}
	}
	return nil, named(fmt.Errorf("reading which change feeds are paused: %w", err))
}

func collectPauses(rows pgx.Rows) (map[int]FeedPause, error) {
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[FeedPause])
	out := map[int]FeedPause{}
	for _, p := range list {
		out[p.Shard] = p
	}
	return out, err
}

// FeedEmitter is what an emitter said of itself.
type FeedEmitter struct {
	Shard       int
	Instance    string
	State       string
	Since       time.Time // of State
	PID         int       // of its walsender; 0: it does not stream
	Restarts    int64     // sessions that ended with an error
	LastError   string
	LastErrorAt *time.Time
	// PublishedAt: what committed before is in Kafka; nil: not known.
	PublishedAt *time.Time
	SeenAt      time.Time // set by the database
}

// An emitter that says the same again is written at most this often; one that
// Reports come every second: one that says nothing new is written only to stay
// fresh.
const reportSQL = `
	INSERT INTO feed_emitter AS e (shard, instance, state, since, pid, restarts, last_error, last_error_at, published_at)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
	ON CONFLICT (shard, instance) DO UPDATE
	SET state = $3, since = $4, pid = $5, restarts = $6, last_error = $7, last_error_at = $8, published_at = $9, seen_at = clock_timestamp()
	WHERE e.seen_at < clock_timestamp() - interval '4 seconds'
	   OR (e.state, e.since, e.pid, e.restarts, e.last_error, e.last_error_at)
	      IS DISTINCT FROM ($3, $4::timestamptz, $5::integer, $6::bigint, $7, $8::timestamptz)`

// ReportEmitters notes what emitters say of themselves, and tells in turn which
// feeds are paused. An emitter that was silent for a day is forgotten.
func (d *DB) ReportEmitters(ctx context.Context, all []FeedEmitter) (pauses map[int]FeedPause, err error) {
	var b pgx.Batch
	for _, e := range all {
		b.Queue(reportSQL, e.Shard, e.Instance, e.State, e.Since, e.PID, e.Restarts, e.LastError, e.LastErrorAt, e.PublishedAt)
	}
	b.Queue("DELETE FROM feed_emitter WHERE seen_at < clock_timestamp() - interval '1 day'")
	b.Queue(pausesSQL).Query(func(rows pgx.Rows) (err error) {
		pauses, err = collectPauses(rows)
		return err
	})
	if err := d.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, named(fmt.Errorf("reporting the change feed's emitters: %w", err))
	}
	return pauses, nil
}

// ForgetEmitters removes the emitters of an instance that ends.
func (d *DB) ForgetEmitters(ctx context.Context, instance string) error {
	_, err := d.pool.Exec(ctx, "DELETE FROM feed_emitter WHERE instance = $1", instance)
	return named(err)
}

// FeedEmitters lists the emitters that were heard within a time, by shard and
// instance.
func (d *DB) FeedEmitters(ctx context.Context, within time.Duration) ([]FeedEmitter, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT shard, instance, state, since, pid, restarts, last_error, last_error_at, published_at, seen_at FROM feed_emitter
		WHERE seen_at > clock_timestamp() - make_interval(secs => $1) ORDER BY shard, instance`, within.Seconds())
	if err == nil {
		var out []FeedEmitter
		if out, err = pgx.CollectRows(rows, pgx.RowToStructByPos[FeedEmitter]); err == nil {
			return out, nil
		}
	}
	return nil, named(fmt.Errorf("reading the change feed's emitters: %w", err))
}
