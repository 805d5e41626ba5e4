package cachefloor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/cachekeeper"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/topology"
)

// Source reads the shards that relations are committed in.
type Source interface {
	// Relations gives a shard's relations behind one, in the order of their
	// primary key, at most limit; none when there are no more.
	Relations(ctx context.Context, shard int, after topology.Relation, limit int) ([]cache.Relation, error)
	// AwaitWriters waits until Relations gives everything that the change feed
	// has told.
	AwaitWriters(ctx context.Context, shard int) error
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
	samples map[int]*sample // by shard, of the generation being rebuilt
	keeper  *cachekeeper.Keeper
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
	losses := prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_cachefloor_losses_total", Help: "Active generations that Redis has lost."})
	if cfg.Registerer != nil {
		if err := errors.Join(cfg.Registerer.Register(k.rebuilt), cfg.Registerer.Register(losses)); err != nil {
			return nil, fmt.Errorf("cachefloor: registering metrics: %w", err)
		}
	}
	k.keeper = cachekeeper.New(cachekeeper.Config{
		Family: cache.Relations, Part: k, Control: cfg.Control, Cache: cfg.Cache, Who: cfg.Who, Logger: k.log, Losses: losses,
	})
	return k, nil
}

// Run keeps the cache until ctx ends; it returns nil then.
func (k *Keeper) Run(ctx context.Context) error { return k.keeper.Run(ctx) }

// Begin is cachekeeper's.
func (k *Keeper) Begin(ctx context.Context, reason string) (control.CacheGeneration, error) {
	return k.cfg.Control.BeginCache(ctx, cache.Relations, k.cfg.Buckets, k.cfg.Who, reason)
}

// Stale is cachekeeper's: relations go stale by no other cause than a loss.
func (k *Keeper) Stale(cache.Generation) string { return "" }

// End tells every partition that a generation has ended.
func (k *Keeper) End(ctx context.Context, g cache.Generation) error {
	_, err := k.send(ctx, endTasks(k.cfg.Topology, g.ID))
	return err
}
