package display

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/cachekeeper"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

// KeeperConfig of what leads generations of cached counts through their lives.
type KeeperConfig struct {
	Control  *control.DB
	Cache    *cache.Client
	Kafka    *kgo.Client
	Topology *topology.Topology
	// Manifest by which counts are counted.
	Manifest uint64
	// Who stands in the audit.
	Who        string
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
}

// Keeper looks after the counts in Redis; of several, one at a time does. The
// counts themselves are brought there by the partitions' owners, from the table,
// which is never rolled back for a loss of Redis (E4).
type Keeper struct {
	cfg    KeeperConfig
	log    *slog.Logger
	keeper *cachekeeper.Keeper
}

// NewKeeper makes one.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	k := &Keeper{cfg: cfg, log: cfg.Logger.With("component", "display.keeper")}
	losses := prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_display_cache_losses_total", Help: "Active generations of counts that Redis has lost."})
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(losses); err != nil {
			return nil, fmt.Errorf("display: registering metrics: %w", err)
		}
	}
	k.keeper = cachekeeper.New(cachekeeper.Config{
		Family: cache.Counts, Part: k, Control: cfg.Control, Cache: cfg.Cache, Who: cfg.Who, Logger: k.log, Losses: losses,
	})
	return k, nil
}

// Run keeps the counts until ctx ends; it returns nil then.
func (k *Keeper) Run(ctx context.Context) error { return k.keeper.Run(ctx) }

// Begin is cachekeeper's.
func (k *Keeper) Begin(ctx context.Context, reason string) (control.CacheGeneration, error) {
	return k.cfg.Control.BeginCountCache(ctx, k.cfg.Manifest, k.cfg.Who, reason)
}

// Stale is cachekeeper's: counts of other routes belong to another generation.
func (k *Keeper) Stale(g cache.Generation) string {
	if g.Manifest != k.cfg.Manifest {
		return fmt.Sprintf("its counts are counted by manifest %d, and manifest %d is in force", g.Manifest, k.cfg.Manifest)
	}
	return ""
}

// End is cachekeeper's: owners see the control database, and Redis refuses them.
func (k *Keeper) End(context.Context, cache.Generation) error { return nil }

// Phases of a rebuilding.
const (
	phaseBegun      = ""
	phaseReading    = "reading"     // until every partition is copied
	phaseCatchingUp = "catching-up" // until what the table had by then is there too
	phaseVerifying  = "verifying"
)

const progressLooks = 200 * time.Millisecond

// Phase is cachekeeper's.
func (k *Keeper) Phase(ctx context.Context, g *control.CacheGeneration) (next string, err error) {
	switch g.Progress.Phase {
	case phaseBegun:
		return phaseReading, nil
	case phaseReading:
		return phaseCatchingUp, k.await(ctx, g, func(p *cache.CountProgress, _ int64) bool { return p != nil && p.Whole })
	case phaseCatchingUp:
		return phaseVerifying, k.await(ctx, g, func(p *cache.CountProgress, end int64) bool { return p != nil && p.Whole && p.Offset >= uint64(end) })
	case phaseVerifying:
		return cachekeeper.Activate, k.verify(ctx, g)
	}
	return "", cachekeeper.Unfitf("its rebuilding stands at the unknown phase %q", g.Progress.Phase)
}

// await waits until every partition of the table that has rows has come far
// enough; end is where its log ended when the waiting began.
func (k *Keeper) await(ctx context.Context, g *control.CacheGeneration, enough func(p *cache.CountProgress, end int64) bool) error {
	ends, err := k.ends(ctx)
	if err != nil {
		return err
	}
	partitions := make([]int, k.cfg.Topology.Config.DisplayPartitions)
	for i := range partitions {
		partitions[i] = i
	}
	g.Progress.Shards = map[int]control.CacheShardProgress{}
	for noted := (time.Time{}); ; {
		all, err := k.cfg.Cache.CountProgress(ctx, g.Generation, partitions)
		if errors.Is(err, cache.ErrStamp) {
			return cachekeeper.Unfitf("Redis lost it while it was rebuilt")
		}
		if err != nil {
			return err
		}
		missing := 0
		for i, p := range all {
			if p != nil && p.Fault != "" {
				return cachekeeper.Unfitf("display partition %d: %s", i, p.Fault)
			}
			done := ends[i] == 0 || enough(p, ends[i])
			if !done {
				missing++
			}
			if p != nil {
				g.Progress.Shards[i] = control.CacheShardProgress{Read: p.Read, About: p.About, Done: done}
			}
		}
		if missing == 0 || time.Since(noted) > time.Second {
			noted = time.Now()
			if going, err := k.cfg.Control.NoteCacheProgress(ctx, g.Generation, g.Progress); err != nil {
				return err
			} else if !going {
				return cachekeeper.Unfitf("somebody has ended it")
			}
		}
		if missing == 0 {
			return nil
		}
		if !pause.For(ctx, progressLooks) {
			return ctx.Err()
		}
	}
}

// ends are the ends of the table's log, by partition.
func (k *Keeper) ends(ctx context.Context) (map[int]int64, error) {
	topic := k.cfg.Topology.Topic(topology.DisplayTable)
	listed, err := kadm.NewClient(k.cfg.Kafka).ListEndOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("reading the ends of %s: %w", topic, err)
	}
	ends := map[int]int64{}
	for partition, end := range listed[topic] {
		ends[int(partition)] = end.Offset
	}
	return ends, nil
}

// verify counts what Redis holds of the generation. Each owner has read samples of
// its own copy back before it called it whole.
func (k *Keeper) verify(ctx context.Context, g *control.CacheGeneration) error {
	partitions := make([]int, 0, len(g.Progress.Shards))
	for p := range g.Progress.Shards {
		partitions = append(partitions, p)
	}
	all, err := k.cfg.Cache.CountProgress(ctx, g.Generation, partitions)
	if err != nil {
		return err
	}
	var read int64
	g.Progress.Sampled = 0
	for i, p := range all {
		if p == nil || !p.Whole {
			return cachekeeper.Unfitf("the progress of display partition %d is gone: has Redis room for it (maxmemory)?", partitions[i])
		}
		read += p.Read
		g.Progress.Sampled += p.Sampled
	}
	if g.Progress.Entries, err = k.cfg.Cache.CountDisplays(ctx, g.Generation); err != nil {
		return err
	}
	if g.Progress.Entries < read {
		return cachekeeper.Unfitf("%d counts were copied from the display table, and Redis holds %d: has it room for them (maxmemory)?", read, g.Progress.Entries)
	}
	return nil
}
