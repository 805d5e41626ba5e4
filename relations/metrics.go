package relations

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/topology"
)

// shardMetrics are one shard's part of the metrics in the package comment.
type shardMetrics struct {
	commands *prometheus.CounterVec
	retries  *prometheus.CounterVec
	batch    prometheus.Histogram
	seconds  prometheus.Histogram
}

const metricPrefix = "tidemark_relations_"

// secondsBuckets go from 0.25 ms to 4 s.
var secondsBuckets = prometheus.ExponentialBuckets(0.00025, 2, 15)

func shardLabel(shard int) prometheus.Labels {
	return prometheus.Labels{"shard": strconv.Itoa(shard)}
}

// newShardMetrics registers a shard's metrics; waiting tells the length of its
// queue.
func newShardMetrics(reg prometheus.Registerer, shard int, waiting func() float64) (*shardMetrics, error) {
	label := shardLabel(shard)
	m := &shardMetrics{
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "commands_total", Help: "Commands answered.", ConstLabels: label,
		}, []string{"kind", "outcome"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "retries_total", Help: "Transactions that were run again.", ConstLabels: label,
		}, []string{"reason"}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metricPrefix + "batch_commands", Help: "Commands of one transaction.", ConstLabels: label,
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: metricPrefix + "commit_seconds", Help: "Duration of one transaction.", ConstLabels: label,
			Buckets: secondsBuckets,
		}),
	}
	queue := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: metricPrefix + "queue_commands", Help: "Commands that wait for a transaction.", ConstLabels: label,
	}, waiting)
	return m, register(reg, m.commands, m.retries, m.batch, m.seconds, queue)
}

// register puts collectors into reg; nil keeps them to ourselves.
func register(reg prometheus.Registerer, collectors ...prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	for _, c := range collectors {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering metrics of a relation shard: %w", err)
		}
	}
	return nil
}

// count takes down how a command was answered.
func (m *shardMetrics) count(kind topology.Kind, a answer) {
	m.commands.WithLabelValues(kind.String(), outcomeLabel(a)).Inc()
}

func outcomeLabel(a answer) string {
	switch {
	case errors.Is(a.err, ErrOperationConflict):
		return "conflict"
	case errors.Is(a.err, ErrOperationExpired):
		return "expired"
	case errors.Is(a.err, errOtherMap):
		return "other_map"
	case a.err != nil:
		return "error"
	case a.result.Replayed:
		return "replayed"
	}
	return strings.ToLower(a.result.Operation.Outcome.String())
}
