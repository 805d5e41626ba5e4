package intake

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
)

// Config says where an intake runs.
type Config struct {
	Client   gokakit.Client
	Topology *topology.Topology
	// Manifest is the active route manifest of the active generation.
	Manifest topology.Manifest
	// Reverse is the active reverse generation.
	Reverse topology.ReverseGeneration
	// StateDir holds the partitions' stores: a cache of the intake table.
	StateDir string
	// Gaps names what seals show to be missing; nil: suspicions stay in the
	// table until a process has it.
	Gaps Gaps
	// Instance is unique among the processes that run intake.
	Instance   string
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
	Now        func() time.Time      // for metrics only; default time.Now
}

// Intake is a member of the intake group.
type Intake struct {
	core        *Core
	topo        *topology.Topology
	feed        feedLog
	gaps        Gaps
	log         *slog.Logger
	metrics     *metrics
	quarantined *quarantine.Tally
	processor   *gokakit.Processor
}

// New checks the configuration; it does not talk to Kafka yet.
func New(cfg Config) (*Intake, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	core, err := NewCore(cfg.Topology, cfg.Manifest, cfg.Reverse)
	if err != nil {
		return nil, err
	}
	in := &Intake{core: core, topo: cfg.Topology, feed: feedLog{cfg.Client}, gaps: cfg.Gaps, log: cfg.Logger.With("component", topology.IntakeGroup)}
	if in.metrics, err = newMetrics(cfg.Registerer, cfg.Now); err != nil {
		return nil, fmt.Errorf("intake: registering metrics: %w", err)
	}
	if in.quarantined, err = quarantine.NewTally(topology.IntakeGroup, cfg.Registerer, cfg.Logger); err != nil {
		return nil, fmt.Errorf("intake: %w", err)
	}
	in.processor, err = gokakit.NewProcessor(gokakit.ProcessorConfig{
		Client:     cfg.Client,
		Topology:   cfg.Topology,
		Group:      topology.IntakeGroup,
		Schema:     Schema{},
		Handle:     in.handle,
		NewOwner:   in.newKeeper,
		StateDir:   cfg.StateDir,
		Instance:   cfg.Instance,
		SkipLost:   true, // seals name what is missing then
		Logger:     cfg.Logger,
		Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, err
	}
	return in, nil
}

// Run takes records until ctx ends; it returns nil then.
func (in *Intake) Run(ctx context.Context) error { return in.processor.Run(ctx) }

// Ready is nil while records are taken, and else says why they are not.
func (in *Intake) Ready() error { return in.processor.Ready() }

func (in *Intake) handle(p *gokakit.Partition, r gokakit.Record) error {
	k := p.Owner().(*keeper)
	if err := k.begin(r); err != nil {
		return fmt.Errorf("preparing the ledger of shard %d: %w", r.Partition, err)
	}
	e := in.core.Apply(r)
	for _, em := range e.Emissions {
		if err := p.Emit(em.Topic, em.Key, em.Value); err != nil {
			return err
		}
	}
	in.metrics.observe(r.Partition, e)
	if e.Outcome == Quarantined {
		in.quarantined.Add(r, e.Reason)
	}
	return k.take(r, e.seen)
}
