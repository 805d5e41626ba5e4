package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// measures are the API's metrics; see the package comment.
type measures struct {
	duration *prometheus.HistogramVec
	inFlight prometheus.Gauge
	panics   prometheus.Counter
}

func newMeasures(reg prometheus.Registerer) (*measures, error) {
	m := &measures{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "tidemark_api_request_duration_seconds",
			Help:    "Time from a request's first byte read to its answer written, by route pattern and status class.",
			Buckets: []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route", "class"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "tidemark_api_requests_in_flight",
			Help: "Requests being served.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "tidemark_api_panics_total",
			Help: "Handlers that panicked; each was answered 500.",
		}),
	}
	for _, c := range []prometheus.Collector{m.duration, m.inFlight, m.panics} {
		if err := register(reg, c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func register(reg prometheus.Registerer, c prometheus.Collector) error {
	if reg == nil {
		return nil
	}
	if err := reg.Register(c); err != nil {
		return fmt.Errorf("registering the API's metrics: %w", err)
	}
	return nil
}

// response notes the status that a handler answers with.
type response struct {
	http.ResponseWriter
	status int // 0 before the answer's head
}

// Unwrap lets http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader writes the answer's head once.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write writes the body, after a head of 200 if there was none.
func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

// ServeHTTP serves one request: measured, bounded in time, with panics caught
// and the caller's identity proven for everything under /v1/.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	a.measures.inFlight.Inc()
	defer a.measures.inFlight.Dec()

	c := &call{trace: parseTraceParent(r.Header.Get("Traceparent"))}
	ctx, cancel := context.WithTimeout(context.WithValue(r.Context(), callKey{}, c), a.requestTimeout)
	defer cancel()
	r = r.WithContext(ctx)
	res := &response{ResponseWriter: w}
	defer func() {
		if v := recover(); v != nil {
			a.panicked(res, r, v)
		}
		a.measures.duration.WithLabelValues(routeOf(r), classOf(res.status)).Observe(time.Since(start).Seconds())
	}()
	if p := a.admit(r, c); p != nil {
		p.write(res)
		return
	}
	a.router.ServeHTTP(res, r)
}

// admit does what comes before routing.
func (a *API) admit(r *http.Request, c *call) *Problem {
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		var p *Problem
		if c.identity, p = a.authenticate(r); p != nil {
			return p
		}
	}
	return nil
}

// panicked answers 500. Neither the panic's text nor the request is logged: it
// may hold what a client sent.
func (a *API) panicked(w *response, r *http.Request, v any) {
	a.measures.panics.Inc()
	what := fmt.Sprintf("%T", v)
	if e, ok := v.(runtime.Error); ok {
		what = e.Error()
	}
	a.log.LogAttrs(r.Context(), slog.LevelError, "a handler panicked", slog.String("route", routeOf(r)),
		slog.String("panic", what), slog.String("stack", string(debug.Stack())), traceAttr(r.Context()))
	if w.status == 0 {
		newProblem(kindInternal, "the server's log has the details; sending the same request again is safe").write(w)
	}
}

func traceAttr(ctx context.Context) slog.Attr {
	if t, ok := TraceOf(ctx); ok {
		return slog.String("trace_id", t.TraceID)
	}
	return slog.Attr{}
}

func routeOf(r *http.Request) string {
	if r.Pattern == "" {
		return "unmatched"
	}
	return r.Pattern
}

func classOf(status int) string {
	if status < 100 || status > 599 {
		return "none"
	}
	return [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}[status/100-1]
}
