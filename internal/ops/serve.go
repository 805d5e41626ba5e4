package ops

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Handler serves the paths of the package comment. gatherer may be nil: then
// there is no /metrics.
func (h *Health) Handler(gatherer prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", h.serveReady)
	mux.HandleFunc("GET /status/{name}", h.serveReport)
	if gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{}))
	}
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

// SetReport has /status/name answer what report gives, as JSON; a later one takes
// its place.
func (h *Health) SetReport(name string, report func(context.Context) (any, error)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.reports == nil {
		h.reports = map[string]func(context.Context) (any, error){}
	}
	h.reports[name] = report
}

// reportTimeout bounds what an operator waits for.
const reportTimeout = 10 * time.Second

func (h *Health) serveReport(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	report := h.reports[r.PathValue("name")]
	h.mu.Unlock()
	if report == nil {
		http.NotFound(w, r)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), reportTimeout)
	defer cancel()
	answer, err := report(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	// A client that has gone away is its own affair.
	_ = json.NewEncoder(w).Encode(answer)
}

func (h *Health) serveReady(w http.ResponseWriter, r *http.Request) {
	all, ready := h.Components()
	query := r.URL.Query()
	asJSON := query.Get("output") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if asJSON {
		w.Header().Set("Content-Type", "application/json")
	} else {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	if !ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	if asJSON {
		// A client that has gone away is its own affair.
		_ = json.NewEncoder(w).Encode(struct {
			Ready      bool        `json:"ready"`
			Components []Component `json:"components"`
		}{ready, append([]Component{}, all...)})
		return
	}
	writeText(w, all, ready, query.Has("verbose"))
}

// writeText writes every component, or only those that are not ready, and
// then the verdict.
func writeText(w http.ResponseWriter, all []Component, ready, verbose bool) {
	for _, c := range all {
		switch {
		case !c.Ready:
			fmt.Fprintf(w, "[-] %s: %s%s (since %s)\n", c.Name, c.Reason, bracketed(c.Detail), c.Since.Format(time.RFC3339))
		case verbose:
			fmt.Fprintf(w, "[+] %s: ready%s\n", c.Name, bracketed(c.Detail))
		}
	}
	switch {
	case ready:
		fmt.Fprintln(w, "ready")
	case len(all) == 0:
		fmt.Fprintln(w, "not ready: starting")
	default:
		fmt.Fprintln(w, "not ready")
	}
}

func bracketed(detail string) string {
	if detail == "" {
		return ""
	}
	return " [" + detail + "]"
}

// stopLimit bounds a graceful stop; what still runs then is cut.
const stopLimit = 3 * time.Second

// Serve answers on l until ctx ends, then lets running requests finish for up
// to three seconds. It closes l. It returns nil after ctx's end.
func Serve(ctx context.Context, l net.Listener, handler http.Handler) error {
	return Run(ctx, l, &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	})
}

// Run is Serve with a server of the caller's.
func Run(ctx context.Context, l net.Listener, server *http.Server) error {
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		err := server.Shutdown(limit)
		if errors.Is(err, context.DeadlineExceeded) {
			err = server.Close()
		}
		stopped <- err
	})
	err := server.Serve(l)
	if stop() || !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving HTTP on %s: %w", l.Addr(), err)
	}
	if err := <-stopped; err != nil {
		return fmt.Errorf("stopping HTTP on %s: %w", l.Addr(), err)
	}
	return nil
}
