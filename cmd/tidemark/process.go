package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/ops"
	"github.com/tidemark/tidemark/topology"
)

// process is one tidemark process: configuration, what operators ask it, and
// its actors.
type process struct {
	cfg       config.Config
	topo      *topology.Topology
	log       *slog.Logger
	health    *ops.Health
	metrics   *prometheus.Registry
	shards    topology.ShardMap          // of the control database
	manifest  topology.Manifest          // active
	reverse   topology.ReverseGeneration // active
	weak      gokakit.Weakness           // mechanisms that are switched off
	opsAddr   string                     // set before listening is closed
	apiAddr   string                     // set before built is closed; "" without an API
	listening chan struct{}              // closed when operators are served
	built     chan struct{}              // closed when the actors are built and about to run
	topics    chan struct{}              // closed when every topic is as the topology says
	ready     chan struct{}              // closed when every component was ready once
}

func newProcess(cfg config.Config, log *slog.Logger) (*process, error) {
	topo, err := cfg.Topology()
	if err != nil {
		return nil, err
	}
	p := &process{
		cfg: cfg, topo: topo, log: log.With("instance", cfg.Instance), health: ops.NewHealth(), metrics: prometheus.NewRegistry(),
		listening: make(chan struct{}), built: make(chan struct{}), topics: make(chan struct{}), ready: make(chan struct{}),
	}
	p.metrics.MustRegister(p.health, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return p, nil
}

// actor is a part of the process that runs until ctx ends and can say why it
// is not ready.
type actor struct {
	name   string
	run    func(ctx context.Context) error
	ready  func() error
	detail func() string // what to know of it when it is ready; nil: nothing
}

// run serves operators at once, prepares what the roles need, waiting for what
// is away, then runs the roles until ctx ends or one fails for good.
// Everything stops together. prepare may be nil.
func (p *process) run(ctx context.Context, roles []string, prepare func(context.Context) error) error {
	listener, err := net.Listen("tcp", p.cfg.Ops.Listen)
	if err != nil {
		return fmt.Errorf("listening for operators: %w: choose another address with --ops-listen, or ops.listen in the configuration", err)
	}
	tls, err := p.cfg.Ops.ServerTLS(p.log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	p.opsAddr = listener.Addr().String()
	close(p.listening)
	at := p.cfg.Ops.URL(p.opsAddr)
	p.log.Info("serving operators", "livez", at+"/livez", "readyz", at+"/readyz?verbose", "metrics", at+"/metrics")
	parent := ctx
	p.health.Set(startComponent, errUnbuilt, "")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return ops.Serve(ctx, tls.Listener(listener), p.health.Handler(p.metrics)) })
	g.Go(func() error {
		if prepare != nil {
			if err := p.await(ctx, "schema and topics", isAway, prepare); err != nil {
				return err
			}
		}
		always := func(error) bool { return true } // a person may be at work on it
		if err := p.await(ctx, "control", always, p.readControl); err != nil {
			return err
		}
		actors, closeAll, err := p.build(ctx, roles)
		defer closeAll()
		if err != nil {
			return err
		}
		close(p.built)
		g, ctx := errgroup.WithContext(ctx)
		if usesKafka(roles) {
			g.Go(func() error {
				if err := p.await(ctx, "topics", always, p.checkTopics); err != nil {
					return err
				}
				close(p.topics)
				return nil
			})
		}
		g.Go(func() error { return p.runActors(ctx, actors) })
		return g.Wait()
	})
	err = g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	if err == nil && parent.Err() == nil {
		err = errors.New("the roles stopped by themselves")
	}
	return err
}

// startComponent stands for the parts that the process does not have yet: what is
// ready of it until then, such as the control database, does not make it so.
const startComponent = "start"

var errUnbuilt = errors.New("its parts are not there yet")

