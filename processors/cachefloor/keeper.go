package cachefloor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

// Source reads the shards that relations are committed in.
type Source interface {
	// Relations gives a shard's relations behind one, in the order of their
	// primary key, at most limit; none when there are no more.
	Relations(ctx context.Context, shard int, after topology.Relation, limit int) ([]cache.Relation, error)
	// Extent tells about how many relations a shard has, and its newest seal.
	Extent(ctx context.Context, shard int) (relations int64, seal uint64, err error)
}

// KeeperConfig of what leads generations through their lives.
type KeeperConfig struct {
	Control  *control.DB
	Cache    *cache.Client
	Kafka    *kgo.Client
	Topology *topology.Topology
	Source   Source
	// Buckets that a user's relations are spread over, of generations begun from
	// now on; default 1.
	Buckets int
	// Rate at which a rebuilding reads relations, per second; default
	// DefaultRebuildRate.
	Rate int
	// Who stands in the audit.
	Who        string
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional

	page int // relations that are read in one step; default defaultPage
}

// DefaultRebuildRate reads a million relations in half a minute.
const DefaultRebuildRate = 30_000

// Keeper looks after the relation cache; of several, one at a time does.
type Keeper struct {
	cfg     KeeperConfig
	log     *slog.Logger
	rebuilt prometheus.Counter
	losses  prometheus.Counter
	lost    int             // looks at the active generation in a row that found it lost
	samples map[int]*sample // by shard, of the generation being rebuilt
}

// NewKeeper makes one.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	cfg.Buckets, cfg.Rate = max(cfg.Buckets, 1), max(cfg.Rate, 0)
	if cfg.page == 0 {
		cfg.page = defaultPage
	}
	if cfg.Rate == 0 {
		cfg.Rate = DefaultRebuildRate
	}
	k := &Keeper{cfg: cfg, samples: map[int]*sample{}, log: cfg.Logger.With("component", "cachefloor.keeper")}
	k.rebuilt = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_cachefloor_rebuilt_relations_total", Help: "Relations that rebuildings have read from the shards."})
	k.losses = prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_cachefloor_losses_total", Help: "Active generations that Redis has lost."})
	if cfg.Registerer != nil {
		if err := errors.Join(cfg.Registerer.Register(k.rebuilt), cfg.Registerer.Register(k.losses)); err != nil {
			return nil, fmt.Errorf("cachefloor: registering metrics: %w", err)
		}
	}
	return k, nil
}

// Intervals of the keeper.
const (
	keepInterval = time.Second
	// lossLooks is how many looks in a row must find a generation lost: a slot
	// that moves, or a node whose history is asked just now, looks like that for
	// a moment.
	lossLooks = 2
	// A generation that failed is followed by another after a pause that doubles
	// with each failure in a row, up to this.
	maxFailurePause = time.Minute
)

// Run keeps the cache until ctx ends; it returns nil then. That one keeper runs
// at a time only saves work: two are kept apart by the generations' steps, each
// taken once.
func (k *Keeper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		_, err := k.cfg.Control.Exclusively(ctx, "keeping the cache", func(ctx context.Context) error {
			for {
				if err := k.step(ctx); err != nil {
					return err
				}
				if !pause.For(ctx, keepInterval) {
					return nil
				}
			}
		})
		if err != nil && ctx.Err() == nil {
			k.log.Warn("looking after the cache failed, trying again", "error", err)
		}
		pause.For(ctx, keepInterval)
	}
	return nil
}

// step looks once, and does what there is to do.
func (k *Keeper) step(ctx context.Context) error {
	all, err := k.cfg.Control.CacheGenerations(ctx, cache.Relations, 8)
	if err != nil {
		return err
	}
	var active, rebuilding *control.CacheGeneration
	for i, g := range all {
		switch g.Status {
		case control.CacheActive:
			active = &all[i]
		case control.CacheRebuilding:
			rebuilding = &all[i]
		case control.CacheRetired, control.CacheFailed:
			if err := k.bury(ctx, g); err != nil {
				k.log.Debug("removing an ended generation", "generation", g.ID, "error", err)
			}
		}
	}
	if active != nil && k.isLost(ctx, *active) {
		return k.giveUp(ctx, active.Generation, "Redis does not hold it any more: its memory was lost, or went back")
	}
	switch {
	case rebuilding != nil:
		return k.rebuild(ctx, *rebuilding)
	case active == nil && k.mayBegin(all):
		return k.begin(ctx, all)
	}
	return nil
}

// isLost tells whether Redis has lost the active generation. A Redis that is
// away has lost nothing yet.
func (k *Keeper) isLost(ctx context.Context, g control.CacheGeneration) bool {
	err := k.cfg.Cache.Restamp(ctx, g.Generation)
	if err == nil {
		err = k.cfg.Cache.Held(ctx, g.Generation)
	}
	if !errors.Is(err, cache.ErrStamp) {
		k.lost = 0
		return false
	}
	k.lost++
	return k.lost >= lossLooks
}

func (k *Keeper) giveUp(ctx context.Context, g cache.Generation, reason string) error {
	k.lost = 0
	changed, err := k.cfg.Control.FailCache(ctx, g, k.cfg.Who, reason)
	if err != nil || !changed {
		return err
	}
	k.losses.Inc()
	k.log.Warn("a cache generation is given up; its relations are read from their shards until another one is whole", "generation", g.ID, "reason", reason)
	return nil
}

func (k *Keeper) mayBegin(all []control.CacheGeneration) bool {
	wait := time.Second
	for _, g := range all {
		if g.Status != control.CacheFailed || g.ActivatedAt != nil || g.EndedAt == nil {
			break
		}
		wait = min(2*wait, maxFailurePause)
	}
	return len(all) == 0 || all[0].EndedAt == nil || time.Since(*all[0].EndedAt) > wait
}

func (k *Keeper) begin(ctx context.Context, all []control.CacheGeneration) error {
	reason := "there was none"
	if len(all) > 0 {
		reason = fmt.Sprintf("generation %d: %s", all[0].ID, all[0].EndedReason)
	}
	g, err := k.cfg.Control.BeginCache(ctx, cache.Relations, k.cfg.Buckets, k.cfg.Who, reason)
	if errors.Is(err, control.ErrCacheRebuilding) {
		return nil
	}
	if err != nil {
		return err
	}
	k.log.Info("rebuilding the relation cache", "generation", g.ID, "reason", reason)
	return nil
}

// bury tells every partition that a generation has ended, and clears Redis of it.
func (k *Keeper) bury(ctx context.Context, g control.CacheGeneration) error {
	if g.Dropped {
		return nil
	}
	if _, err := k.send(ctx, endTasks(k.cfg.Topology, g.ID)); err != nil {
		return err
	}
	gently := func(ctx context.Context) error {
		if !pause.For(ctx, dropPause) {
			return ctx.Err()
		}
		return nil
	}
	keys, err := k.cfg.Cache.Drop(ctx, g.Generation, gently)
	if err != nil {
		return err
	}
	k.log.Info("removed an ended cache generation from Redis", "generation", g.ID, "keys", keys)
	return k.cfg.Control.CacheDropped(ctx, g.Generation)
}

// dropPause stands between two steps of removing an ended generation.
const dropPause = 2 * time.Millisecond
