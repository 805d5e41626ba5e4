// Command bench measures tidemark against ceilings of the same machine in one
// run, and prints each figure with its ratio to them. `make bench` runs all of
// it; names as arguments choose some.
//
//	projection  events counted, changelog acked, beside a broker on the same cores
//	            ceiling: consume and produce the same bytes with franz-go
//	likers      changes listed, changelog acked, beside a broker on the same cores;
//	            pages of its lists; bytes on disk
//	pages       pages of a target of 1,000,000 likers from three processes, the first
//	            and one 1,000 pages deep, and of a target of ten
//	relations   commands committed by the grouped transaction, by a transaction
//	            each, and at half the pace
//	            ceiling: bare pgx batches of the same rows
//	overload    commands over HTTP at three times the load that is sustained, with
//	            the guard and without
//	seals       5,000 commands/s with a sealer and without, in turns
//	feed        a backlog through the built-in emitter and through Debezium, in
//	            turns, on a real Kafka (make bench-real; else skipped)
//	feed-latency  commit to Kafka through both, likewise
//	freshness   commit to view, end to end in one process
//	queries     batch queries of 50 targets over HTTP
//	states      one user's own states, from the shard, behind a filter, and from
//	            the relation cache, on a real Redis (else skipped)
//	counts      counts of 20 targets, from a view, from a real Redis, and from Redis
//	            behind the local cache (else skipped)
//	batch       batch queries of 20 targets over HTTP, with a real Redis that has all
//	            of them (else skipped), and without it
//	heads       the first page of a hot list, from the reverse index and from sorted
//	            sets in a real Redis (else skipped)
//	redis-loss  3,000 reads/s while the whole Redis is lost, 1,000,000 relations, on a
//	            real Redis (else skipped)
//	restart     a killed worker of 2,000,000 relations: on its local store, and on
//	            an empty disk
//	            ceiling: its changelog read with franz-go
//	death       one of three processes killed: how old the counts of its partitions
//	            are, and of the others
//	idle        CPU of an idle `tidemark dev`
//
// Figures depend on the machine; ratios travel better.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"

	"github.com/tidemark/tidemark/drills/member"
)

type measurement struct {
	name string
	run  func(ctx context.Context) error
}

var measurements = []measurement{
	{"projection", benchProjection},
	{"likers", benchLikers},
	{"pages", benchPages},
	{"relations", benchRelations},
	{"overload", benchOverload},
	{"seals", benchSeals},
	{"feed", benchFeed},
	{"feed-latency", benchFeedLatency},
	{"freshness", benchFreshness},
	{"queries", benchQueries},
	{"states", benchStates},
	{"counts", benchCounts},
	{"batch", benchBatch},
	{"heads", benchHeads},
	{"redis-loss", benchRedisLoss},
	{"restart", benchRestart},
	{"death", benchDeath},
	{"idle", benchIdle},
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	if slices.Equal(names, []string{brokerCommand}) {
		return runBroker()
	}
	if len(names) == 2 && names[0] == feedCommand {
		return runFeedEmitter(names[1])
	}
	if len(names) == 2 && names[0] == workerCommand {
		return runWorker(names[1])
	}
	if len(names) == 2 && names[0] == batchCommand {
		return runBatchAPI(names[1])
	}
	if len(names) == 2 && names[0] == sendersCommand {
		return runSenders(names[1])
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(names) == 2 && names[0] == member.Command {
		return runMember(ctx, names[1])
	}
	fmt.Printf("machine: %d cores, %s/%s, %s\n", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
	for _, m := range measurements {
		if len(names) > 0 && !slices.Contains(names, m.name) {
			continue
		}
		fmt.Printf("\n%s\n", m.name)
		if err := m.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}
