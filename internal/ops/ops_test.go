package ops

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(t *testing.T, h http.Handler, path, accept string) (int, string) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestReady(t *testing.T) {
	h := NewHealth()
	h.now = func() time.Time { return time.Unix(0, 0) }
	handler := h.Handler(nil)
	expect := func(path string, code int, body string) {
		t.Helper()
		if gotCode, got := get(t, handler, path, ""); gotCode != code || got != body {
			t.Errorf("%s: %d %q, want %d %q", path, gotCode, got, code, body)
		}
	}
	expect("/livez", 200, "ok\n")
	expect("/readyz", 503, "not ready: starting\n")
	h.Set("projection", errors.New("recovering partition 3"), "40 %")
	h.Set("control", nil, "")
	h.Set("api", nil, "127.0.0.1:8080")
	down := "[-] projection: recovering partition 3 [40 %] (since 1970-01-01T00:00:00Z)\n"
	expect("/readyz", 503, down+"not ready\n")
	expect("/readyz?verbose", 503, "[+] api: ready [127.0.0.1:8080]\n[+] control: ready\n"+down+"not ready\n")
	h.Set("projection", nil, "")
	expect("/readyz", 200, "ready\n")
	h.Set("cdc-0", errors.New("slot is gone"), "")
	expect("/readyz", 503, "[-] cdc-0: slot is gone (since 1970-01-01T00:00:00Z)\nnot ready\n")
	h.Unset("cdc-0")
	expect("/readyz", 200, "ready\n")
	expect("/metrics", 404, "404 page not found\n")
}

func TestReadyJSON(t *testing.T) {
	h := NewHealth()
	type answer struct {
		Ready      bool
		Components []Component
	}
	ask := func(path, accept string) (a answer) {
		t.Helper()
		_, body := get(t, h.Handler(nil), path, accept)
		if err := json.Unmarshal([]byte(body), &a); err != nil {
			t.Fatalf("%s: %v in %s", path, err, body)
		}
		return a
	}
	if a := ask("/readyz?output=json", ""); a.Ready || a.Components == nil {
		t.Errorf("at the start: %+v", a)
	}
	h.Set("a", errors.New("why"), "detail")
	if a := ask("/readyz?verbose", "application/json"); a.Ready || len(a.Components) != 1 || a.Components[0].Reason != "why" || a.Components[0].Detail != "detail" {
		t.Errorf("not ready: %+v", a)
	}
}

// Since moves with readiness, not with every report.
func TestSince(t *testing.T) {
	h := NewHealth()
	now := time.Unix(100, 0)
	h.now = func() time.Time { now = now.Add(time.Second); return now }
	since := func() time.Time { all, _ := h.Components(); return all[0].Since }
	h.Set("a", nil, "")
	first := since()
	h.Set("a", nil, "still")
	if !since().Equal(first) {
		t.Error("moved without a change")
	}
	h.Set("a", errors.New("x"), "")
	if !since().After(first) {
		t.Error("did not move with a change")
	}
}

func TestMetrics(t *testing.T) {
	h := NewHealth()
	h.Set("up", nil, "")
	h.Set("down", errors.New("x"), "")
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(h)
	code, body := get(t, h.Handler(reg), "/metrics", "")
	for _, want := range []string{`tidemark_component_ready{component="up"} 1`, `tidemark_component_ready{component="down"} 0`} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d, no %s in\n%s", code, want, body)
		}
	}
}

// A running request is answered though the server stops.
func TestServeStopsGracefully(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cancel()
		<-ctx.Done()
		_, _ = io.WriteString(w, "done")
	})
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, handler) }()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || string(body) != "done" {
		t.Errorf("answer %q, %v", body, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestServeSaysWhyItEnded(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), l, http.NotFoundHandler()); err == nil || !strings.Contains(err.Error(), "serving HTTP on") {
		t.Errorf("error %v", err)
	}
}

func TestReport(t *testing.T) {
	h := NewHealth()
	handler := h.Handler(nil)
	if code, _ := get(t, handler, "/status/cache", ""); code != 404 {
		t.Errorf("a report that nobody gives: %d", code)
	}
	var away error
	h.SetReport("cache", func(context.Context) (any, error) { return []int{1, 2}, away })
	if code, body := get(t, handler, "/status/cache", ""); code != 200 || body != "[1,2]\n" {
		t.Errorf("%d %q", code, body)
	}
	away = errors.New("the database is away")
	if code, body := get(t, handler, "/status/cache", ""); code != 503 || body != "the database is away\n" {
		t.Errorf("%d %q", code, body)
	}
}
