package intake

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
)

// Config says where an intake runs.
type Config struct {
	Client   gokakit.Client
	Topology *topology.Topology
	// Manifest is the active route manifest of the active generation.
	Manifest topology.Manifest
	// Instance is unique among the processes that run intake.
	Instance   string
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
	Now        func() time.Time      // for metrics only; default time.Now
}

// Intake is a member of the intake group.
type Intake struct {
	core      *Core
	metrics   *metrics
	processor *gokakit.Processor
	log       *slog.Logger
}

// New checks the configuration; it does not talk to Kafka yet.
func New(cfg Config) (*Intake, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	core, err := NewCore(cfg.Topology, cfg.Manifest)
	if err != nil {
		return nil, err
	}
	in := &Intake{core: core, log: cfg.Logger.With("component", topology.IntakeGroup)}
	if in.metrics, err = newMetrics(cfg.Registerer, cfg.Now); err != nil {
		return nil, fmt.Errorf("intake: registering metrics: %w", err)
	}
	in.processor, err = gokakit.NewProcessor(gokakit.ProcessorConfig{
		Client:     cfg.Client,
		Topology:   cfg.Topology,
		Group:      topology.IntakeGroup,
		Handle:     in.handle,
		Instance:   cfg.Instance,
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
	e := in.core.Apply(r)
	for _, em := range e.Emissions {
		if err := p.Emit(em.Topic, em.Key, em.Value); err != nil {
			return err
		}
	}
	in.metrics.observe(r.Partition, e)
	if e.Outcome == Quarantined {
		in.quarantined(r, e.Reason)
	}
	return nil
}

// quarantined counts every record and logs the 1st, 2nd, 4th, 8th, ... of a
// reason, so that a feed that is wrong throughout does not flood the log.
func (in *Intake) quarantined(r gokakit.Record, reason Reason) {
	if n := in.metrics.quarantined[reason].add(); n&(n-1) == 0 {
		in.log.Warn("quarantined a record of the change feed", "reason", reasonLabel(reason), "partition", r.Partition, "offset", r.Offset, "soFar", n)
	}
}
