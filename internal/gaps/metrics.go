package gaps

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/control"
)

type metrics struct {
	shards          int
	open, missing   *prometheus.GaugeVec
	raised, surplus prometheus.Counter
}

// newMetrics registers the metrics of the package comment, every shard at 0.
func newMetrics(reg prometheus.Registerer, shards int) (*metrics, error) {
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"shard"})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		shards:  shards,
		open:    gauge("tidemark_gaps_open", "Gaps of a shard's change feed that are not healed."),
		missing: gauge("tidemark_gaps_missing_rows", "Rows that the gaps of a shard name."),
		raised:  counter("tidemark_gaps_raised_total", "Gaps that this process recorded."),
		surplus: counter("tidemark_gaps_surplus_rows_total", "Rows that came although the outbox does not count them."),
	}
	m.set(nil)
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.open), reg.Register(m.missing), reg.Register(m.raised), reg.Register(m.surplus))
}

func (m *metrics) set(gaps []control.Gap) {
	count, rows := make([]int, m.shards), make([]int64, m.shards)
	for _, g := range gaps {
		if g.Shard < m.shards {
			count[g.Shard]++
			rows[g.Shard] += g.Rows
		}
	}
	for shard := range m.shards {
		label := strconv.Itoa(shard)
		m.open.WithLabelValues(label).Set(float64(count[shard]))
		m.missing.WithLabelValues(label).Set(float64(rows[shard]))
	}
}
