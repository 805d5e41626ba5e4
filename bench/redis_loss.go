package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/drills/reading"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/child"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

const (
	lossUserRelations = 50 // of a user
	lossTargets       = 10 // of a read
	lossReaders       = 64
	lossBefore        = 15 * time.Second // of reads, before Redis is killed
	lossPatience      = 5 * time.Minute  // for a cache to be whole
	lossAfter         = 5 * time.Second  // of reads, once the hit rate is back
	lossNormal        = 0.99             // of the hit rate before, which is as good as it
)

// benchRedisLoss reads all the time while the whole Redis is lost, and says how
// many answers were wrong, how many never came, and when the cache had what it had
// before. TIDEMARK_BENCH_RELATIONS (default 1,000,000) and TIDEMARK_BENCH_READS a
// second (default 3000) make it smaller.
func benchRedisLoss(ctx context.Context) error {
	relations, reads := setting("TIDEMARK_BENCH_RELATIONS", 1_000_000), setting("TIDEMARK_BENCH_READS", 3000)
	return withLossBench(ctx, relations, func(l *lossBench) error {
		fmt.Printf("  %d relations of %d users, %d reads/s of %d relations each, Redis killed after %v and back at once, empty\n", relations, l.users, reads, lossTargets, lossBefore)
		return l.run(ctx, reads)
	})
}

// withLossBench measures on a deployment whose cache has so many relations; without
// redis-server it says that it is skipped.
func withLossBench(ctx context.Context, relations int, measure func(*lossBench) error) error {
	l, err := newLossBench(ctx, relations)
	if errors.Is(err, embedded.ErrNoRedisServer) {
		fmt.Println("  skipped:", err)
		return nil
	}
	if l != nil {
		defer l.close()
	}
	if err != nil {
		return err
	}
	return measure(l)
}

func setting(name string, otherwise int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 0 {
		return n
	}
	return otherwise
}

type lossBench struct {
	*system
	redis   *embedded.RedisServer
	dir     string
	queries *exec.Cmd
	ended   <-chan struct{}
	ops     string // of the queries process
	api     string
	control *control.DB
	users   int
	clients []reading.Client

	answered, failed, wrong atomic.Int64
}

func (l *lossBench) close() {
	l.stopQueries()
	if l.control != nil {
		l.control.Close()
	}
	if l.system != nil {
		l.stop()
	}
	if l.redis != nil {
		_ = l.redis.Stop()
	}
	_ = os.RemoveAll(l.dir)
}

func newLossBench(ctx context.Context, relations int) (l *lossBench, err error) {
	l = &lossBench{users: max(1, relations/lossUserRelations)}
	if l.dir, err = os.MkdirTemp("", "tidemark-bench-"); err != nil {
		return l, err
	}
	if l.redis, err = embedded.StartRedisServer(ctx, embedded.RedisServerConfig{Dir: l.dir}); err != nil {
		l.redis = nil
		return l, err
	}
	if l.system, err = startSystem("--redis-url", "redis://"+l.redis.Addr, "--roles", "commands,cdc,intake,projection,likers,display,cachefloor,privacy"); err != nil {
		l.system = nil
		return l, err
	}
	if l.control, err = control.Open(ctx, l.endpoints.Control); err != nil {
		return l, err
	}
	if err := l.fill(ctx); err != nil {
		return l, err
	}
	for n := range l.users {
		token, err := l.token(lossUser(n))
		if err != nil {
			return l, err
		}
		l.clients = append(l.clients, reading.Client{Token: token})
	}
	return l, l.startQueries(ctx)
}

func lossUser(n int) string   { return "u" + strconv.Itoa(n) }
func lossTarget(n int) string { return "V" + strconv.Itoa(n) }

// fill puts relations into the shards, then has Redis filled from them.
func (l *lossBench) fill(ctx context.Context) error {
	shards, err := l.control.ShardMap(ctx)
	if err != nil {
		return err
	}
	of := make([][]int, len(l.endpoints.Postgres)) // users by shard
	for n := range l.users {
		at := shards.Shard(lossUser(n))
		of[at] = append(of[at], n)
	}
	now := time.Now()
	for shard, url := range l.endpoints.Postgres {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		_, err = conn.CopyFrom(ctx, pgx.Identifier{"relation"},
			[]string{"user_id", "kind", "target_id", "state", "version", "state_changed_at", "last_operation_id", "created_at", "updated_at"},
			pgx.CopyFromSlice(len(of[shard])*lossUserRelations, func(i int) ([]any, error) {
				return []any{lossUser(of[shard][i/lossUserRelations]), int16(topology.Like), lossTarget(i % lossUserRelations), int16(topology.Liked), int64(1), now, "bench", now, now}, nil
			}))
		if err := errors.Join(err, conn.Close(ctx)); err != nil {
			return err
		}
	}
	active, err := l.active(ctx, 0)
	if err != nil {
		return err
	}
	if _, err := l.redis.Command(ctx, "flushall"); err != nil {
		return err
	}
	_, err = l.active(ctx, active)
	return err
}

