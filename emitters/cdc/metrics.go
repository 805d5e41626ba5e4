package cdc

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// latency observes the time from a row's commit to Kafka's acknowledgement. It
// compares the clocks of two machines when PostgreSQL runs elsewhere.
type latency struct{ h prometheus.Histogram }

func newLatency() *latency {
	return &latency{prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "tidemark_cdc_publish_seconds",
		Help:    "Time from a row's commit to Kafka's acknowledgement of its record.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60, 600},
	})}
}

func (l *latency) observe(d time.Duration) { l.h.Observe(max(d, 0).Seconds()) }

// metric reads one number of a snapshot.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*board, *Status) float64
}

// collector turns a board into metrics whenever they are scraped.
type collector struct {
	emitter *Emitter
	metrics []metric
}

func newCollector(e *Emitter) *collector {
	c := &collector{emitter: e}
	add := func(kind prometheus.ValueType, name, help string, value func(*board, *Status) float64) {
		c.metrics = append(c.metrics, metric{prometheus.NewDesc("tidemark_cdc_"+name, help, nil, nil), kind, value})
	}
	gauge := func(name, help string, value func(*Status) float64) {
		add(prometheus.GaugeValue, name, help, func(_ *board, s *Status) float64 { return value(s) })
	}
	counter := func(name, help string, value func(*board) float64) {
		add(prometheus.CounterValue, name, help, func(b *board, _ *Status) float64 { return value(b) })
	}
	is := func(yes bool) float64 {
		if yes {
			return 1
		}
		return 0
	}
	gauge("streaming", "1 while this emitter streams the shard's outbox.", func(s *Status) float64 { return is(s.State == StateStreaming) })
	gauge("standby", "1 while another emitter has the slot.", func(s *Status) float64 { return is(s.State == StateStandby) })
	gauge("paused", "1 while an operator has paused the shard's feed.", func(s *Status) float64 { return is(s.State == StatePaused) })
	gauge("confirmed_lsn_bytes", "Position up to which everything is in Kafka.", func(s *Status) float64 { return float64(s.ConfirmedLSN) })
	gauge("server_lsn_bytes", "The server's end of WAL.", func(s *Status) float64 { return float64(s.ServerLSN) })
	gauge("lag_bytes", "WAL between the confirmed position and the server's end.", func(s *Status) float64 { return float64(s.LagBytes) })
	gauge("retained_bytes", "WAL that the slot keeps the server from removing.", func(s *Status) float64 { return float64(s.RetainedBytes) })
	gauge("oldest_unpublished_seconds", "Age of the oldest outbox row that may not be in Kafka, at most; NaN while not known.", func(s *Status) float64 {
		if s.OldestUnpublished < 0 {
			return math.NaN()
		}
		return s.OldestUnpublished.Seconds()
	})
	gauge("outbox_bytes", "Size of the outbox: partitions, indexes and TOAST.", func(s *Status) float64 { return float64(s.OutboxBytes) })
	gauge("unacked_records", "Records sent to Kafka and not acknowledged.", func(s *Status) float64 { return float64(s.UnackedRecords) })
	gauge("unacked_bytes", "Their bytes.", func(s *Status) float64 { return float64(s.UnackedBytes) })
	counter("emitted_records_total", "Records handed to the producer, repeated ones too.", func(b *board) float64 { return float64(b.emitted.Load()) })
	counter("acked_records_total", "Records acknowledged by Kafka.", func(b *board) float64 { return float64(b.acked.Load()) })
	counter("acked_bytes_total", "Bytes of key and value of acknowledged records.", func(b *board) float64 { return float64(b.ackedBytes.Load()) })
	counter("transactions_total", "Transactions read.", func(b *board) float64 { return float64(b.transactions.Load()) })
	counter("ignored_changes_total", "Changes not passed on: other than inserts, or of other tables.", func(b *board) float64 { return float64(b.ignored.Load()) })
	counter("other_shard_records_total", "Records whose row names another shard.", func(b *board) float64 { return float64(b.otherShard.Load()) })
	counter("restarts_total", "Sessions that ended with an error.", func(b *board) float64 { return float64(b.restarts.Load()) })
	counter("blocked_seconds_total", "Time the reader waited for Kafka.", func(b *board) float64 { return b.blockedTime().Seconds() })
	return c
}

// Describe sends the metrics' descriptions.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
	c.emitter.seen.h.Describe(ch)
}

// Collect sends the metrics.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.emitter.Status()
	for _, m := range c.metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&c.emitter.board, &s))
	}
	c.emitter.seen.h.Collect(ch)
}
