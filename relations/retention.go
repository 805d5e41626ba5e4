package relations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/pause"
)

// RetentionConfig says which time partitions of a shard go, and when. Zero
// values take the defaults that are named.
type RetentionConfig struct {
	Shard int
	URL   string // the shard's PostgreSQL
	// Outbox and Commands are how long rows stay at the least: 7 days each.
	Outbox, Commands time.Duration
	// Holds tells what else needs outbox rows; nil: nothing. What it cannot
	// tell holds everything.
	Holds func(ctx context.Context, shard int) ([]Hold, error)
	// Report is told after each look what keeps partitions that are older than
	// their retention; "" when nothing does. Optional.
	Report func(detail string)
	// Paused tells that no partition is to be dropped now; nil: none ever is. What
	// stays is dropped later.
	Paused func() bool
	// Interval between two looks: 10 min.
	Interval   time.Duration
	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil: no metrics
}

// A Hold says that outbox rows with ids from FromID on are still needed.
type Hold struct {
	FromID int64
	Reason string
}

// Retention drops time partitions of a shard. A partition of the outbox goes
// when all of it is older than the retention, every replication slot of the
// database has confirmed it, every seal over it is proven, and no Hold needs
// it; one of table command when all of it is older than its retention. Rows
// are never deleted one by one. Any number may run for a shard; one works at a
// time.
type Retention struct {
	config  RetentionConfig
	conn    *pgx.ConnConfig
	log     *slog.Logger
	metrics *retentionMetrics
}

// NewRetention makes a Retention; Run starts it.
func NewRetention(c RetentionConfig) (*Retention, error) {
	orDefault := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	orDefault(&c.Outbox, 7*day)
	orDefault(&c.Commands, 7*day)
	orDefault(&c.Interval, 10*time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Report == nil {
		c.Report = func(string) {}
	}
	if c.Outbox < 0 || c.Commands < 0 || c.Interval < 0 {
		return nil, fmt.Errorf("retention of relation shard %d: outbox %v, commands %v and interval %v must be above 0", c.Shard, c.Outbox, c.Commands, c.Interval)
	}
	conn, err := parseURL(c.Shard, c.URL)
	if err != nil {
		return nil, err
	}
	m, err := newRetentionMetrics(c.Registerer, c.Shard)
	if err != nil {
		return nil, err
	}
	return &Retention{config: c, conn: conn, metrics: m, log: c.Logger.With("component", "retention", "shard", c.Shard)}, nil
}

// retentionKey is the session lock of a shard's retention ("tdmkdrop").
const retentionKey = 0x74646d6b64726f70

// Run looks every interval, sooner after a failure, until ctx ends; it returns
// nil then.
func (r *Retention) Run(ctx context.Context) error {
	failing := false
	for {
		if !pause.While(ctx, r.config.Paused) {
			return nil
		}
		err := r.look(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wait := r.config.Interval
		if err != nil && !errors.Is(err, errStandby) {
			wait = min(wait, 10*time.Second)
			if !failing {
				r.log.Warn("old partitions cannot be looked at", "error", err)
			}
			r.config.Report(err.Error())
		}
		failing = err != nil && !errors.Is(err, errStandby)
		if !pause.For(ctx, wait) {
			return nil
		}
	}
}

// look drops what may go and reports what may not.
func (r *Retention) look(ctx context.Context) error {
	conn, err := connect(ctx, r.conn, r.config.Shard)
	if err != nil {
		return err
	}
	defer discard(conn)
	var mine bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(retentionKey)).Scan(&mine); err != nil {
		return fmt.Errorf("taking the retention's lock: %w", err)
	}
	if !mine {
		return errStandby
	}
	var now time.Time
	if err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now); err != nil {
		return fmt.Errorf("reading the clock: %w", err)
	}
	return r.sweep(ctx, conn, now)
}

