package gokakit

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one processor or view; names stand in the package comment.
type metrics struct {
	records, acked, rebuilds, fenced, repairs, generations prometheus.Counter
	inflight, inflightBytes                                prometheus.Gauge
	flush                                                  prometheus.Histogram
	lag                                                    *prometheus.GaugeVec
}

// newMetrics makes the metrics of a group and registers them; a nil registerer
// leaves them unregistered.
func newMetrics(reg prometheus.Registerer, group string) (*metrics, error) {
	labels := prometheus.Labels{"group": group}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels})
	}
	m := &metrics{
		records:       counter("tidemark_processor_records_total", "Input records handled."),
		acked:         counter("tidemark_processor_changelog_acked_total", "Table writes acked by the changelog."),
		rebuilds:      counter("tidemark_processor_rebuilds_total", "Times a failed processor was built anew."),
		fenced:        counter("tidemark_processor_fenced_total", "Times another writer was found in the changelog."),
		repairs:       counter("tidemark_processor_repairs_total", "Table keys written again behind a stale record."),
		generations:   counter("tidemark_processor_generations_total", "Generations of the consumer group that the process was a member of."),
		inflight:      gauge("tidemark_processor_inflight_records", "Emitted records without an ack."),
		inflightBytes: gauge("tidemark_processor_inflight_bytes", "Bytes of emitted records without an ack."),
		flush: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tidemark_store_flush_seconds", Help: "Time to bring acked rows into the local store.",
			ConstLabels: labels, Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tidemark_processor_input_lag_records", Help: "Input records behind the end of the stream.",
			ConstLabels: labels}, []string{"topic", "partition"}),
	}
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.records, m.acked, m.rebuilds, m.fenced, m.repairs, m.generations, m.inflight, m.inflightBytes, m.flush, m.lag} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}
