package gokakit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/topology"
)

// ProcessorConfig says what a processor does and where it runs.
type ProcessorConfig struct {
	Client   Client
	Topology *topology.Topology
	Group    string // a group of the topology, such as topology.ProjectionGroup
	Schema   Schema // of the group's table; nil when it has none
	Handle   Handler
	// NewOwner makes what accompanies a partition while it is owned; optional.
	NewOwner func(p *Partition) Owner
	// StateDir holds the partitions' stores; needed with a table.
	StateDir string
	// Instance is unique among the group's processes: it makes membership
	// static, so that a restart does not move partitions.
	Instance string
	// Advertise is host:port at which this process answers for its partitions;
	// the group's member data tells it (internal/owners reads it). Empty: it
	// does not answer.
	Advertise  string
	HotStandby bool // keep the other partitions' tables warm
	// SkipLost goes on with the oldest record when the log has lost those at
	// the committed offset. Only for a group that names by itself what it then
	// lacks; every other stops there.
	SkipLost bool
	// WriteBehind is how many bytes of acked rows a partition gathers in RAM
	// before it writes them to its store; default 4 MiB.
	WriteBehind int
	Logger      *slog.Logger
	Registerer  prometheus.Registerer // optional

	weak        Weakness
	fs          vfs.FS
	lagInterval time.Duration
}

// Processor runs a group's member for ever: when it fails, it is thrown away
// and built anew with backoff, while the process stays up and Ready says why.
type Processor struct {
	cfg     ProcessorConfig
	group   string
	table   string
	metrics *metrics
	stores  *stores // nil without a table
	log     *slog.Logger

	mu      sync.Mutex
	why     error // why it is not running; nil while an attempt runs
	current *attempt
}

// NewProcessor checks the configuration; it does not talk to Kafka yet.
func NewProcessor(cfg ProcessorConfig) (*Processor, error) {
	cfg.Client = cfg.Client.withDefaults()
	if err := cfg.Client.check(); err != nil {
		return nil, err
	}
	if cfg.lagInterval == 0 {
		cfg.lagInterval = 5 * time.Second
	}
	g := cfg.Topology.Group(cfg.Group)
	switch {
	case cfg.Handle == nil:
		return nil, fmt.Errorf("group %s: no handler given", g.ID)
	case cfg.Instance == "":
		return nil, fmt.Errorf("group %s: no instance name given", g.ID)
	case (g.Table != "") != (cfg.Schema != nil):
		return nil, fmt.Errorf("group %s: a table needs a schema, and a schema a table", g.ID)
	case g.Table != "" && cfg.StateDir == "":
		return nil, fmt.Errorf("group %s: no state directory given", g.ID)
	}
	m, err := newMetrics(cfg.Registerer, cfg.Group)
	if err != nil {
		return nil, fmt.Errorf("group %s: registering metrics: %w", g.ID, err)
	}
	p := &Processor{cfg: cfg, group: g.ID, metrics: m, log: cfg.Logger.With("component", cfg.Group), why: errors.New("not started")}
	if g.Table != "" {
		t := cfg.Topology.Stream(g.Table)
		p.table = t.Topic
		p.stores = newStores(t.Topic, t.Partitions, cfg.Schema, cfg.StateDir,
			storeOptions{writeBehind: cfg.WriteBehind, metrics: m, fs: cfg.fs, weak: cfg.weak}, p.log)
	}
	return p, nil
}

// Weaken switches mechanisms off, for tests and drills that must be able to
// fail. It must be called before Run.
func (p *Processor) Weaken(w Weakness) {
	p.cfg.weak = w
	if p.stores != nil {
		p.stores.opts.weak = w
	}
}

// Ready is nil while the processor consumes, and else says why it does not.
func (p *Processor) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != nil {
		return p.why
	}
	return p.current.ready()
}

// Run runs until ctx ends; it always returns nil then.
func (p *Processor) Run(ctx context.Context) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 10*time.Second
	var err error
	p.set(nil, errors.New("connecting to kafka"))
	for {
		start := time.Now()
		err = p.attempt(ctx, err)
		if ctx.Err() != nil {
			p.set(nil, errors.New("stopped"))
			return nil
		}
		if time.Since(start) > time.Minute {
			wait.Reset()
		}
		pause := wait.NextBackOff()
		p.set(nil, fmt.Errorf("building anew after: %w", err))
		p.metrics.rebuilds.Inc()
		p.log.Warn("processor failed, building it anew", "error", err, "pause", pause)
		if p.cfg.weak.has(WithoutRebuild) {
			<-ctx.Done()
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (p *Processor) set(a *attempt, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current, p.why = a, why
}