// addresses prints where the process listens.
func (p *process) addresses(w io.Writer) {
	if p.apiAddr != "" {
		fmt.Fprintf(w, "  API        %s   (OpenAPI: /openapi.json)\n", p.cfg.API.URL(p.apiAddr))
	}
	fmt.Fprintf(w, "  operators  %s/readyz?verbose  /metrics\n", p.cfg.Ops.URL(p.opsAddr))
}

// afterTopics makes an actor that uses Kafka begin when the topics are right.
// What does without Kafka, such as commands, does not wait for it.
func (p *process) afterTopics(a actor) actor {
	return actor{
		name: a.name, detail: a.detail,
		run: func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return nil
			case <-p.topics:
				return a.run(ctx)
			}
		},
		ready: func() error {
			select {
			case <-p.topics:
				return a.ready()
			default:
				return errors.New("waiting for its topics")
			}
		},
	}
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
	for ctx.Err() == nil {
		all := true
		for _, a := range actors {
			err := a.ready()
			detail := ""
			if err == nil && a.detail != nil {
				detail = a.detail()
			}
			p.health.Set(a.name, err, detail)
			if now := err == nil; now != was[a.name] && ctx.Err() == nil {
				was[a.name] = now
				p.logReady(a.name, err)
			}
			all = all && err == nil
		}
		p.health.Unset(startComponent) // now every part speaks for itself
		if all && !once {
			once = true
			close(p.ready)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

func (p *process) logReady(component string, err error) {
	if err == nil {
		p.log.Info("ready", "component", component)
	} else {
		p.log.Warn("not ready", "component", component, "reason", err)
	}
}

// sayAgain is how often a lasting wait is worth another line.
const sayAgain = time.Minute

// await does something until it succeeds, for as long as passing says of its
// errors that they may pass, with backoff. Readiness shows the reason under
// the component's name. After ctx's end it returns ctx's error.
func (p *process) await(ctx context.Context, component string, passing func(error) bool, do func(context.Context) error) error {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = 200*time.Millisecond, 3*time.Second
	var said time.Time
	for {
		err := do(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.health.Set(component, err, "")
		if err == nil {
			if !said.IsZero() {
				p.log.Info("goes on", "component", component)
			}
			return nil
		}
		if !passing(err) {
			return err
		}
		if time.Since(said) > sayAgain {
			said = time.Now()
			p.log.Warn("waiting", "component", component, "reason", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// usesKafka tells whether a role other than commands is among roles.
func usesKafka(roles []string) bool {
	return slices.ContainsFunc(roles, func(r string) bool { return r != "commands" })
}

// checkTopics refuses, by name, topics that are not as the topology says: a
// table that expires, or one partition more, would make counts wrong later.
func (p *process) checkTopics(ctx context.Context) error {
	return administer(ctx, p.cfg, func(ctx context.Context, client *kgo.Client, topo *topology.Topology) error {
		diffs, err := kafkaadmin.Check(ctx, client, topo)
		if err != nil || len(diffs) == 0 {
			return err
		}
		return fmt.Errorf("%v (and %d more: `tidemark topology check` lists them; `tidemark topology create` makes missing ones)", diffs[0], len(diffs)-1)
	})
}

func (p *process) readControl(ctx context.Context) (err error) {
	p.shards, p.manifest, p.reverse, err = readContracts(ctx, p.cfg)
	return err
}

// readContracts reads from the control database where users live, where
// relations are counted, and where the reverse index keeps them.
func readContracts(ctx context.Context, cfg config.Config) (shards topology.ShardMap, m topology.Manifest, g topology.ReverseGeneration, err error) {
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return shards, m, g, err
	}
	defer db.Close()
	if shards, err = db.ShardMap(ctx); err != nil {
		return shards, m, g, err
	}
	if m, err = db.ActiveManifest(ctx); err != nil {
		return shards, m, g, err
	}
	g, err = db.ReverseGeneration(ctx)
	return shards, m, g, err
}
