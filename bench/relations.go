package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

const (
	relationCommands = 100_000
	relationCallers  = 256
	relationBatch    = 256 // rows of one pgx batch of the ceiling
)

// benchRelations commits new commands of one shard through the store, then
// the ceiling: the same three rows per command in bare pgx batches, with no
// look-up, no lock and no decision.
func benchRelations(ctx context.Context) error {
	url, stop, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := relations.Migrate(ctx, url, 0); err != nil {
		return err
	}
	ours, err := commitCommands(ctx, url)
	if err != nil {
		return err
	}
	ceiling, err := insertRows(ctx, url)
	if err != nil {
		return err
	}
	fmt.Printf("  %d commands, %d callers, one shard, fsync on\n", relationCommands, relationCallers)
	fmt.Printf("  grouped transaction   %8.0f commands/s\n", ours)
	fmt.Printf("  bare pgx batches      %8.0f commands/s\n", ceiling)
	fmt.Printf("  ratio                 %8.2f\n", ours/ceiling)
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

func commitCommands(ctx context.Context, url string) (float64, error) {
	store, err := relations.Open(ctx, relations.Config{URLs: []string{url}, Map: topology.NewShardMap(1, 1)})
	if err != nil {
		return 0, err
	}
	defer store.Close()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	start := time.Now()
	var wg sync.WaitGroup
	for range relationCallers {
		wg.Go(func() {
			for n := next.Add(1); n <= relationCommands; n = next.Add(1) {
				_, err := store.Set(ctx, relations.Command{
					OperationID: fmt.Sprintf("bench-%d", n),
					Relation:    topology.Relation{Kind: topology.Like, User: fmt.Sprintf("user%07d", n), Target: fmt.Sprintf("video%d", n%1000)},
					Desired:     topology.Liked,
				})
				if err != nil {
					failed.Store(&err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return relationCommands / time.Since(start).Seconds(), nil
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
