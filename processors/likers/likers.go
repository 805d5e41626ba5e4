package likers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Config of a likers process.
type Config struct {
	Client   gokakit.Client
	Topology *topology.Topology
	// Reverse is the active reverse generation.
	Reverse  topology.ReverseGeneration
	StateDir string
	Instance string
	// Advertise is host:port at which Server answers, told in the group's
	// member data; empty: nobody is told.
	Advertise string
	// ShowInterval is the shortest time between two moments that pages show;
	// default 200 ms, at least 1 ms.
	ShowInterval time.Duration
	HotStandby   bool
	// WriteBehind is how many bytes of acked rows a partition gathers in RAM
	// before it writes them to its store; 0: the default.
	WriteBehind int
	// Heads of hot lists in Redis; nil: none are kept.
	Heads      *HeadsConfig
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
	// Weakness switches mechanisms off, for drills that must be able to fail.
	Weakness gokakit.Weakness
}

// DefaultShowInterval is how often a list that changes is shown anew.
const DefaultShowInterval = 200 * time.Millisecond

// Likers is a member of the likers group, and answers for the partitions that
// it owns.
type Likers struct {
	cfg         Config
	quarantine  string // topic
	quarantined *quarantine.Tally
	pages       prometheus.Histogram
	notReady    prometheus.Counter
	processor   *gokakit.Processor
	exports     exports
	headMetrics *headMetrics // nil when no heads are kept

	mu    sync.RWMutex
	owned map[int]*gokakit.Partition // whole, and no other process writes them
	warm  map[int]*gokakit.Partition // owned elsewhere, and read on here
}

// New checks the configuration; it does not talk to Kafka yet.
func New(cfg Config) (*Likers, error) {
	if cfg.ShowInterval == 0 {
		cfg.ShowInterval = DefaultShowInterval
	}
	if cfg.ShowInterval < time.Millisecond {
		return nil, fmt.Errorf("likers: show interval %v is under 1ms", cfg.ShowInterval)
	}
	if err := cfg.Reverse.Check(cfg.Topology.Config.LikerPartitions, cfg.Topology.Config.ReverseShards); err != nil {
		return nil, fmt.Errorf("likers: %w", err)
	}
	l := &Likers{cfg: cfg, quarantine: cfg.Topology.Topic(topology.Quarantine), owned: map[int]*gokakit.Partition{}, warm: map[int]*gokakit.Partition{}}
	var err error
	if l.quarantined, err = quarantine.NewTally(topology.LikersGroup, cfg.Registerer, cfg.Logger); err != nil {
		return nil, err
	}
	if err := l.register(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("likers: registering metrics: %w", err)
	}
	if cfg.Heads != nil {
		heads, err := cfg.Heads.withDefaults()
		if err != nil {
			return nil, err
		}
		if l.headMetrics, err = newHeadMetrics(cfg.Registerer); err != nil {
			return nil, fmt.Errorf("likers: registering metrics: %w", err)
		}
		l.cfg.Heads = &heads
	}
	l.processor, err = gokakit.NewProcessor(gokakit.ProcessorConfig{
		Client: cfg.Client, Topology: cfg.Topology, Group: topology.LikersGroup, Schema: Schema{},
		Handle: l.handle, NewOwner: l.newShower,
		StateDir: cfg.StateDir, Instance: cfg.Instance, Advertise: cfg.Advertise, HotStandby: cfg.HotStandby, WriteBehind: cfg.WriteBehind,
		Logger: cfg.Logger, Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, err
	}
	l.processor.Weaken(cfg.Weakness)
	return l, nil
}

func (l *Likers) register(reg prometheus.Registerer) error {
	l.pages = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tidemark_likers_page_seconds", Help: "Time to read a page from a partition's store.",
		Buckets: prometheus.ExponentialBuckets(1e-5, 4, 8),
	})
	l.notReady = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_likers_not_ready_total", Help: "Pages that were asked while their partition was not served here."})
	if reg == nil {
		return nil
	}
	return errors.Join(reg.Register(l.pages), reg.Register(l.notReady))
}

// Run takes changes until ctx ends; it returns nil then.
func (l *Likers) Run(ctx context.Context) error { return l.processor.Run(ctx) }

// Ready is nil while changes are taken, and else says why they are not.
func (l *Likers) Ready() error { return l.processor.Ready() }

// handle decodes a record, applies it, and puts what changed.
func (l *Likers) handle(part *gokakit.Partition, r topology.Record) error {
	var change tidemarkv1.LikerChange
	if no := decode(l.cfg.Reverse, r, &change); no != nil {
		l.quarantined.Add(r, no.Reason)
		key, value := no.Record(r)
		return part.Emit(l.quarantine, key, value)
	}
	if err := part.Owner().(*shower).heads.claim(); err != nil {
		return err
	}
	value, err := part.Get(r.Key)
	if err != nil {
		return err
	}
	var old tidemarkv1.LikerRow
	if err := decodeRow(value, &old); err != nil {
		return err
	}
	row := next(&old, &change)
	l.exports.note(part, &change, &old, row)
	return put(part, r.Key, row)
}

// next is the row that a change makes of an old one; nil when it alters
// nothing. Seals never go back.
func next(old *tidemarkv1.LikerRow, change *tidemarkv1.LikerChange) *tidemarkv1.LikerRow {
	if w := change.GetWatermark(); w != nil {
		if w.Seal <= old.GetWatermark().GetSeal() {
			return nil
		}
		return &tidemarkv1.LikerRow{Body: &tidemarkv1.LikerRow_Watermark{Watermark: w}}
	}
	r, _ := Apply(old.GetRelation(), change.GetRelation())
	if r == nil {
		return nil
	}
	return &tidemarkv1.LikerRow{Body: &tidemarkv1.LikerRow_Relation{Relation: r}}
}

func put(part *gokakit.Partition, key string, row *tidemarkv1.LikerRow) error {
	if row == nil {
		return nil
	}
	value, err := row.MarshalVT()
	if err != nil {
		return fmt.Errorf("encoding a row of the table: %w", err)
	}
	return part.Put(key, value)
}
