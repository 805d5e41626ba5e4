package relations

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/topology"
)

// benchServer is a PostgreSQL that syncs to disk, unlike the tests' one.
func benchServer(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the server may run as another user
		b.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{DataDir: dir})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = server.Stop() })
	if err := server.CreateDatabase(ctx, "bench"); err != nil {
		b.Fatal(err)
	}
	url := server.URL("bench")
	if err := Migrate(ctx, url, 0); err != nil {
		b.Fatal(err)
	}
	return url
}

var benchOperation atomic.Int64

// drive sends n new commands from so many callers, each waiting for its answer
// before its next command, and returns how long that took.
func drive(b *testing.B, s *Store, callers, n int) time.Duration {
	b.Helper()
	var left atomic.Int64
	left.Store(int64(n))
	begun := time.Now()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				op := benchOperation.Add(1)
				r := relation(topology.Like, fmt.Sprintf("u%d", op%50_000), fmt.Sprintf("v%d", op%7))
				state := []topology.State{topology.Liked, topology.Liked, topology.Liked, topology.Unliked}[op/50_000%4]
				if _, err := s.Set(context.Background(), command(fmt.Sprintf("op-%d", op), r, state)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(begun)
}

// BenchmarkGroupCommit compares commands per second of the store as it is
// with one transaction per command over 16 connections, in turns within one
// run. docs/decisions/0001-group-commit.md has its figures.
func BenchmarkGroupCommit(b *testing.B) {
	url := benchServer(b)
	grouped := openAt(b, []string{url}, nil)
	single := openAt(b, []string{url}, func(c *Config) { c.BatchLimit, c.Committers = 1, 16 })
	drive(b, grouped, 64, 2000)
	drive(b, single, 64, 2000)
	for _, callers := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			const turns = 4
			var together, apart time.Duration
			n := max(b.N/turns, 1)
			for range turns {
				together += drive(b, grouped, callers, n)
				apart += drive(b, single, callers, n)
			}
			total := float64(n * turns)
			b.ReportMetric(total/together.Seconds(), "grouped/s")
			b.ReportMetric(total/apart.Seconds(), "single/s")
			b.ReportMetric(apart.Seconds()/together.Seconds(), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkCommitters shows what more transactions in flight per shard give.
func BenchmarkCommitters(b *testing.B) {
	url := benchServer(b)
	for _, committers := range []int{1, 2, 3, 4} {
		s := openAt(b, []string{url}, func(c *Config) { c.Committers = committers })
		drive(b, s, 64, 2000)
		b.Run(fmt.Sprint(committers), func(b *testing.B) {
			took := drive(b, s, 256, b.N)
			b.ReportMetric(float64(b.N)/took.Seconds(), "commands/s")
		})
	}
}
