package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/processors/projection"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// The job: events of relations to targets with a realistic skew.
const (
	projectionEvents    = 2_000_000
	projectionRelations = 1_000_000
)

// benchProjection runs a projection over prepared events, then the ceiling:
// the same records consumed and as many bytes produced, with no state.
func benchProjection(ctx context.Context) error {
	s, err := startStage(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	bytes, err := prepareEvents(ctx, s.client, s.topo, projectionEvents, func(rnd *rand.Rand, _ int) int { return rnd.IntN(projectionRelations) }, projectionRelations, 0)
	if err != nil {
		return err
	}
	ours, err := runProjection(ctx, s.client, s.addresses, s.topo)
	if err != nil {
		return err
	}
	ceiling, err := consumeAndProduce(ctx, s.addresses, s.topo)
	if err != nil {
		return err
	}
	fmt.Printf("  %d events of %.0f B, %d relations, %d partitions\n", projectionEvents, bytes, projectionRelations, s.topo.Config.CountPartitions)
	fmt.Printf("  projection            %8.0f events/s  %8.0f per core-second of the process\n", ours.perSecond, ours.perCoreSecond)
	fmt.Printf("  consume and produce   %8.0f events/s  %8.0f per core-second of the process\n", ceiling.perSecond, ceiling.perCoreSecond)
	fmt.Printf("  ratio                 %8.2f            %8.2f\n", ours.perSecond/ceiling.perSecond, ours.perCoreSecond/ceiling.perCoreSecond)
	return nil
}

type throughput struct{ perSecond, perCoreSecond float64 }

func measured(events int, wall time.Duration, cores float64) throughput {
	return throughput{float64(events) / wall.Seconds(), float64(events) / cores}
}

// prepareEvents fills bucket-changes with changes of relations, chosen by the
// number of the event, with versions above the given one, and returns the mean
// size of a record.
func prepareEvents(ctx context.Context, cl *kgo.Client, topo *topology.Topology, events int, choose func(rnd *rand.Rand, event int) int, relations int, version uint64) (float64, error) {
	rnd := rand.New(rand.NewPCG(1, 2))
	m := topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), topo.Config.CountPartitions)
	versions := slices.Repeat([]uint64{version}, relations)
	zipf := rand.NewZipf(rnd, 1.2, 8, 200_000)
	targets := make([]uint32, relations)
	for i := range targets {
		targets[i] = uint32(zipf.Uint64())
	}
	total := 0
	var failed error
	for event := range events {
		i := choose(rnd, event)
		versions[i]++
		rel := topology.Relation{Kind: topology.Like, User: fmt.Sprintf("user%07d", i), Target: fmt.Sprintf("video%06d", targets[i])}
		c := &tidemarkv1.RelationChange{
			EventId: "0190f5fe-7a00-7000-8000-000000000000", Kind: tidemarkv1.Kind_KIND_LIKE, UserId: rel.User, TargetId: rel.Target,
			RelationVersion: versions[i], State: tidemarkv1.State(topology.Liked), StateChangedAtUs: time.Now().UnixMicro(),
			CommittedAtUs: time.Now().UnixMicro(), CdcOffset: int64(total), Placement: m.Place(rel),
			Position: &tidemarkv1.SourcePosition{Shard: uint32(i % 4), PreviousCommitLsn: uint64(total), Lsn: uint64(total)},
		}
		if versions[i]%4 == 0 {
			c.State = tidemarkv1.State(topology.Unliked)
		}
		value, err := (&tidemarkv1.BucketChange{Body: &tidemarkv1.BucketChange_Relation{Relation: c}}).MarshalVT()
		if err != nil {
			return 0, err
		}
		key := topology.CountedKey(int(c.Placement.Partition), int(c.Placement.VirtualBucket), rel)
		total += len(key) + len(value)
		cl.Produce(ctx, &kgo.Record{Topic: topo.Topic(topology.BucketChanges), Partition: int32(c.Placement.Partition), Key: []byte(key), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return 0, err
	}
	return float64(total) / float64(events), failed
}

func runProjection(ctx context.Context, cl *kgo.Client, brokers []string, topo *topology.Topology) (throughput, error) {
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return throughput{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	p, err := projection.New(projection.Config{
		Client: gokakit.Client{Brokers: brokers}, Topology: topo,
		Manifest: topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), topo.Config.CountPartitions),
		StateDir: dir, Instance: "bench", Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return throughput{}, err
	}
	if path := os.Getenv("TIDEMARK_BENCH_PROFILE"); path != "" {
		f, err := os.Create(path)
		if err != nil {
			return throughput{}, err
		}
		defer func() { _ = f.Close() }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return throughput{}, err
		}
		defer pprof.StopCPUProfile()
	}
	runCtx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(runCtx) }()
	defer func() { cancel(); <-done }()
	if err := awaitReady(ctx, p.Ready); err != nil {
		return throughput{}, err
	}
	cpu, start := coreSeconds(), time.Now()
	err = awaitCommitted(ctx, cl, topo.Group(topology.ProjectionGroup).ID, projectionEvents)
	return measured(projectionEvents, time.Since(start), coreSeconds()-cpu), err
}

func awaitReady(ctx context.Context, ready func() error) error {
	for ready() != nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// awaitCommitted waits until a group has committed this many records.
func awaitCommitted(ctx context.Context, cl *kgo.Client, group string, records int64) error {
	admin := kadm.NewClient(cl)
	for {
		offsets, err := admin.FetchOffsets(ctx, group)
		if err != nil {
			return err
		}
		var sum int64
		offsets.Each(func(o kadm.OffsetResponse) { sum += o.At })
		if sum >= records {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// consumeAndProduce is the ceiling: every record of bucket-changes read, and
// one of a projected row's size written and acked, with franz-go alone.
func consumeAndProduce(ctx context.Context, brokers []string, topo *topology.Topology) (throughput, error) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topo.Topic(topology.BucketChanges)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxProduceRequestsInflightPerBroker(1), kgo.MaxBufferedRecords(1<<16), kgo.ProducerBatchCompression(kgo.Lz4Compression()))
	if err != nil {
		return throughput{}, err
	}
	defer cl.Close()
	out := topo.Topic(topology.ProjectionTable)
	cpu, start := coreSeconds(), time.Now()
	for seen := 0; seen < projectionEvents; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return throughput{}, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			seen++
			cl.Produce(ctx, &kgo.Record{Topic: out, Partition: r.Partition, Key: r.Key, Value: r.Value[:min(70, len(r.Value))]}, nil)
		})
	}
	err = cl.Flush(ctx)
	return measured(projectionEvents, time.Since(start), coreSeconds()-cpu), err
}
