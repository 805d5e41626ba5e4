package views

import (
	"errors"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct{ counts, loads prometheus.Counter }

// newMetrics registers the metrics of d; a nil registerer leaves them
// unregistered.
func newMetrics(reg prometheus.Registerer, d *Display) (*metrics, error) {
	m := &metrics{
		counts: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_view_counts_total", Help: "Counts answered."}),
		loads:  prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_view_loads_total", Help: "Counts read from the table, not the cache."}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.counts), reg.Register(m.loads), reg.Register(freshness{d}))
}

// freshness collects what every count includes. While the view recovers there
// is nothing to say.
type freshness struct{ d *Display }

var (
	sealDesc = prometheus.NewDesc("tidemark_view_as_of_seal", "Seal of a shard that every count includes.", []string{"shard"}, nil)
	lagDesc  = prometheus.NewDesc("tidemark_view_as_of_lag_seconds", "Age of the seal that every count includes.", []string{"shard"}, nil)
)

func (f freshness) Describe(ch chan<- *prometheus.Desc) {
	ch <- sealDesc
	ch <- lagDesc
}

func (f freshness) Collect(ch chan<- prometheus.Metric) {
	p, err := f.d.Progress()
	if err != nil {
		return
	}
	now := f.d.now()
	for _, s := range p.AsOf {
		shard := strconv.Itoa(s.Shard)
		ch <- prometheus.MustNewConstMetric(sealDesc, prometheus.GaugeValue, float64(s.Seal), shard)
		ch <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, staleness(now, s.SealedAt).Seconds(), shard)
	}
}
