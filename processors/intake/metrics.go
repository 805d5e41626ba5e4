package intake

import (
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	records    map[Outcome]prometheus.Counter
	slow       prometheus.Counter
	suspicions prometheus.Counter
	verified   *prometheus.GaugeVec
	watermarks *watermarks
}

// newMetrics registers intake's metrics; a nil registerer leaves them
// unregistered. Every label value stands at 0 from the start, so that an alert
// on a rise sees the first one.
func newMetrics(reg prometheus.Registerer, now func() time.Time) (*metrics, error) {
	records := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidemark_intake_records_total", Help: "Records of the change feed, by what became of them."}, []string{"result"})
	m := &metrics{
		records: map[Outcome]prometheus.Counter{},
		slow: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_intake_slow_decodes_total", Help: "Records whose shape only the slow decoder knows."}),
		suspicions: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_intake_suspicions_total", Help: "Proofs that did not agree with what came."}),
		verified: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "tidemark_intake_verified_seal", Help: "Newest seal of a shard whose interval was compared with its proof."}, []string{"shard"}),
		watermarks: &watermarks{now: now, byShard: map[int]watermark{}},
	}
	for _, o := range []Outcome{Changed, Sealed, Proven, Quarantined} {
		m.records[o] = records.WithLabelValues(string(o))
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(records), reg.Register(m.slow), reg.Register(m.suspicions), reg.Register(m.verified), reg.Register(m.watermarks))
}

func (m *metrics) proven(shard int, seal uint64) {
	m.verified.WithLabelValues(strconv.Itoa(shard)).Set(float64(seal))
}

func (m *metrics) observe(partition int, e Effects) {
	m.records[e.Outcome].Inc()
	if e.Slow {
		m.slow.Inc()
	}
	if e.Outcome == Sealed {
		m.watermarks.set(partition, watermark{seal: e.Seal, sealedAtUs: e.SealedAtUs})
	}
}

type watermark struct {
	seal       uint64
	sealedAtUs int64
}

// watermarks collects each shard's newest seal and its age at the time of the
// scrape.
type watermarks struct {
	now     func() time.Time
	mu      sync.Mutex
	byShard map[int]watermark
}

var (
	sealDesc = prometheus.NewDesc("tidemark_intake_watermark_seal", "Newest seal of a shard that went on.", []string{"shard"}, nil)
	lagDesc  = prometheus.NewDesc("tidemark_intake_watermark_lag_seconds", "Age of a shard's newest seal that went on.", []string{"shard"}, nil)
)

// set keeps the higher seal: a replay does not turn a watermark back.
func (w *watermarks) set(shard int, m watermark) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.seal > w.byShard[shard].seal {
		w.byShard[shard] = m
	}
}

func (w *watermarks) Describe(ch chan<- *prometheus.Desc) {
	ch <- sealDesc
	ch <- lagDesc
}

func (w *watermarks) Collect(ch chan<- prometheus.Metric) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	for shard, m := range w.byShard {
		label := strconv.Itoa(shard)
		ch <- prometheus.MustNewConstMetric(sealDesc, prometheus.GaugeValue, float64(m.seal), label)
		ch <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, now.Sub(time.UnixMicro(m.sealedAtUs)).Seconds(), label)
	}
}
