package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/topology"
)

const (
	restartRelations = 2_000_000
	restarts         = 3
	restartChanges   = 200_000 // that are counted before each kill on the local store
)

// benchRestart has a projection of 2,000,000 relations killed and started
// again, on its local store and on an empty disk, beside a broker on the same
// cores. The ceiling: the same changelog read with franz-go alone.
func benchRestart(ctx context.Context) error {
	s, err := startStage(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if _, err := prepareEvents(ctx, s.client, s.topo, restartRelations, func(_ *rand.Rand, event int) int { return event }, restartRelations, 0); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := &restarting{stage: s, dir: dir, spec: workerSpec{Instance: "bench", Brokers: s.addresses, Topology: s.topo.Config, StateDir: filepath.Join(dir, "state")}}
	return r.run(ctx)
}

type restarting struct {
	*stage
	dir  string
	spec workerSpec
}

func (r *restarting) run(ctx context.Context) error {
	w, err := startWorker(r.spec, r.dir)
	if err != nil {
		return err
	}
	defer w.Kill()
	if err := w.awaitReady(ctx); err != nil {
		return err
	}
	if err := awaitCommitted(ctx, r.client, r.topo.Group(topology.ProjectionGroup).ID, restartRelations); err != nil {
		return err
	}
	w.Kill()
	fmt.Printf("  %d relations, %d partitions, one worker, broker beside it\n", restartRelations, r.topo.Config.CountPartitions)
	for n := range restarts {
		if err := r.once(ctx, "local store", 0, 0); err != nil {
			return err
		}
		if err := r.count(ctx, int64(n+1)); err != nil {
			return err
		}
	}
	for range restarts {
		ceiling, records, err := r.read(ctx)
		if err != nil {
			return err
		}
		if err := os.RemoveAll(r.spec.StateDir); err != nil {
			return err
		}
		if err := r.once(ctx, "empty disk", records, ceiling); err != nil {
			return err
		}
	}
	return nil
}

// count has a worker count some changes, most of which are in its RAM when it
// is killed.
func (r *restarting) count(ctx context.Context, times int64) error {
	w, err := startWorker(r.spec, r.dir)
	if err != nil {
		return err
	}
	defer w.Kill()
	if err := w.awaitReady(ctx); err != nil {
		return err
	}
	if _, err := prepareEvents(ctx, r.client, r.topo, restartChanges, func(rnd *rand.Rand, _ int) int { return rnd.IntN(restartRelations) }, restartRelations, uint64(times*restartChanges)); err != nil {
		return err
	}
	return awaitCommitted(ctx, r.client, r.topo.Group(topology.ProjectionGroup).ID, restartRelations+times*restartChanges)
}

// once starts a worker, waits until it is ready, says what that took, and
// kills it. The changelog has that many records when all of it is read, else
// 0; the ceiling is in records a second.
func (r *restarting) once(ctx context.Context, what string, records int, ceiling float64) error {
	if records > 0 {
		r.spec.Profile = os.Getenv("TIDEMARK_BENCH_PROFILE")
	}
	brokerCPU := r.broker.coreSeconds()
	w, err := startWorker(r.spec, r.dir)
	if err != nil {
		return err
	}
	defer w.Kill()
	if err := w.awaitReady(ctx); err != nil {
		return err
	}
	own, _ := ticks(w.Pid())
	brokerCPU = r.broker.coreSeconds() - brokerCPU
	_, most := w.Memory()
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Printf("  kill -9, %-11s  ready after %5.2f s, %.2f s to join; %d generation; RSS %d MB; core-seconds: worker %.1f, broker %.1f\n",
		what, w.ready.Sub(w.started).Seconds(), w.joined.Sub(w.started).Seconds(), w.generations, most>>20, float64(own)/ticksPerSecond, brokerCPU)
	if w.generations != 1 {
		return fmt.Errorf("the worker was in %d generations of its group before it was ready", w.generations)
	}
	if records == 0 {
		return nil
	}
	perSecond := float64(records) / w.ready.Sub(w.joined).Seconds()
	fmt.Printf("    %d records, %.1f µs of CPU each, %8.0f a second; read with franz-go alone %8.0f; ratio %.2f; said: %q\n", records, float64(own)/ticksPerSecond/float64(records)*1e6, perSecond, ceiling, perSecond/ceiling, middle(w.reasons))
	return nil
}

// middle is one of the reasons that were told half-way.
func middle(reasons []string) string {
	if len(reasons) == 0 {
		return ""
	}
	return reasons[len(reasons)/2]
}

// read is the ceiling: the whole changelog read by one client that keeps
// nothing.
func (r *restarting) read(ctx context.Context) (perSecond float64, records int, err error) {
	table := r.topo.Topic(topology.ProjectionTable)
	ends, err := kadm.NewClient(r.client).ListEndOffsets(ctx, table)
	if err != nil {
		return 0, 0, err
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) { left[o.Partition] = o.Offset })
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.broker.addresses...), kgo.ConsumeTopics(table), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return 0, 0, err
	}
	defer cl.Close()
	start := time.Now()
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if errs := fetches.Errors(); len(errs) > 0 {
			return 0, 0, errors.Join(errs[0].Err, ctx.Err())
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			records++
			if rec.Offset+1 >= left[rec.Partition] {
				delete(left, rec.Partition)
			}
		})
	}
	return float64(records) / time.Since(start).Seconds(), records, nil
}
