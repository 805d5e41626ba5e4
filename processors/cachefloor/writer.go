package cachefloor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// entry is what Redis is to be told of a relation: what stands in the floor.
type entry struct {
	generation cache.Generation
	relation   cache.Relation
}

// completion has Redis told all that stands in the floor of a user's relations of a
// kind, and that this is all.
//
// The floor of an active generation has every relation: its rebuilding handed over
// what there was, and the facts the rest. Readers name active generations only.
// What is acked when a completion is performed is in it; what is acked later is
// performed later, so that a relation's first version finds the user's bucket
// whole, is written into it, and wins over its absence.
type completion struct {
	generation cache.Generation
	of         ofUser
}

// writer brings entries to Redis. An entry is never given up while its
// generation lives, since no later one may come to correct what Redis says.
type writer struct {
	redis *cache.RelationWriter
	lives Lives
	weak  gokakit.Weakness
	log   *slog.Logger

	written   prometheus.Counter
	completed prometheus.Counter
	dropped   prometheus.Counter
	errors    prometheus.Counter
	took      prometheus.Histogram

	mu  sync.Mutex
	why error // why Redis could not be written last; nil after a success
}

func newWriter(cfg Config) (*writer, error) {
	w := &writer{redis: cache.NewRelationWriter(cfg.Cache), lives: cfg.Lives, weak: cfg.Weakness, log: cfg.Logger.With("component", "cachefloor")}
	w.written = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_cachefloor_written_total", Help: "Entries that Redis was told, those that it had already included."})
	w.completed = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_cachefloor_completed_total", Help: "Users of whom Redis was told all relations of a kind, or that they are too many."})
	w.dropped = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_cachefloor_dropped_total", Help: "Entries of generations that have ended meanwhile."})
	w.errors = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_cachefloor_write_errors_total", Help: "Attempts to write to Redis that failed and are made again."})
	w.took = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "tidemark_cachefloor_write_seconds", Help: "Time to write a batch of entries to Redis.",
		Buckets: prometheus.ExponentialBuckets(1e-4, 4, 9),
	})
	if cfg.Registerer == nil {
		return w, nil
	}
	for _, c := range []prometheus.Collector{w.written, w.completed, w.dropped, w.errors, w.took} {
		if err := cfg.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("cachefloor: registering metrics: %w", err)
		}
	}
	return w, nil
}

func (w *writer) ready() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

func (w *writer) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.why = err
}

// owner writes the entries of one partition while it is owned.
type owner struct {
	*writer
	part      *gokakit.Partition
	partition int
	ctx       context.Context
	cancel    context.CancelFunc
	claimed   bool // of the handler's goroutine

	// epoch is the place of this owner's claim in the table's log, plus 1; of the
	// lane's goroutine. Whoever writes later has a higher one: an owner whose claim
	// comes after another's is stopped before it writes (gokakit's fence).
	epoch int64
}

var _ gokakit.Performer = (*owner)(nil)

func (w *writer) newOwner(part *gokakit.Partition) gokakit.Owner {
	ctx, cancel := context.WithCancel(context.Background())
	return &owner{writer: w, part: part, partition: part.Number(), ctx: ctx, cancel: cancel}
}

// claim says in the table's log, once, that this owner writes from here on.
func (o *owner) claim(part *gokakit.Partition) error {
	if o.claimed {
		return nil
	}
	value, err := part.Get(topology.ClaimKey(part.Number()))
	if err != nil {
		return err
	}
	var row tidemarkv1.FloorRow
	if err := decodeRow(value, &row); err != nil {
		return err
	}
	next := &tidemarkv1.OwnerClaim{Number: row.GetClaim().GetNumber() + 1}
	if err := put(part, topology.ClaimKey(part.Number()), &tidemarkv1.FloorRow{Body: &tidemarkv1.FloorRow_Claim{Claim: next}}); err != nil {
		return err
	}
	o.claimed = true
	return nil
}

// Settled learns this owner's epoch; entries come through Perform, behind it.
func (o *owner) Settled(key string, _ []byte, offset int64, _ []gokakit.Derived) {
	if o.epoch == 0 && key == topology.ClaimKey(o.partition) {
		o.epoch = offset + 1
	}
}

// Run ends attempts when the partition is lost.
func (o *owner) Run(ctx context.Context) error {
	<-ctx.Done()
	o.cancel()
	return nil
}

