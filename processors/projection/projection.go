package projection

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Config of a projection process.
type Config struct {
	Client   gokakit.Client
	Topology *topology.Topology
	// Manifest is the active route of every bucket.
	Manifest topology.Manifest
	StateDir string
	Instance string
	// RefreshInterval is the shortest time between two partial counts of one
	// target; default 200 ms, at least 1 ms.
	RefreshInterval time.Duration
	// Slow tells that displayed counts may be refreshed at a fifth of their pace,
	// since the deployment is overloaded; nil: never.
	Slow       func() bool
	HotStandby bool
	// WriteBehind is how many bytes of acked rows a partition gathers in RAM
	// before it writes them to its store; 0: the default.
	WriteBehind int
	Logger      *slog.Logger
	Registerer  prometheus.Registerer
	// Weakness switches mechanisms off, for drills that must be able to fail.
	Weakness gokakit.Weakness
}

// DefaultRefreshInterval is how often a busy target's count is shown anew.
const DefaultRefreshInterval = 200 * time.Millisecond

type projection struct {
	cfg         Config
	partials    string // topic
	quarantine  string // topic
	quarantined *quarantine.Tally
	emitted     prometheus.Counter
	dirty       prometheus.Gauge
}

// New builds the processor; Run of the result runs it.
func New(cfg Config) (*gokakit.Processor, error) {
	if cfg.RefreshInterval == 0 {
		cfg.RefreshInterval = DefaultRefreshInterval
	}
	if cfg.RefreshInterval < time.Millisecond {
		return nil, fmt.Errorf("projection: refresh interval %v is under 1ms", cfg.RefreshInterval)
	}
	if err := cfg.Manifest.Check(cfg.Topology.Config.CountPartitions); err != nil {
		return nil, fmt.Errorf("projection: %w", err)
	}
	p := &projection{cfg: cfg, partials: cfg.Topology.Topic(topology.PartialCounts), quarantine: cfg.Topology.Topic(topology.Quarantine)}
	var err error
	if p.quarantined, err = quarantine.NewTally("projection", cfg.Registerer, cfg.Logger); err != nil {
		return nil, err
	}
	if err := p.register(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("projection: registering metrics: %w", err)
	}
	proc, err := gokakit.NewProcessor(gokakit.ProcessorConfig{
		Client: cfg.Client, Topology: cfg.Topology, Group: topology.ProjectionGroup, Schema: Schema{},
		Handle: p.handle, NewOwner: p.newFlusher,
		StateDir: cfg.StateDir, Instance: cfg.Instance, HotStandby: cfg.HotStandby, WriteBehind: cfg.WriteBehind,
		Logger: cfg.Logger, Registerer: cfg.Registerer,
	})
	if err == nil {
		proc.Weaken(cfg.Weakness)
	}
	return proc, err
}

func (p *projection) register(reg prometheus.Registerer) error {
	p.emitted = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_projection_partials_total", Help: "Partial counts emitted."})
	p.dirty = prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemark_projection_dirty_targets", Help: "Targets of this process whose partial count is not out yet."})
	if reg == nil {
		return nil
	}
	return errors.Join(reg.Register(p.emitted), reg.Register(p.dirty))
}

// handle decodes a record, applies it, and puts what changed.
func (p *projection) handle(part *gokakit.Partition, r topology.Record) error {
	part.Owner().(*flusher).wait()
	var change tidemarkv1.BucketChange
	if bad := decode(p.cfg.Manifest, r, &change); bad != nil {
		return p.setAside(part, r, bad)
	}
	if w := change.GetWatermark(); w != nil {
		return p.takeWatermark(part, r.Key, w)
	}
	return p.count(part, r, change.GetRelation())
}

func (p *projection) count(part *gokakit.Partition, r topology.Record, c *tidemarkv1.RelationChange) error {
	old, err := p.read(part, r.Key)
	if err != nil {
		return err
	}
	if p.cfg.Weakness.Has(gokakit.WithoutDuplicateCheck) {
		old = forgotten(old)
	}
	if p.cfg.Weakness.Has(gokakit.WithoutHiding) {
		c.Hidden, c.HiddenReason = tidemarkv1.Hidden_HIDDEN_UNSPECIFIED, ""
	}
	next, err := Apply(old, c, Input{part.InputEpoch(r.Topic), r.Offset})
	if errors.Is(err, ErrNegative) {
		return p.setAside(part, r, quarantine.Refuse(quarantine.NegativeCount, "%v", err))
	}
	if err != nil || next == nil {
		return err
	}
	return put(part, r.Key, &tidemarkv1.ProjectionRow{Body: &tidemarkv1.ProjectionRow_Relation{Relation: next}})
}

// forgotten is a state that does not tell what it includes.
func forgotten(s State) State {
	if s.Relation != nil {
		s.Relation.Version = 0
	}
	if s.Bucket != nil {
		s.Bucket.InputOffset = -1
	}
	return s
}

func (p *projection) read(part *gokakit.Partition, key string) (State, error) {
	value, err := part.Get(key)
	if err != nil {
		return State{}, err
	}
	row, err := decodeRow(value)
	if err != nil {
		return State{}, err
	}
	group, item, err := bucketOf(key)
	if err != nil {
		return State{}, err
	}
	value, err = part.Derived(group, item)
	if err != nil {
		return State{}, err
	}
	bucket, err := decodeBucket(value)
	return State{Relation: row.GetRelation(), Bucket: bucket}, err
}

// takeWatermark keeps a shard's highest seal; seals never go back.
func (p *projection) takeWatermark(part *gokakit.Partition, key string, w *tidemarkv1.SourceWatermark) error {
	value, err := part.Get(key)
	if err != nil {
		return err
	}
	row, err := decodeRow(value)
	if err != nil || w.Seal <= row.GetWatermark().GetSeal() {
		return err
	}
	return put(part, key, &tidemarkv1.ProjectionRow{Body: &tidemarkv1.ProjectionRow_Watermark{Watermark: w}})
}

func put(part *gokakit.Partition, key string, row *tidemarkv1.ProjectionRow) error {
	value, err := row.MarshalVT()
	if err != nil {
		return fmt.Errorf("encoding a row of the table: %w", err)
	}
	return part.Put(key, value)
}

// setAside quarantines a record; the partition goes on with the next.
func (p *projection) setAside(part *gokakit.Partition, r topology.Record, no *quarantine.Refusal) error {
	p.quarantined.Add(r, no.Reason)
	key, value := no.Record(r)
	return part.Emit(p.quarantine, key, value)
}
