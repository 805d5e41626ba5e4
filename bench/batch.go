package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tidemark/tidemark/drills/reading"
	"github.com/tidemark/tidemark/internal/child"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

const (
	batchTargets = 20 // of a query, each with a count
	batchFew     = 2  // of them related to, on pages of which a user has liked little
	batchWarm    = 3 * time.Second
	batchMeasure = 10 * time.Second
	batchAsked   = 8000  // requests/s with Redis
	batchLocal   = 20000 // and with what is local alone
)

// benchBatch asks for the states and counts of 20 targets over HTTP, as fast as
// connections that each wait for their answers can, and says how many answers a
// second there are, how long they take, and what each costs which process. Clients,
// API and Redis share the cores with each other and with a deployment at rest.
//
// The last one has its states in the process: no deployment has that (decision 22).
// It is what the API, its view of counts and HTTP cost by themselves.
//
// TIDEMARK_BENCH_CLIENTS (default 16) are the connections, TIDEMARK_BENCH_RELATIONS
// (default 100,000) what is cached. With TIDEMARK_BENCH_PROFILE, a path, the API's CPU
// profiles are written to that path with a number behind it.
func benchBatch(ctx context.Context) error {
	return withLossBench(ctx, setting("TIDEMARK_BENCH_RELATIONS", 100_000), func(l *lossBench) error { return measureBatches(ctx, l) })
}

func measureBatches(ctx context.Context, l *lossBench) error {
	clients := setting("TIDEMARK_BENCH_CLIENTS", 16)
	fmt.Printf("  batches of %d targets, %d relations of %d users in redis-server, %d connections, %v each;\n  rest are the deployment's other roles, PostgreSQL and Kafka\n", batchTargets, l.users*lossUserRelations, l.users, clients, batchMeasure)
	if err := l.countAll(ctx); err != nil {
		return err
	}
	b := batchBench{lossBench: l, clients: clients}
	for _, m := range []batchMeasurement{
		{"states from Redis, counts from the view", batchTargets, batchAsked, nil},
		{"the same, 2 of the 20 related to", batchFew, batchAsked, nil},
		{"2 of the 20 related to, states from the shards", batchFew, batchAsked, []string{"TIDEMARK_CACHE_READ_RELATIONS=false"}},
		{"states from Redis, counts from Redis behind the local cache", batchTargets, batchAsked, []string{"TIDEMARK_CACHE_COUNT_SOURCE=redis"}},
	} {
		l.stopQueries()
		if err := l.startQueries(ctx, m.settings...); err != nil {
			return err
		}
		if err := b.measure(ctx, m); err != nil {
			return err
		}
	}
	l.stopQueries()
	if err := l.startLocal(ctx); err != nil {
		return err
	}
	return b.measure(ctx, batchMeasurement{"states from memory, counts from the view: the API alone", batchTargets, batchLocal, nil})
}

type batchMeasurement struct {
	name     string
	related  int     // targets of the 20
	asked    float64 // answers/s
	settings []string
}

// countAll gives each target a count, by the likes of one more user: those that
// everybody relates to, and as many that nobody does.
func (l *lossBench) countAll(ctx context.Context) error {
	token, err := l.token("liker")
	if err != nil {
		return err
	}
	liker := reading.Client{BaseURL: l.endpoints.API, Token: token}
	for n := range 2 * lossUserRelations {
		if _, err := liker.Set(ctx, lossTarget(n), topology.Liked, 0); err != nil {
			return err
		}
	}
	return nil
}

// startLocal runs an API in the place of the queries process.
func (l *lossBench) startLocal(ctx context.Context) (err error) {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	l.queries = exec.Command(program, batchCommand, batchSpec{
		Config: filepath.Join(l.system.dir, config.FileName), Brokers: strings.Split(l.endpoints.Kafka, ","), StateDir: filepath.Join(l.dir, "view"),
		API: strings.TrimPrefix(l.api, "http://"), Ops: strings.TrimPrefix(l.ops, "http://"), Users: l.users,
	}.text())
	l.queries.Stderr = os.Stderr
	if l.ended, err = child.Start(l.queries, syscall.SIGTERM); err != nil {
		l.queries = nil
		return err
	}
	return l.awaitQueries(ctx)
}

type batchBench struct {
	*lossBench
	clients  int
	requests [][]byte
	related  int // of each request's targets
	profiles int
	refused  atomic.Int64 // answers of 503: nothing was answered in time
}