// Perform writes a batch of entries, generation by generation, then completions.
func (o *owner) Perform(effects []any) error {
	if o.epoch == 0 {
		return errors.New("writing to Redis: this owner's claim is not in the log") // cannot be: it stands before every entry
	}
	byGeneration := map[cache.Generation][]cache.Relation{}
	unknown := map[cache.Generation]map[ofUser]bool{}
	for _, e := range effects {
		switch e := e.(type) {
		case entry:
			byGeneration[e.generation] = append(byGeneration[e.generation], e.relation)
		case completion:
			if unknown[e.generation] == nil {
				unknown[e.generation] = map[ofUser]bool{}
			}
			unknown[e.generation][e.of] = true
		}
	}
	as := cache.Owner{Name: topology.Hex4(o.partition), Epoch: o.epoch}
	for g, relations := range byGeneration {
		err := o.write(o.ctx, g, len(relations), func() error {
			_, err := o.redis.Write(o.ctx, g, as, relations)
			return err
		})
		if err != nil {
			return err
		}
	}
	for g, users := range unknown {
		for some := range slices.Chunk(slices.Collect(maps.Keys(users)), completedAtOnce) {
			if err := o.completeSome(g, as, some); err != nil {
				return err
			}
		}
	}
	return nil
}

// completedAtOnce bounds what is in memory, and how long the table's other users
// wait while it is read.
const completedAtOnce = 32

func (o *owner) completeSome(g cache.Generation, as cache.Owner, users []ofUser) error {
	prefixes := make([]string, len(users))
	for i, of := range users {
		prefixes[i] = topology.FloorKey(o.partition, g.ID, topology.RelationsKey(of.kind, of.user)) + ":"
	}
	floors, err := o.part.AckedUnder(prefixes, cache.MostOfUser)
	if err != nil {
		return err
	}
	all := make([]cache.UserRelations, len(users))
	entries := 0
	for i, of := range users {
		all[i] = cache.UserRelations{Kind: of.kind, User: of.user}
		if all[i].Relations, err = relationsIn(floors[prefixes[i]], g.ID); err != nil {
			return err
		}
		if len(floors[prefixes[i]]) > cache.MostOfUser {
			all[i].Relations, all[i].Many = nil, true
		}
		entries += len(all[i].Relations)
	}
	return o.write(o.ctx, g, entries, func() error {
		if err := o.redis.WriteUsers(o.ctx, g, as, all); err != nil {
			return err
		}
		o.completed.Add(float64(len(all)))
		return nil
	})
}

// relationsIn are the relations that a generation has in rows of the table.
func relationsIn(rows map[string][]byte, generation uint64) (relations []cache.Relation, err error) {
	for key, value := range rows {
		var row tidemarkv1.FloorRow
		if err := decodeRow(value, &row); err != nil {
			return nil, err
		}
		floor := row.GetRelation()
		if floor.GetGeneration() != generation {
			continue // of the one whose rows this one takes over
		}
		_, _, relation, err := topology.ParseCountedKey(key)
		if err != nil {
			return nil, fmt.Errorf("reading a floor's key %.60q: %w", key, err)
		}
		relations = append(relations, cache.Relation{Relation: relation, State: topology.State(floor.State), Version: floor.Version})
	}
	return relations, nil
}

// patience is how long a batch is tried before the processor is built anew. That
// happens again and again while Redis is away, and lets partitions move.
const patience = 5 * time.Second

// write ends when do has brought Redis so many entries, or the generation has
// ended.
func (w *writer) write(ctx context.Context, g cache.Generation, entries int, do func() error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 10*time.Millisecond, 500*time.Millisecond
	for start := time.Now(); ; {
		if w.lives.Ended(g) && !w.weak.Has(gokakit.WithoutEnded) {
			w.dropped.Add(float64(entries))
			return nil
		}
		began := time.Now()
		err := do()
		if err == nil {
			w.note(nil)
			w.took.Observe(time.Since(began).Seconds())
			w.written.Add(float64(entries))
			return nil
		}
		w.errors.Inc()
		w.note(err)
		if ctx.Err() != nil || errors.Is(err, cache.ErrFenced) || time.Since(start) > patience {
			return err
		}
		pause.For(ctx, wait.NextBackOff())
	}
}
