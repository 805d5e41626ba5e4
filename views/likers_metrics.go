package views

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type likersMetrics struct {
	pages   prometheus.Histogram
	asked   prometheus.Counter
	standby prometheus.Counter
	heads   *prometheus.CounterVec
	errors  *prometheus.CounterVec
}

// newLikersMetrics registers the metrics of Likers; a nil registerer leaves
// them unregistered.
func newLikersMetrics(reg prometheus.Registerer) (*likersMetrics, error) {
	m := &likersMetrics{
		pages: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "tidemark_view_likers_page_seconds", Help: "Time to answer a page of a list, all partitions together.",
			Buckets: prometheus.ExponentialBuckets(2.5e-4, 2, 14),
		}),
		asked:   prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_view_likers_asked_total", Help: "Questions to owners of partitions of the reverse index, and to standbys."}),
		standby: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_view_likers_standby_total", Help: "Parts of pages that standbys answered while the owner did not."}),
		errors:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_view_likers_errors_total", Help: "Pages of lists that were not answered."}, []string{"reason"}),
	}
	m.heads = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_view_likers_heads_total", Help: "Pages of lists where heads are read: from a head, or why not from one."}, []string{"result"})
	for _, result := range headResults {
		m.heads.WithLabelValues(result)
	}
	for _, reason := range []string{"not_ready", "generation", "query", "deadline", "other"} {
		m.errors.WithLabelValues(reason)
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.pages), reg.Register(m.asked), reg.Register(m.standby), reg.Register(m.heads), reg.Register(m.errors))
}

// observe counts a page that was answered or was not.
func (m *likersMetrics) observe(took time.Duration, err error) {
	if err == nil {
		m.pages.Observe(took.Seconds())
		return
	}
	m.errors.WithLabelValues(reasonOf(err)).Inc()
}

func reasonOf(err error) string {
	var notReady *NotReadyError
	switch {
	case errors.As(err, &notReady):
		return "not_ready"
	case errors.Is(err, ErrGenerationGone):
		return "generation"
	case errors.Is(err, ErrLikersQuery):
		return "query"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return "deadline" // or the caller has gone
	}
	return "other"
}