// sweep treats the partitions as of now.
func (r *Retention) sweep(ctx context.Context, conn *pgx.Conn, now time.Time) error {
	holds, err := r.holds(ctx, conn)
	if err != nil {
		return err
	}
	var kept []string
	for _, t := range timeTables {
		age := r.config.Outbox
		if t.name == "command" {
			age = r.config.Commands
		}
		reasons, err := r.sweepTable(ctx, conn, t, now.Add(-age), holds)
		if err != nil {
			return err
		}
		r.metrics.overdue.WithLabelValues(t.name).Set(float64(len(reasons)))
		kept = append(kept, reasons...)
	}
	if len(kept) > 0 {
		r.log.Warn("partitions older than their retention have to stay", "why", strings.Join(kept, "; "))
	}
	r.config.Report(strings.Join(kept, "; "))
	return r.trimTrail(ctx, conn, now)
}

// sweepTable drops a table's partitions that end before and may go, and says
// why the others have to stay.
func (r *Retention) sweepTable(ctx context.Context, conn *pgx.Conn, t timeTable, before time.Time, holds []Hold) (kept []string, err error) {
	have, err := attached(ctx, conn, t)
	if err != nil {
		return nil, err
	}
	for _, p := range t.endedBefore(have, before) {
		reason := ""
		if t.name == "outbox" {
			if reason, err = r.held(ctx, conn, p, holds); err != nil {
				return kept, err
			}
		}
		if reason == "" {
			reason, err = r.drop(ctx, conn, t, p)
			if err != nil {
				return kept, err
			}
		}
		if reason != "" {
			kept = append(kept, fmt.Sprintf("%s stays: %s", p, reason))
		}
	}
	return kept, nil
}

// held says why an outbox partition is still needed; "" when it is not.
func (r *Retention) held(ctx context.Context, conn *pgx.Conn, partition string, holds []Hold) (string, error) {
	var last int64 // an empty partition holds nothing
	err := conn.QueryRow(ctx, fmt.Sprintf("SELECT coalesce(max(id), 0) FROM %s", pgx.Identifier{partition}.Sanitize())).Scan(&last)
	if err != nil {
		return "", fmt.Errorf("reading the last id of partition %s: %w", partition, err)
	}
	for _, h := range holds {
		if last >= h.FromID && last > 0 {
			return h.Reason, nil
		}
	}
	return "", nil
}

// dropLockTimeout is how long a drop may wait for the table, and writers behind
// it, before it is tried again at the next look.
const dropLockTimeout = 50 * time.Millisecond

// drop needs the whole table for a moment. The file goes after the lock.
func (r *Retention) drop(ctx context.Context, conn *pgx.Conn, t timeTable, partition string) (reason string, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d; DROP TABLE %s", dropLockTimeout.Milliseconds(), pgx.Identifier{partition}.Sanitize()))
		return err
	})
	switch {
	case isLockTimeout(err):
		return "a transaction is using table " + t.name + "; tried again at the next look", nil
	case err != nil:
		return "", fmt.Errorf("dropping partition %s: %w", partition, err)
	}
	r.metrics.dropped.WithLabelValues(t.name).Inc()
	r.log.Info("dropped a partition that is older than its retention", "partition", partition)
	return "", nil
}

// trimTrail forgets deleted rows whose gaps are as old as the outbox's rows.
func (r *Retention) trimTrail(ctx context.Context, conn *pgx.Conn, now time.Time) error {
	if _, err := conn.Exec(ctx, "DELETE FROM outbox_deleted WHERE named AND deleted_at < $1", now.Add(-r.config.Outbox)); err != nil {
		return fmt.Errorf("trimming the trail of deleted outbox rows: %w", err)
	}
	return nil
}

type retentionMetrics struct {
	overdue *prometheus.GaugeVec
	dropped *prometheus.CounterVec
}

func newRetentionMetrics(reg prometheus.Registerer, shard int) (*retentionMetrics, error) {
	label := shardLabel(shard)
	m := &retentionMetrics{
		overdue: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: metricPrefix + "partitions_overdue", Help: "Time partitions older than their retention that have to stay.", ConstLabels: label,
		}, []string{"table"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "partitions_dropped_total", Help: "Time partitions dropped after their retention.", ConstLabels: label,
		}, []string{"table"}),
	}
	for _, t := range timeTables {
		m.overdue.WithLabelValues(t.name)
		m.dropped.WithLabelValues(t.name)
	}
	return m, register(reg, m.overdue, m.dropped)
}
