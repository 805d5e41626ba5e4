package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

const (
	relationCommands = 100_000
	relationCallers  = 256
	relationBatch    = 256         // rows of one pgx batch of the ceiling
	relationSingles  = 16          // connections that commit one command at a time
	relationWarm     = time.Second // before what is counted: connections are made, plans too
	relationSteady   = 5 * time.Second
)

// benchRelations commits new commands of one shard through the store, in
// grouped transactions and one transaction each, at once and at half the pace,
// and the ceiling: the same three rows per command in bare pgx batches, with
// no look-up, no lock and no decision.
func benchRelations(ctx context.Context) error {
	url, stop, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := relations.Migrate(ctx, url, 0); err != nil {
		return err
	}
	config := relations.Config{URLs: []string{url}, Map: topology.NewShardMap(1, 1)}
	ours, err := commitCommands(ctx, config, "batch")
	if err != nil {
		return err
	}
	ceiling, err := insertRows(ctx, url)
	if err != nil {
		return err
	}
	single := config
	single.BatchLimit, single.Committers = 1, relationSingles
	apart, err := commitCommands(ctx, single, "apart")
	if err != nil {
		return err
	}
	half, err := commitSteadily(ctx, config, int(ours/2))
	if err != nil {
		return err
	}
	fmt.Printf("  %d commands, %d callers, one shard, fsync on\n", relationCommands, relationCallers)
	fmt.Printf("  grouped transaction   %8.0f commands/s\n", ours)
	fmt.Printf("  bare pgx batches      %8.0f commands/s   ratio %.2f\n", ceiling, ours/ceiling)
	fmt.Printf("  a transaction each    %8.0f commands/s   ratio %.2f, on %d connections\n", apart, ours/apart, relationSingles)
	fmt.Printf("  at half of that pace  %8.0f commands/s   p50 %.1f ms, p99 %.1f ms after each was due\n", ours/2, half[0].Seconds()*1e3, half[1].Seconds()*1e3)
	return nil
}

func startPostgres(ctx context.Context) (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return "", nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // the server may run as another user
		return "", nil, err
	}
	server, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{DataDir: dir})
	if err != nil {
		return "", nil, err
	}
	return server.URL("bench"), func() { _ = server.Stop(); _ = os.RemoveAll(dir) }, server.CreateDatabase(ctx, "bench")
}

// commitCommands has callers that each wait for an answer commit new commands.
func commitCommands(ctx context.Context, config relations.Config, name string) (perSecond float64, err error) {
	store, err := relations.Open(ctx, config)
	if err != nil {
		return 0, err
	}
	defer store.Close()
	var next atomic.Int64
	start := time.Now()
	callers, ctx := errgroup.WithContext(ctx)
	for range relationCallers {
		callers.Go(func() error {
			for n := next.Add(1); n <= relationCommands; n = next.Add(1) {
				if _, err := store.Set(ctx, newCommand(name, n)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := callers.Wait(); err != nil {
		return 0, err
	}
	return relationCommands / time.Since(start).Seconds(), nil
}

// commitSteadily sends commands at a pace, whether or not those before were
// answered, and gives p50 and p99 from when each was due to its answer, without the
// first ones.
func commitSteadily(ctx context.Context, config relations.Config, perSecond int) ([2]time.Duration, error) {
	store, err := relations.Open(ctx, config)
	if err != nil {
		return [2]time.Duration{}, err
	}
	defer store.Close()
	took := make([]time.Duration, int((relationWarm+relationSteady).Seconds())*perSecond)
	callers, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for n := range took {
		due := start.Add(time.Duration(n) * time.Second / time.Duration(perSecond))
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
		}
		callers.Go(func() error {
			_, err := store.Set(ctx, newCommand("steady", int64(n)))
			took[n] = time.Since(due)
			return err
		})
	}
	if err := callers.Wait(); err != nil {
		return [2]time.Duration{}, err
	}
	return percentiles(took[int(relationWarm.Seconds())*perSecond:]), nil
}

func newCommand(name string, n int64) relations.Command {
	return relations.Command{
		OperationID: fmt.Sprintf("%s-%d", name, n),
		Relation:    topology.Relation{Kind: topology.Like, User: fmt.Sprintf("%s%07d", name, n), Target: fmt.Sprintf("video%d", n%1000)},
		Desired:     topology.Liked,
	}
}

func insertRows(ctx context.Context, url string) (float64, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	const (
		relation = `INSERT INTO relation VALUES ($1, 1, $2, 2, 1, now(), $3, now(), now())`
		command  = `INSERT INTO command VALUES ($1, $2, 1, $3, 2, NULL, 1, 2, 1, now())`
		outbox   = `INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at) VALUES ('relation', $1, 'RelationChanged', $2, 0, now())`
	)
	start := time.Now()
	for n := 0; n < relationCommands; n += relationBatch {
		var b pgx.Batch
		b.Queue("begin")
		for i := n; i < min(n+relationBatch, relationCommands); i++ {
			user, target, op := fmt.Sprintf("bare%07d", i), fmt.Sprintf("video%d", i%1000), fmt.Sprintf("bare-%d", i)
			key := topology.Relation{Kind: topology.Like, User: user, Target: target}.Key()
			payload := fmt.Sprintf(`{"eventId":"0190f5fe-7a00-7000-8000-%012d","aggregateKey":%q,"kind":"like","userId":%q,"targetId":%q,"relationVersion":1,"absoluteState":"LIKED","previousState":"UNLIKED","sourceShard":0,"stateChangedAt":"2026-08-19T10:20:30.123456Z"}`, i, key, user, target)
			b.Queue(relation, user, target, op)
			b.Queue(command, op, user, target)
			b.Queue(outbox, key, payload)
		}
		b.Queue("commit")
		if err := conn.SendBatch(ctx, &b).Close(); err != nil {
			return 0, err
		}
	}
	return relationCommands / time.Since(start).Seconds(), nil
}
