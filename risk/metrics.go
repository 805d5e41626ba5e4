package risk

import (
	"errors"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// maxReasons are the values that label reason has, besides "other": reasons come
// from files and from a service, and a metric must not grow with them.
const maxReasons = 100

const otherReason = "other"

type measures struct {
	verdicts *prometheus.CounterVec
	dryRuns  *prometheus.CounterVec
	asked    *prometheus.HistogramVec
	rules    prometheus.Gauge
	version  *prometheus.GaugeVec
	reloads  *prometheus.CounterVec
	outdated prometheus.Gauge

	reasons sync.Map // of labels
	mu      sync.Mutex
	known   int
}

func newMeasures(to prometheus.Registerer) (*measures, error) {
	m := &measures{
		verdicts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_risk_verdicts_total", Help: "Commands that would begin a relation, by verdict, who decided and why."}, []string{"verdict", "source", "reason"}),
		dryRuns:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_risk_dry_runs_total", Help: "What rules with dryRun would have decided."}, []string{"verdict", "reason"}),
		asked: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "tidemark_risk_service_seconds", Help: "Time of asking the risk service, by result: answer, timeout, error, busy, open.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 12),
		}, []string{"result"}),
		rules:    prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemark_risk_rules", Help: "Rules of risk in use."}),
		version:  prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "tidemark_risk_rules_info", Help: "1, with the version of the rules of risk in use."}, []string{"version"}),
		reloads:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_risk_rules_reloads_total", Help: "Readings of a changed rule file, by result: ok, error."}, []string{"result"}),
		outdated: prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemark_risk_rules_outdated", Help: "1 while the rule file cannot be used and older rules are in use."}),
	}
	for _, result := range []string{"ok", "error"} {
		m.reloads.WithLabelValues(result)
	}
	if to == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.verdicts, m.dryRuns, m.asked, m.rules, m.version, m.reloads, m.outdated} {
		errs = append(errs, to.Register(c))
	}
	return m, errors.Join(errs...)
}

func (m *measures) decided(v Verdict) {
	m.verdicts.WithLabelValues(v.Action.String(), v.Source.String(), m.reason(v.Reason)).Inc()
}

func (m *measures) tried(v Verdict) {
	m.dryRuns.WithLabelValues(v.Action.String(), m.reason(v.Reason)).Inc()
}

func (m *measures) inUse(r *Rules) {
	m.rules.Set(float64(len(r.list)))
	m.version.Reset()
	if r.version != "" {
		m.version.WithLabelValues(r.version).Set(1)
	}
	m.outdated.Set(0)
}

// reason is the value of a label.
func (m *measures) reason(code string) string {
	if _, ok := m.reasons.Load(code); ok || code == "" {
		return code
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.reasons.Load(code); ok {
		return code
	}
	if m.known == maxReasons {
		return otherReason
	}
	m.known++
	m.reasons.Store(code, nil)
	return code
}
