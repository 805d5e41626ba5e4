package main

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/processors/likers"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// The job: changes of relations to targets with the skew of benchProjection.
const (
	likerEvents    = 2_000_000
	likerRelations = 1_000_000
	likerPages     = 2_000 // of a reverse shard of the hottest target, 20 entries each
)

// benchLikers runs likers over prepared events, reads pages of the hottest
// target from it, and says what its stores take.
func benchLikers(ctx context.Context) error {
	s, err := startStage(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	g := topology.NewReverseGeneration(1, s.topo.Config.LikerPartitions, s.topo.Config.ReverseShards)
	listed, err := prepareLikes(ctx, s.client, s.topo, g)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	l, err := likers.New(likers.Config{
		Client: gokakit.Client{Brokers: s.addresses}, Topology: s.topo, Reverse: g, StateDir: dir, Instance: "bench",
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	runCtx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(runCtx) }()
	defer func() { cancel(); <-done }()
	if err := awaitReady(ctx, l.Ready); err != nil {
		return err
	}
	cpu, start := coreSeconds(), time.Now()
	if err := awaitCommitted(ctx, s.client, s.topo.Group(topology.LikersGroup).ID, likerEvents); err != nil {
		return err
	}
	ours := measured(likerEvents, time.Since(start), coreSeconds()-cpu)
	first, deep, err := timePages(l, g)
	if err != nil {
		return err
	}
	cancel()
	<-done
	size, err := tableBytes(dir)
	if err != nil {
		return err
	}
	fmt.Printf("  %d events, %d relations, %d of them in a list, %d partitions, R = %d, spread %d\n", likerEvents, likerRelations, listed, g.Partitions(), g.Shards(), g.Spread)
	fmt.Printf("  likers                %8.0f events/s  %8.0f per core-second of the process\n", ours.perSecond, ours.perCoreSecond)
	fmt.Printf("  first page of 20      p50 %v, p99 %v, of one reverse shard of the hottest target, in process\n", first[0], first[1])
	fmt.Printf("  at a random depth     p50 %v, p99 %v\n", deep[0], deep[1])
	fmt.Printf("  on disk               %8.1f bytes per relation, %.1f per entry of a list\n", float64(size)/likerRelations, float64(size)/float64(listed))
	return nil
}

// prepareLikes fills liker-changes and says how many relations end in a list.
func prepareLikes(ctx context.Context, cl *kgo.Client, topo *topology.Topology, g topology.ReverseGeneration) (listed int, err error) {
	rnd := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(rnd, 1.2, 8, 200_000)
	versions, targets := make([]uint64, likerRelations), make([]uint64, likerRelations)
	for i := range targets {
		targets[i] = zipf.Uint64()
	}
	var failed error
	at := int64(1_700_000_000_000_000)
	for range likerEvents {
		i := rnd.IntN(likerRelations)
		versions[i]++
		at += rnd.Int64N(1000)
		rel := topology.Relation{Kind: topology.Like, User: fmt.Sprintf("user%07d", i), Target: fmt.Sprintf("video%06d", targets[i])}
		c := &tidemarkv1.RelationChange{
			EventId: "0190f5fe-7a00-7000-8000-000000000000", Kind: tidemarkv1.Kind_KIND_LIKE, UserId: rel.User, TargetId: rel.Target,
			RelationVersion: versions[i], State: tidemarkv1.State(topology.Liked), StateChangedAtUs: at, CommittedAtUs: at, CdcOffset: at,
			Position: &tidemarkv1.SourcePosition{Shard: uint32(i % 4), PreviousCommitLsn: uint64(at), Lsn: uint64(at)}, Reverse: g.Place(rel),
		}
		if versions[i]%2 == 0 {
			c.State = tidemarkv1.State(topology.Unliked)
		}
		value, err := (&tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Relation{Relation: c}}).MarshalVT()
		if err != nil {
			return 0, err
		}
		cl.Produce(ctx, &kgo.Record{Topic: topo.Topic(topology.LikerChanges), Partition: int32(c.Reverse.Partition), Key: []byte(topology.LikerKey(c.Reverse, rel.Key())), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	for _, v := range versions {
		if v%2 == 1 {
			listed++
		}
	}
	if err := cl.Flush(ctx); err != nil {
		return 0, err
	}
	return listed, failed
}

// timePages gives p50 and p99 of first pages and of pages at random depths.
func timePages(l *likers.Likers, g topology.ReverseGeneration) (first, deep [2]time.Duration, err error) {
	rnd := rand.New(rand.NewPCG(3, 4))
	var firsts, deeps []time.Duration
	for n := range likerPages {
		q := likers.Query{Generation: g.ID, Kind: topology.Like, Target: "video000000", ReverseShard: n % g.Shards(), Limit: 20}
		for _, into := range []*[]time.Duration{&firsts, &deeps} {
			start := time.Now()
			page, err := l.Page(q)
			if err != nil {
				return first, deep, err
			}
			*into = append(*into, time.Since(start))
			if len(page.Entries) > 0 {
				q.After.LikedAtUs = page.Entries[0].LikedAtUs - rnd.Int64N(1+page.Entries[0].LikedAtUs-1_700_000_000_000_000)
			}
		}
	}
	return percentiles(firsts), percentiles(deeps), nil
}

func percentiles(d []time.Duration) [2]time.Duration {
	slices.Sort(d)
	return [2]time.Duration{d[len(d)/2], d[len(d)*99/100]}
}

// tableBytes are the bytes of the stores' tables below dir.
func tableBytes(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".sst" {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}
