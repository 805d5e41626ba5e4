// Package ops is what operators ask a process: whether it lives, whether it
// is ready and if not why, its metrics and profiles.
//
//	/livez            200 while the process answers
//	/readyz           200 when every component is ready, else 503 and the reasons
//	/readyz?verbose   every component, one per line
//	/status/NAME      more about a part of it, as JSON; 404 when it has no such part
//	/metrics          Prometheus
//	/debug/pprof/     profiles
//
// /readyz answers JSON with Accept: application/json or ?output=json.
//
// Metric: tidemark_component_ready{component}, 1 or 0.
package ops

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Component is the state of one part of the process.
type Component struct {
	Name   string    `json:"name"`
	Ready  bool      `json:"ready"`
	Reason string    `json:"reason,omitempty"` // why it is not ready
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"` // of Ready's last change
}

// Health collects what components say of themselves. It is safe for
// concurrent use, and a prometheus.Collector.
type Health struct {
	mu         sync.Mutex
	components map[string]Component
	reports    map[string]func(context.Context) (any, error) // by name
	now        func() time.Time
}

// NewHealth starts with no component, which counts as not ready: a process
// that has not begun must not get traffic.
func NewHealth() *Health {
	return &Health{components: make(map[string]Component), now: time.Now}
}

// Set says how a component is: ready when err is nil, else not, because of
// err. detail is free text such as a lag; it may be empty.
func (h *Health) Set(component string, err error, detail string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	old, known := h.components[component]
	c := Component{Name: component, Ready: err == nil, Detail: detail, Since: old.Since}
	if err != nil {
		c.Reason = err.Error()
	}
	if !known || old.Ready != c.Ready {
		c.Since = h.now().UTC()
	}
	h.components[component] = c
}

// Unset forgets a component that the process no longer has.
func (h *Health) Unset(component string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.components, component)
}

// Components lists every component by name, and whether all are ready.
func (h *Health) Components() (all []Component, ready bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ready = len(h.components) > 0
	for _, c := range h.components {
		all = append(all, c)
		ready = ready && c.Ready
	}
	slices.SortFunc(all, func(a, b Component) int { return strings.Compare(a.Name, b.Name) })
	return all, ready
}

var readyMetric = prometheus.NewDesc("tidemark_component_ready", "1 when the component is ready, 0 when not.", []string{"component"}, nil)

// Describe implements prometheus.Collector.
func (h *Health) Describe(ch chan<- *prometheus.Desc) { ch <- readyMetric }

// Collect implements prometheus.Collector.
func (h *Health) Collect(ch chan<- prometheus.Metric) {
	all, _ := h.Components()
	for _, c := range all {
		v := 0.0
		if c.Ready {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(readyMetric, prometheus.GaugeValue, v, c.Name)
	}
}
