package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/ops"
	"github.com/tidemark/tidemark/topology"
)

// process is one tidemark process: configuration, what operators ask it, and
// its actors.
type process struct {
	cfg      config.Config
	topo     *topology.Topology
	log      *slog.Logger
	health   *ops.Health
	metrics  *prometheus.Registry
	shards   topology.ShardMap // of the control database
	manifest topology.Manifest // active
	opsAddr  string            // set once listening
	apiAddr  string            // set once listening; "" without an API
	ready    chan struct{}     // closed when every component was ready once
}

func newProcess(cfg config.Config, log *slog.Logger) (*process, error) {
	topo, err := cfg.Topology()
	if err != nil {
		return nil, err
	}
	p := &process{cfg: cfg, topo: topo, log: log.With("instance", cfg.Instance), health: ops.NewHealth(), metrics: prometheus.NewRegistry(), ready: make(chan struct{})}
	p.metrics.MustRegister(p.health, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return p, nil
}

// actor is a part of the process that runs until ctx ends and can say why it
// is not ready.
type actor struct {
	name  string
	run   func(ctx context.Context) error
	ready func() error
}

// run serves operators at once, waits for the control database, then runs the
// roles until ctx ends or one fails for good. Everything stops together.
func (p *process) run(ctx context.Context, roles []string) error {
	listener, err := net.Listen("tcp", p.cfg.Ops.Listen)
	if err != nil {
		return fmt.Errorf("listening for operators: %w (set ops.listen, or --ops-listen)", err)
	}
	p.opsAddr = listener.Addr().String()
	p.log.Info("serving operators", "livez", "http://"+p.opsAddr+"/livez", "readyz", "http://"+p.opsAddr+"/readyz?verbose", "metrics", "http://"+p.opsAddr+"/metrics")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return ops.Serve(ctx, listener, p.health.Handler(p.metrics)) })
	g.Go(func() error {
		if err := p.awaitControl(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		actors, closeAll, err := p.build(ctx, roles)
		defer closeAll()
		if err != nil {
			return err
		}
		return p.runActors(ctx, actors)
	})
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (p *process) runActors(ctx context.Context, actors []actor) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, a := range actors {
		g.Go(func() error {
			err := a.run(ctx)
			if err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", a.name, err)
			}
			if ctx.Err() == nil {
				return fmt.Errorf("%s stopped by itself", a.name)
			}
			return nil
		})
	}
	g.Go(func() error { p.watch(ctx, actors); return nil })
	return g.Wait()
}

const watchInterval = 200 * time.Millisecond

// watch asks every actor whether it is ready and logs each change.
func (p *process) watch(ctx context.Context, actors []actor) {
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	was := map[string]bool{}
	once := false
	for {
		all := true
		for _, a := range actors {
			err := a.ready()
			p.health.Set(a.name, err, "")
			if ok := err == nil; ok != was[a.name] {
				was[a.name] = ok
				if ok {
					p.log.Info("ready", "component", a.name)
				} else {
					p.log.Warn("not ready", "component", a.name, "reason", err)
				}
			}
			all = all && err == nil
		}
		if all && !once {
			once = true
			close(p.ready)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// awaitControl reads the shard map and the active manifest, waiting for the
// control database for as long as it takes.
func (p *process) awaitControl(ctx context.Context) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 200*time.Millisecond, 5*time.Second
	for {
		err := p.readControl(ctx)
		p.health.Set("control", err, "")
		if err == nil || ctx.Err() != nil {
			return nil
		}
		wait := pause.NextBackOff()
		p.log.Warn("waiting for the control database", "reason", err, "pause", wait)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

func (p *process) readControl(ctx context.Context) error {
	db, err := control.Open(ctx, p.cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	if p.shards, err = db.ShardMap(ctx); err != nil {
		return err
	}
	p.manifest, err = db.ActiveManifest(ctx)
	return err
}
