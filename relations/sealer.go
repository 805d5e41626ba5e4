package relations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/pause"
)

// SealerConfig says which shard a Sealer seals. Zero values take the defaults
// that are named.
type SealerConfig struct {
	Shard int
	URL   string // the shard's PostgreSQL
	// Interval between two seals: 2 s.
	Interval time.Duration
	// LockTimeout is how long a seal may wait for the outbox, and writers
	// behind it, before it is tried later: 50 ms.
	LockTimeout time.Duration
	Logger      *slog.Logger          // nil discards
	Registerer  prometheus.Registerer // nil: no metrics
}

// A Sealer writes a shard's seals, numbered 1, 2, 3, ..., each followed by its
// proof. Any number of sealers may run for a shard; a session lock lets one
// work and the others stand by.
type Sealer struct {
	config  SealerConfig
	conn    *pgx.ConnConfig
	log     *slog.Logger
	metrics *sealMetrics
}

// NewSealer makes a Sealer; Run starts it.
func NewSealer(c SealerConfig) (*Sealer, error) {
	if c.Interval == 0 {
		c.Interval = 2 * time.Second
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = 50 * time.Millisecond
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Interval < time.Millisecond || c.LockTimeout < time.Millisecond {
		return nil, fmt.Errorf("sealer of relation shard %d: interval %v and lock timeout %v must be at least 1ms", c.Shard, c.Interval, c.LockTimeout)
	}
	conn, err := parseURL(c.Shard, c.URL)
	if err != nil {
		return nil, err
	}
	// Counting the interval after a long stop takes its time.
	conn.RuntimeParams["statement_timeout"] = "5min"
	metrics, err := newSealMetrics(c.Registerer, c.Shard)
	if err != nil {
		return nil, err
	}
	return &Sealer{config: c, conn: conn, metrics: metrics, log: c.Logger.With("component", "sealer", "shard", c.Shard)}, nil
}

// sealerKey is the session lock of a shard's sealer ("tdmkseal").
const sealerKey = 0x74646d6b7365616c

// errStandby says that another sealer has the lock.
var errStandby = errors.New("another sealer works on this shard")

// Run seals until ctx ends, and returns nil then. It waits and connects again
// by itself when PostgreSQL is away.
func (s *Sealer) Run(ctx context.Context) error {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, 5*time.Second
	away := false
	for {
		err := s.session(ctx, func() {
			if away {
				s.log.Info("sealing again")
			}
			away = false
			retry.Reset()
		})
		wait := s.config.Interval
		if !errors.Is(err, errStandby) {
			wait = retry.NextBackOff()
		}
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, errStandby) && !away {
			away = true
			s.log.Warn("sealing has to wait", "error", err)
		}
		if !pause.For(ctx, wait) {
			return nil
		}
	}
}

// session works on one connection while it lasts. The lock lives and dies with
// the connection that also writes, so a sealer that lost the lock cannot
// write.
func (s *Sealer) session(ctx context.Context, sealed func()) error {
	conn, err := connect(ctx, s.conn, s.config.Shard)
	if err != nil {
		return err
	}
	defer discard(conn)
	var mine bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", int64(sealerKey)).Scan(&mine); err != nil {
		return fmt.Errorf("taking the sealer's lock: %w", err)
	}
	if !mine {
		return errStandby
	}
	for {
		begun := time.Now()
		if err := s.round(ctx, conn); err != nil {
			return err
		}
		sealed()
		if !pause.For(ctx, s.config.Interval-time.Since(begun)) {
			return ctx.Err()
		}
	}
}

// round makes one seal, unless a long transaction is in the way, and proves
// what is unproven, also that of a sealer that died between the two steps.
func (s *Sealer) round(ctx context.Context, conn *pgx.Conn) error {
	sealed, err := seal(ctx, conn, s.config.Shard, s.config.LockTimeout)
	switch {
	case err == nil:
		s.metrics.sealed(sealed)
	case isLockTimeout(err):
		s.metrics.seals.WithLabelValues("skipped").Inc()
		if _, err := conn.Exec(ctx, "rollback"); err != nil {
			return fmt.Errorf("giving up a seal: %w", err)
		}
	case isMissingPartition(err):
		_, _ = conn.Exec(ctx, "rollback") // an error shows in the next statement
		return errors.Join(err, ensurePartitionsNow(ctx, conn, s.config.Shard))
	default:
		return err
	}
	return s.proveAll(ctx, conn)
}

func (s *Sealer) proveAll(ctx context.Context, conn *pgx.Conn) error {
	for {
		iv, found, err := nextUnproven(ctx, conn)
		if err != nil {
			return err
		}
		if !found {
			s.metrics.unproven.Set(0)
			return nil
		}
		s.metrics.unproven.Set(1)
		if err := prove(ctx, conn, s.config.Shard, iv); err != nil {
			return err
		}
	}
}

// sealMetrics are the sealer's part of the metrics in the package comment.
type sealMetrics struct {
	wait, held prometheus.Histogram
	seals      *prometheus.CounterVec
	unproven   prometheus.Gauge
}

func newSealMetrics(reg prometheus.Registerer, shard int) (*sealMetrics, error) {
	label := shardLabel(shard)
	histogram := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metricPrefix + name, Help: help, ConstLabels: label, Buckets: secondsBuckets,
		})
	}
	m := &sealMetrics{
		wait: histogram("seal_lock_wait_seconds", "Waiting for the outbox lock of a seal."),
		held: histogram("seal_lock_held_seconds", "Holding the outbox lock of a seal."),
		seals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "seals_total", Help: "Seals made, and skipped after the lock timeout.", ConstLabels: label,
		}, []string{"result"}),
		unproven: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: metricPrefix + "seals_unproven", Help: "1 while seals wait for their proof.", ConstLabels: label,
		}),
	}
	return m, register(reg, m.wait, m.held, m.seals, m.unproven)
}

func (m *sealMetrics) sealed(s sealing) {
	m.wait.Observe(s.wait.Seconds())
	m.held.Observe(s.held.Seconds())
	m.seals.WithLabelValues("sealed").Inc()
}
