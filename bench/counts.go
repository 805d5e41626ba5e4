package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
	"github.com/tidemark/tidemark/views"
)

const (
	countTargets = 20_000 // that have a count
	countBatch   = 20
)

// benchCounts asks for the states and counts of 20 targets, as batch queries do,
// with the counts from a view of the display table, from Redis, and from Redis
// behind the local cache. The states come from the shard each time; what following
// the table costs a process with a view is not in these figures.
func benchCounts(ctx context.Context) error {
	b, err := newStateBench(ctx)
	if errors.Is(err, embedded.ErrNoRedisServer) {
		fmt.Println("  skipped:", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer b.close()
	s, err := startStage(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := b.shown(ctx, s); err != nil {
		return err
	}
	view, stop, err := s.view(ctx)
	if err != nil {
		return err
	}
	defer stop()
	var readers []*views.Cached
	for _, local := range []time.Duration{time.Nanosecond, views.DefaultLocal} {
		c, err := views.NewCached(views.CachedConfig{
			Cache: b.redis, Active: func() (cache.Generation, bool) { return b.cached, true }, Topology: s.topo, View: view, Local: local,
		})
		if err != nil {
			return err
		}
		defer c.Close()
		readers = append(readers, c)
	}
	both, err := views.NewCached(views.CachedConfig{Cache: b.redis, Active: func() (cache.Generation, bool) { return b.cached, true }, Topology: s.topo, View: view, ViewFirst: true})
	if err != nil {
		return err
	}
	defer both.Close()
	batches := zipfBatches()
	fmt.Printf("  batches of %d targets of %d (Zipf 1.1), one shard, real Redis, %d clients, %d turns of %v each;\n  CPU of client and servers per batch, its ratio to the first, median time\n", countBatch, countTargets, wayClients, wayTurns, wayTurn)
	counts := func(name string, read func(topology.Kind, []string) ([]views.Count, error)) way {
		return way{name, func(_ context.Context, i int) error {
			_, err := read(topology.Like, batches[i%len(batches)])
			return err
		}}
	}
	ways := []way{
		counts("view", view.Counts), counts("both, the view is ready", both.Counts),
		counts("redis, each count", readers[0].Counts), counts("redis, behind the local cache", readers[1].Counts),
	}
	fmt.Println("    counts alone")
	if err := compareWays(ctx, ways); err != nil {
		return err
	}
	fmt.Println("    states from the shard, and counts")
	for i, w := range ways {
		ways[i].ask = func(ctx context.Context, n int) error {
			if _, err := b.store.States(ctx, "u7", topology.Like, batches[n%len(batches)]); err != nil {
				return err
			}
			return w.ask(ctx, n)
		}
	}
	return compareWays(ctx, ways)
}

func zipfBatches() (batches [][]string) {
	zipf := rand.NewZipf(rand.New(rand.NewPCG(1, 2)), 1.1, 1, countTargets-1)
	for range 2000 {
		seen := map[string]bool{}
		for len(seen) < countBatch {
			seen[related(int(zipf.Uint64()))] = true
		}
		batch := make([]string, 0, countBatch)
		for target := range seen {
			batch = append(batch, target)
		}
		batches = append(batches, batch)
	}
	return batches
}

// shown gives every target a count, in the display table and in Redis.
func (b *stateBench) shown(ctx context.Context, s *stage) error {
	var records []*kgo.Record
	var writes []cache.CountWrite
	put := func(key string, row *tidemarkv1.DisplayRow) error {
		value, err := row.MarshalVT()
		if err != nil {
			return err
		}
		partition, err := topology.PartitionOf(key, s.topo.Config.DisplayPartitions)
		records = append(records, &kgo.Record{Topic: s.topo.Topic(topology.DisplayTable), Partition: int32(partition), Key: []byte(key), Value: value})
		return err
	}
	for i := range countTargets {
		snapshot := &tidemarkv1.DisplaySnapshot{Active: int64(i), GeneratedAtUs: 5, Generation: 1, ManifestId: b.cached.Manifest, Seq: 9,
			Partials: []*tidemarkv1.PartialCount{{Active: int64(i), Seq: 7, Generation: 1, ManifestId: b.cached.Manifest, GeneratedAtUs: 5}}}
		if err := put(topology.TargetKey(topology.Like, related(i)), &tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Snapshot{Snapshot: snapshot}}); err != nil {
			return err
		}
		writes = append(writes, b.cached.WriteDisplay(cache.DisplayCount{Kind: topology.Like, Target: related(i), Order: cache.Order{Seq: 9, Manifest: b.cached.Manifest, Projection: 1}, Counts: topology.Counts{Raw: int64(i)}, GeneratedAtUs: 5, Partials: 1}))
	}
	for d := range s.topo.Config.DisplayPartitions {
		p := cache.CountProgress{Manifest: b.cached.Manifest, Offset: 9, Whole: true}
		for shard := range s.topo.Config.Shards {
			p.AsOf = append(p.AsOf, cache.ShardSeal{Shard: shard, Seal: 1, SealedAtUs: 5})
		}
		w, err := b.cached.WriteProgress(d, p)
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	if err := s.client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	_, err := cache.NewCountWriter(b.redis).Write(ctx, b.cached, cache.Owner{Name: "bench", Epoch: 1}, writes) //nolint:forbidigo // stands for display
	return err
}

// view follows the display table until stop.
func (s *stage) view(ctx context.Context) (v *views.Display, stop func(), err error) {
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return nil, nil, err
	}
	v, err = views.NewDisplay(views.DisplayConfig{Client: gokakit.Client{Brokers: s.addresses}, Topology: s.topo, StateDir: dir,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = v.Run(ctx) }()
	stop = func() { cancel(); <-done; _ = os.RemoveAll(dir) }
	for v.Ready() != nil {
		if !pause.For(ctx, 50*time.Millisecond) {
			stop()
			return nil, nil, ctx.Err()
		}
	}
	return v, stop, nil
}
