package display

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/displaytable"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Config says where a display processor runs.
type Config struct {
	Client   gokakit.Client
	Topology *topology.Topology
	// StateDir holds the partitions' stores.
	StateDir string
	// Instance is unique among the processes that run display.
	Instance   string
	HotStandby bool // keep the other partitions' tables warm
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
	// Counts has a copy of the counts in Redis; nil: there is none.
	Counts *CountsConfig
}

// Display is a member of the display group.
type Display struct {
	cfg         Config
	setAside    string                        // topic
	updates     map[string]prometheus.Counter // by result
	quarantined *quarantine.Tally
	counts      *counts // nil without a copy in Redis
	processor   *gokakit.Processor
}

// Results of an update; also the values of the metric label.
const (
	taken       = "taken"
	ignored     = "ignored"
	quarantined = "quarantined"
)

// New checks the configuration; it does not talk to Kafka yet.
func New(cfg Config) (*Display, error) {
	d := &Display{cfg: cfg, setAside: cfg.Topology.Topic(topology.Quarantine), updates: map[string]prometheus.Counter{}}
	updates := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "tidemark_display_updates_total", Help: "Partial counts and progress, by what became of them."}, []string{"result"})
	for _, r := range []string{taken, ignored, quarantined} {
		d.updates[r] = updates.WithLabelValues(r)
	}
	var err error
	if d.quarantined, err = quarantine.NewTally(topology.DisplayGroup, cfg.Registerer, cfg.Logger); err != nil {
		return nil, fmt.Errorf("display: %w", err)
	}
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(updates); err != nil {
			return nil, fmt.Errorf("display: registering metrics: %w", err)
		}
	}
	var newOwner func(*gokakit.Partition) gokakit.Owner
	if cfg.Counts != nil {
		if d.counts, err = newCounts(cfg); err != nil {
			return nil, err
		}
		newOwner = d.counts.newFollower
	}
	d.processor, err = gokakit.NewProcessor(gokakit.ProcessorConfig{
		Client:     cfg.Client,
		Topology:   cfg.Topology,
		Group:      topology.DisplayGroup,
		Schema:     displaytable.Schema{},
		Handle:     d.handle,
		NewOwner:   newOwner,
		StateDir:   cfg.StateDir,
		Instance:   cfg.Instance,
		HotStandby: cfg.HotStandby,
		Logger:     cfg.Logger,
		Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Run takes updates until ctx ends; it returns nil then.
func (d *Display) Run(ctx context.Context) error { return d.processor.Run(ctx) }

// Ready is nil while updates are taken, and else says why they are not.
func (d *Display) Ready() error { return d.processor.Ready() }

func (d *Display) handle(p *gokakit.Partition, r gokakit.Record) error {
	update, no := decode(d.cfg.Topology.Config, r)
	if no != nil {
		return d.quarantine(p, r, no)
	}
	old, err := stored(p, r.Key, update)
	if err != nil {
		return err
	}
	next, no := Apply(old, update, r.Offset)
	switch {
	case no != nil:
		return d.quarantine(p, r, no)
	case next == nil:
		d.updates[ignored].Inc()
		return nil
	}
	value, err := next.MarshalVT()
	if err != nil {
		return fmt.Errorf("encoding a row of the display table: %w", err)
	}
	d.updates[taken].Inc()
	if f, ok := p.Owner().(*follower); ok && update.GetPartial() != nil {
		f.change(r.Key, update.GetPartial().Partition)
	}
	return p.Put(r.Key, value)
}

func (d *Display) quarantine(p *gokakit.Partition, r gokakit.Record, no *quarantine.Refusal) error {
	d.updates[quarantined].Inc()
	d.quarantined.Add(r, no.Reason)
	key, value := no.Record(r)
	return p.Emit(d.setAside, key, value)
}

// stored reads a key's row, nil when there is none. A row that does not fit
// its key means that the table is damaged, which no record can mend.
func stored(p *gokakit.Partition, key string, update *tidemarkv1.CountUpdate) (*tidemarkv1.DisplayRow, error) {
	value, err := p.Get(key)
	if err != nil || value == nil {
		return nil, err
	}
	row := new(tidemarkv1.DisplayRow)
	if err := row.UnmarshalVT(value); err != nil {
		return nil, fmt.Errorf("reading a row of the display table: %w", err)
	}
	if (row.GetProgress() != nil) != (update.GetProgress() != nil) {
		return nil, errors.New("reading a row of the display table: progress stands under a target's key, or a snapshot under one of progress")
	}
	return row, nil
}