// active waits until a generation above one is active.
func (l *lossBench) active(ctx context.Context, above uint64) (id uint64, err error) {
	for start := time.Now(); time.Since(start) < lossPatience; {
		all, err := l.control.CacheGenerations(ctx, cache.Relations, 1)
		if err != nil {
			return 0, err
		}
		if len(all) > 0 && all[0].ID > above && all[0].Status == control.CacheActive {
			return all[0].ID, nil
		}
		if !pause.For(ctx, 100*time.Millisecond) {
			return 0, ctx.Err()
		}
	}
	return 0, fmt.Errorf("no generation of the relation cache above %d was active within %v", above, lossPatience)
}

func (l *lossBench) stopQueries() {
	if l.queries != nil {
		_ = l.queries.Process.Signal(syscall.SIGTERM)
		<-l.ended
		l.queries = nil
	}
}

// startQueries runs the role that reads the cache in a process of its own, with
// more settings if they are given.
func (l *lossBench) startQueries(ctx context.Context, settings ...string) (err error) {
	addresses := [2]string{}
	for i := range addresses {
		port, err := embedded.FreePort()
		if err != nil {
			return err
		}
		addresses[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	l.api, l.ops = "http://"+addresses[0], "http://"+addresses[1]
	for i := range l.clients {
		l.clients[i].BaseURL = l.api
	}
	l.queries = exec.Command(benchProgram(), "run", "queries", "--config", filepath.Join(l.system.dir, config.FileName), "--instance", "reads", "--ops-listen", addresses[1])
	l.queries.Env = append(os.Environ(), "TIDEMARK_API_LISTEN="+addresses[0], "TIDEMARK_CACHE_READ_RELATIONS=true", "TIDEMARK_LOG_LEVEL=error")
	l.queries.Env = append(l.queries.Env, settings...)
	l.queries.Stderr = os.Stderr
	if l.ended, err = child.Start(l.queries, syscall.SIGTERM); err != nil {
		l.queries = nil
		return err
	}
	return l.awaitQueries(ctx)
}

func (l *lossBench) awaitQueries(ctx context.Context) error {
	return awaitReady(ctx, func() error {
		resp, err := http.Get(l.ops + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("the queries process is not ready: %s", resp.Status)
		}
		return nil
	})
}

// run reads, kills Redis, and reads until the hit rate is what it was.
func (l *lossBench) run(ctx context.Context, reads int) error {
	asking, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	start := time.Now()
	var next atomic.Int64
	for range lossReaders {
		wg.Go(func() {
			for {
				n := int(next.Add(1) - 1)
				if !pause.For(asking, time.Until(start.Add(time.Duration(n)*time.Second/time.Duration(reads)))) {
					return
				}
				l.read(asking, n)
			}
		})
	}
	before, err := l.rate(ctx, lossBefore)
	if err != nil {
		return err
	}
	atLoss := [2]int64{l.answered.Load(), l.failed.Load()}
	lost := time.Now()
	l.redis.Signal(os.Kill)
	if err := l.redis.Start(ctx); err != nil {
		return err
	}
	for rate := 0.0; rate < lossNormal*before; {
		if rate, err = l.rate(ctx, time.Second); err != nil {
			return err
		}
		if time.Since(lost) > lossPatience {
			return fmt.Errorf("the hit rate is %.3f after %v, %.3f before", rate, lossPatience, before)
		}
	}
	back := time.Since(lost)
	if _, err := l.rate(ctx, lossAfter); err != nil {
		return err
	}
	answered, failed := l.answered.Load()-atLoss[0], l.failed.Load()-atLoss[1]
	fmt.Printf("  reads                 %8.0f /s before the loss, %.0f /s after it; %d in all\n", float64(atLoss[0])/lost.Sub(start).Seconds(), float64(answered)/time.Since(lost).Seconds(), l.answered.Load())
	fmt.Printf("  wrong answers         %8d   (asked: 0)\n", l.wrong.Load())
	fmt.Printf("  errors                %8.3f %% of the reads since the loss, %d (asked: at most 1 %%); %d before it\n", 100*float64(failed)/float64(max(1, answered+failed)), failed, atLoss[1])
	fmt.Printf("  hit rate              %8.3f before; back after %.1f s (asked: 60 s for 1,000,000 relations)\n", before, back.Seconds())
	return nil
}

// read asks once, as the n-th read.
func (l *lossBench) read(ctx context.Context, n int) {
	targets := make([]string, lossTargets)
	for i := range targets {
		targets[i] = lossTarget((n + i) % lossUserRelations)
	}
	// Far from each other, so that every user comes up.
	told, err := l.clients[n*7919%l.users].Query(ctx, topology.Like, targets, nil)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		l.failed.Add(1)
		return
	}
	l.answered.Add(1)
	for _, t := range told {
		if t.State != topology.Liked || t.Version != 1 {
			l.wrong.Add(1)
			return
		}
	}
}

// rate is the share of relations that were found in Redis, for so long.
func (l *lossBench) rate(ctx context.Context, during time.Duration) (float64, error) {
	hits, asked, err := reading.CacheReads(ctx, l.ops)
	if err != nil {
		return 0, err
	}
	if !pause.For(ctx, during) {
		return 0, ctx.Err()
	}
	hitsNow, askedNow, err := reading.CacheReads(ctx, l.ops)
	if err != nil || askedNow == asked {
		return 0, err
	}
	return float64(hitsNow-hits) / float64(askedNow-asked), nil
}
