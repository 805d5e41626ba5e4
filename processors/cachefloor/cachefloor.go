package cachefloor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Config of a cache floor process.
type Config struct {
	Client   gokakit.Client
	Topology *topology.Topology
	// Cache is the Redis that is written.
	Cache *cache.Client
	// Lives tells which generations have ended.
	Lives      Lives
	StateDir   string
	Instance   string
	HotStandby bool
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
	// Weakness switches mechanisms off, for drills that must be able to fail.
	Weakness gokakit.Weakness
}

// Lives knows the generations of the control database; *control.CacheWatch does.
type Lives interface {
	// Ended tells whether a generation is RETIRED or FAILED, for ever.
	Ended(g cache.Generation) bool
}

// CacheFloor is a member of the cachefloor group.
type CacheFloor struct {
	cfg         Config
	facts       string // topic
	tasks       string // topic
	quarantine  string // topic
	quarantined *quarantine.Tally
	writer      *writer
	processor   *gokakit.Processor
}

// New checks the configuration; it does not talk to Kafka or Redis yet.
func New(cfg Config) (*CacheFloor, error) {
	f := &CacheFloor{
		cfg: cfg, facts: cfg.Topology.Topic(topology.Facts), tasks: cfg.Topology.Topic(topology.CacheTasks),
		quarantine: cfg.Topology.Topic(topology.Quarantine),
	}
	var err error
	if f.quarantined, err = quarantine.NewTally(topology.CacheFloorGroup, cfg.Registerer, cfg.Logger); err != nil {
		return nil, err
	}
	if f.writer, err = newWriter(cfg); err != nil {
		return nil, err
	}
	f.processor, err = gokakit.NewProcessor(gokakit.ProcessorConfig{
		Client: cfg.Client, Topology: cfg.Topology, Group: topology.CacheFloorGroup, Schema: Schema{},
		Handle: f.handle, NewOwner: f.writer.newOwner,
		StateDir: cfg.StateDir, Instance: cfg.Instance, HotStandby: cfg.HotStandby,
		Logger: cfg.Logger, Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, err
	}
	f.processor.Weaken(cfg.Weakness)
	return f, nil
}

// Run takes facts and tasks until ctx ends; it returns nil then.
func (f *CacheFloor) Run(ctx context.Context) error { return f.processor.Run(ctx) }

// Ready is nil while facts are taken, and else says why they are not.
func (f *CacheFloor) Ready() error {
	return errors.Join(f.processor.Ready(), f.writer.ready())
}

// handle takes a record of either input. The table's only other writer is an
// older owner, so what it does depends on table and record alone.
func (f *CacheFloor) handle(part *gokakit.Partition, r topology.Record) error {
	if r.Topic == f.facts {
		fact, no := readFact(r)
		if no != nil {
			return f.setAside(part, r, no)
		}
		return f.raise(part, fact)
	}
	var task tidemarkv1.CacheTask
	if no := decode(r, &task); no != nil {
		return f.setAside(part, r, no)
	}
	switch body := task.Body.(type) {
	case *tidemarkv1.CacheTask_Relation:
		given, no := readKnown(r, body.Relation)
		if no != nil {
			return f.setAside(part, r, no)
		}
		return f.raise(part, given)
	case *tidemarkv1.CacheTask_User:
		asked, no := readUnknown(r, body.User)
		if no != nil {
			return f.setAside(part, r, no)
		}
		return f.complete(part, body.User.Generation, asked)
	case *tidemarkv1.CacheTask_Begin:
		return f.change(part, r, body.Begin.Generation, func(old *tidemarkv1.LiveGenerations) *tidemarkv1.LiveGenerations {
			return Begin(old, body.Begin)
		})
	case *tidemarkv1.CacheTask_End:
		return f.change(part, r, body.End, func(old *tidemarkv1.LiveGenerations) *tidemarkv1.LiveGenerations {
			return End(old, body.End)
		})
	}
	return f.setAside(part, r, quarantine.Refuse(quarantine.MalformedRecord, "a CacheTask of an unknown sort"))
}

func (f *CacheFloor) setAside(part *gokakit.Partition, r topology.Record, no *quarantine.Refusal) error {
	f.quarantined.Add(r, no.Reason)
	key, value := no.Record(r)
	return part.Emit(f.quarantine, key, value)
}

// raise brings a state of a version to the floors of the generations that it is
// for, and has Redis told what then stands. Redis is told even if nothing has
// changed: the record may have come before, and its effect not.
func (f *CacheFloor) raise(part *gokakit.Partition, k known) error {
	live, err := f.live(part)
	if err != nil {
		return err
	}
	for _, g := range live.GetGenerations() {
		if f.cfg.Weakness.Has(gokakit.WithoutEnded) && k.generation != 0 {
			g = &tidemarkv1.LiveGeneration{Generation: k.generation, Deployment: g.Deployment, Buckets: g.Buckets}
		}
		if k.generation != 0 && k.generation != g.Generation {
			continue
		}
		if err := f.raiseIn(part, g, k); err != nil {
			return err
		}
	}
	return nil
}

func (f *CacheFloor) raiseIn(part *gokakit.Partition, g *tidemarkv1.LiveGeneration, k known) error {
	key := topology.FloorKey(part.Number(), g.Generation, k.key)
	value, err := part.Get(key)
	if err != nil {
		return err
	}
	var old tidemarkv1.FloorRow
	if err := decodeRow(value, &old); err != nil {
		return err
	}
	stands := old.GetRelation()
	if f.takesAnything(stands, g.Generation) {
		stands = nil
	}
	row, changed, ok := Floor(stands, g.Generation, k.version, tidemarkv1.State(k.state))
	if !ok {
		return nil
	}
	if changed {
		if err := put(part, key, &tidemarkv1.FloorRow{Body: &tidemarkv1.FloorRow_Relation{Relation: row}}); err != nil {
			return err
		}
	}
	if err := part.Owner().(*owner).claim(part); err != nil {
		return err
	}
	return part.Perform(entry{
		generation: cacheGeneration(g),
		relation:   cache.Relation{Relation: k.relation, State: topology.State(row.State), Version: row.Version},
	})
}

// complete has Redis told all that a user has of a kind, if the generation is one
// that the partition writes.
func (f *CacheFloor) complete(part *gokakit.Partition, generation uint64, of ofUser) error {
	live, err := f.live(part)
	if err != nil {
		return err
	}
	for _, g := range live.GetGenerations() {
		if g.Generation != generation {
			continue
		}
		if err := part.Owner().(*owner).claim(part); err != nil {
			return err
		}
		return part.Perform(completion{generation: cacheGeneration(g), of: of})
	}
	return nil
}

func cacheGeneration(g *tidemarkv1.LiveGeneration) cache.Generation {
	return cache.Generation{Family: cache.Relations, ID: g.Generation, Deployment: g.Deployment, Buckets: int(g.Buckets)}
}

// takesAnything says whether a row is taken for an empty one, the check that it
// is not being switched off.
func (f *CacheFloor) takesAnything(row *tidemarkv1.FloorRelation, generation uint64) bool {
	w := f.cfg.Weakness
	return w.Has(gokakit.WithoutFloor) || w.Has(gokakit.WithoutEnded) && row.GetGeneration() > generation
}

func (f *CacheFloor) live(part *gokakit.Partition) (*tidemarkv1.LiveGenerations, error) {
	value, err := part.Get(topology.LiveKey(part.Number()))
	if err != nil {
		return nil, err
	}
	var row tidemarkv1.FloorRow
	if err := decodeRow(value, &row); err != nil {
		return nil, err
	}
	return row.GetLive(), nil
}

func (f *CacheFloor) change(part *gokakit.Partition, r topology.Record, generation uint64, next func(*tidemarkv1.LiveGenerations) *tidemarkv1.LiveGenerations) error {
	if no := checkLive(r, generation); no != nil {
		return f.setAside(part, r, no)
	}
	old, err := f.live(part)
	if err != nil {
		return err
	}
	live := next(old)
	if live == nil {
		return nil
	}
	return put(part, topology.LiveKey(part.Number()), &tidemarkv1.FloorRow{Body: &tidemarkv1.FloorRow_Live{Live: live}})
}

func put(part *gokakit.Partition, key string, row *tidemarkv1.FloorRow) error {
	value, err := row.MarshalVT()
	if err != nil {
		return fmt.Errorf("encoding a row of the table: %w", err)
	}
	return part.Put(key, value)
}
