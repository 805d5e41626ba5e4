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

// response watches what a handler answers. An answer that the mux makes by
// itself (404, 405, a redirect) is held back: it becomes a problem.
type response struct {
	http.ResponseWriter
	request *http.Request
	status  int // 0 before the answer's head
	held    int // status of the mux's own answer
}

// Unwrap lets http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the status, or holds back the mux's own answer: the mux
// names the pattern in the request before it calls a registered handler.
func (w *response) WriteHeader(status int) {
	if w.request.Pattern == "" {
		w.held = status
		return
	}
	w.send(status)
}

func (w *response) send(status int) {
	if w.status == 0 {
		w.status = status
		w.ResponseWriter.WriteHeader(status)
	}
}

// Write writes the body, after a head of 200 if there was none.
func (w *response) Write(b []byte) (int, error) {
	if w.held != 0 {
		return len(b), nil
	}
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
	res := &response{ResponseWriter: w, request: r}
	defer func() {
		if v := recover(); v != nil {
			if v == http.ErrAbortHandler {
				panic(v)
			}
			a.panicked(res, r, v)
		}
		a.measures.duration.WithLabelValues(routeOf(r), classOf(res.status)).Observe(time.Since(start).Seconds())
	}()
	a.serve(res, r, c)
}

func (a *API) serve(w *response, r *http.Request, c *call) {
	p := a.admit(r, c)
	if p == nil {
		a.mux.ServeHTTP(w, r)
		p = muxProblem(w, r)
	}
	if p != nil {
		a.answerProblem(w, p)
	}
}

// answerProblem writes p past the hold on the mux's own answers.
func (a *API) answerProblem(w *response, p *Problem) {
	w.status = p.Status
	p.write(w.ResponseWriter)
}

// admit does what comes before routing.
func (a *API) admit(r *http.Request, c *call) *Problem {
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		var p *Problem
		if c.identity, p = a.authenticate(r); p != nil {
			return p
		}
	}
	if r.URL.RawQuery != "" {
		return badQuery(r.URL.RawQuery)
	}
	return checkPath(r, func(r *http.Request) string { _, pattern := a.mux.Handler(r); return pattern })
}

// badQuery refuses query parameters: no operation has any.
func badQuery(raw string) *Problem {
	name, _, _ := strings.Cut(raw, "&")
	name, _, _ = strings.Cut(name, "=")
	return invalid("query."+strings.ToValidUTF8(clip(name), "?"), "is not a parameter here")
}

func notFound() *Problem {
	return newProblem(kindNotFound, "this path names nothing here: see /openapi.json")
}

// muxProblem makes a problem of an answer that the mux made by itself.
func muxProblem(w *response, r *http.Request) *Problem {
	switch w.held {
	case 0:
		return nil
	case http.StatusMethodNotAllowed:
		return newProblem(kindMethodNotAllowed, "this path has "+w.Header().Get("Allow"))
	case http.StatusBadRequest:
		return invalid("path", "is not a path")
	default:
		w.Header().Del("Location")
		return notFound()
	}
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
		a.answerProblem(w, newProblem(kindInternal, "the server's log has the details; sending the same request again is safe"))
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
