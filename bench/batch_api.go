package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// batchCommand runs an API whose states are in memory, in a process of its own:
// batchCommand SPEC, a batchSpec as JSON.
const batchCommand = "batch-api"

type batchSpec struct {
	Config   string   `json:"config"` // of the deployment whose counts it shows
	Brokers  []string `json:"brokers"`
	StateDir string   `json:"stateDir"`
	API      string   `json:"api"` // host:port
	Ops      string   `json:"ops"` // host:port of /readyz and of profiles
	Users    int      `json:"users"`
}

func (s batchSpec) text() string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // it has strings and a number
	}
	return string(b)
}

func runBatchAPI(text string) error {
	var s batchSpec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return fmt.Errorf("reading the API's spec: %w", err)
	}
	cfg, err := config.Load(s.Config)
	if err != nil {
		return err
	}
	topo, err := cfg.Topology()
	if err != nil {
		return err
	}
	key, err := cfg.Auth.HS256Key()
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	verifier, err := api.NewVerifier(api.AuthConfig{HS256Key: key, Issuer: cfg.Auth.Issuer, Audience: cfg.Auth.Audience})
	if err != nil {
		return err
	}
	a, err := api.New(api.Config{Verifier: verifier, Registerer: reg})
	if err != nil {
		return err
	}
	view, err := views.NewDisplay(views.DisplayConfig{Client: gokakit.Client{Brokers: s.Brokers}, Topology: topo, StateDir: s.StateDir, Logger: slog.New(slog.DiscardHandler), Registerer: reg})
	if err != nil {
		return err
	}
	api.RegisterQueries(a, newMemoryStates(s.Users), view)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return view.Run(ctx) })
	g.Go(func() error { return api.NewServer(api.ServerConfig{Listen: s.API}, a).Run(ctx) })
	g.Go(func() error { return serveOps(ctx, s.Ops, view.Ready) })
	return g.Wait()
}

func serveOps(ctx context.Context, listen string, ready func() error) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Addr: listen, Handler: mux} //nolint:gosec // of a bench, on loopback
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// memoryStates are what newLossBench fills in.
type memoryStates map[topology.Relation]relations.Fact

func newMemoryStates(users int) memoryStates {
	m := make(memoryStates, users*lossUserRelations)
	for u := range users {
		for t := range lossUserRelations {
			r := topology.Relation{Kind: topology.Like, User: lossUser(u), Target: lossTarget(t)}
			m[r] = relations.Fact{Relation: r, State: topology.Liked, Version: 1}
		}
	}
	return m
}

// States reads them.
func (m memoryStates) States(_ context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error) {
	facts := make([]relations.Fact, len(targets))
	for i, t := range targets {
		facts[i] = m[topology.Relation{Kind: kind, User: user, Target: t}]
	}
	return facts, nil
}