// batchCPU is the CPU time of each process so far.
type batchCPU struct{ client, api, redis, rest time.Duration }

func (b *batchBench) cpu() (c batchCPU, err error) {
	c.client = time.Duration(coreSeconds() * float64(time.Second))
	api, err := ticks(b.queries.Process.Pid)
	if err != nil {
		return c, err
	}
	redis, err := ticks(b.redis.PID())
	if err != nil {
		return c, err
	}
	c.api, c.redis = time.Duration(api)*time.Second/ticksPerSecond, time.Duration(redis)*time.Second/ticksPerSecond
	pids, err := tree()
	for _, pid := range pids {
		if pid == b.queries.Process.Pid || pid == b.redis.PID() {
			continue
		}
		if more, err := ticks(pid); err == nil { // else it has ended
			c.rest += time.Duration(more) * time.Second / ticksPerSecond
		}
	}
	return c, err
}

func (b *batchBench) measure(ctx context.Context, m batchMeasurement) error {
	name := m.name
	b.requests, b.related = b.batchRequests(m.related), m.related
	if err := b.awaitCounts(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if _, err := b.ask(ctx, batchWarm); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	profiled := b.profile(ctx)
	before, err := b.cpu()
	if err != nil {
		return err
	}
	b.refused.Store(0)
	start := time.Now()
	took, err := b.ask(ctx, batchMeasure)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	wall := time.Since(start)
	after, err := b.cpu()
	if err = errors.Join(err, <-profiled); err != nil {
		return err
	}
	slices.Sort(took)
	n := len(took)
	each := func(from, to time.Duration) float64 { return float64((to - from).Nanoseconds()) / 1e3 / float64(n) }
	fmt.Printf("  %s\n", name)
	fmt.Printf("    answers               %8.0f /s   (asked: %.0f), %d refused\n", float64(n)/wall.Seconds(), m.asked, b.refused.Load())
	fmt.Printf("    time                  p50 %.2f ms, p99 %.2f ms   (asked: 10 ms)\n", took[n/2].Seconds()*1e3, took[n*99/100].Seconds()*1e3)
	fmt.Printf("    core-µs an answer     %.1f client, %.1f API, %.1f Redis, %.1f rest\n",
		each(before.client, after.client), each(before.api, after.api), each(before.redis, after.redis), each(before.rest, after.rest))
	return nil
}

// ask has every connection ask for so long, and gives the times that the answers
// took.
func (b *batchBench) ask(ctx context.Context, during time.Duration) (took []time.Duration, err error) {
	end := time.Now().Add(during)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for n := range b.clients {
		wg.Go(func() {
			mine, failed := b.askOn(ctx, n, end)
			mu.Lock()
			defer mu.Unlock()
			took, err = append(took, mine...), errors.Join(err, failed)
		})
	}
	wg.Wait()
	if err == nil && len(took) == 0 {
		err = errors.New("nothing was answered")
	}
	return took, err
}

func (b *batchBench) askOn(ctx context.Context, n int, end time.Time) (took []time.Duration, err error) {
	c, err := dialBatch(ctx, b.api)
	if err != nil {
		return nil, err
	}
	defer c.close()
	took = make([]time.Duration, 0, 1<<14)
	for i := n; ; i += b.clients {
		asked := time.Now()
		if asked.After(end) || ctx.Err() != nil {
			return took, ctx.Err()
		}
		// Far from each other, so that every user comes up.
		err := c.ask(b.requests[i*7919%len(b.requests)], b.related, i%batchChecked == n%batchChecked)
		if errors.Is(err, errBatchRefused) {
			b.refused.Add(1)
			continue
		}
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(asked))
	}
}

// awaitCounts waits until every target has its count where it is read, and every
// state is as it was filled in.
func (b *batchBench) awaitCounts(ctx context.Context) error {
	for start := time.Now(); ; {
		failed := b.checkAll(ctx)
		if failed == nil {
			return nil
		}
		if time.Since(start) > lossPatience {
			return failed
		}
		if !pause.For(ctx, 100*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (b *batchBench) checkAll(ctx context.Context) error {
	c, err := dialBatch(ctx, b.api)
	if err != nil {
		return err
	}
	defer c.close()
	for _, r := range b.requests[:min(len(b.requests), 2*lossUserRelations)] {
		if err := c.ask(r, b.related, true); err != nil {
			return err
		}
	}
	return nil
}
