package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/debezium"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/relations"
)

const (
	feedRows           = 1_000_000
	feedPerTransaction = 10
	feedRounds         = 2
)

// benchFeed lets the built-in emitter and Debezium read the same backlog in
// turns, from one PostgreSQL into one real Kafka.
func benchFeed(ctx context.Context) error {
	return withFeedRig(ctx, func(f *feedRig) error {
		size, err := f.writeBacklog(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("  backlog of %d rows of %d B, %d to a transaction, one shard; load average %s\n", feedRows, size, feedPerTransaction, loadAverage())
		fmt.Printf("  %-10s %10s %18s %10s\n", "", "rows/s", "rows/core-second", "most RSS")
		for range feedRounds {
			var both []caughtUp
			for _, feed := range f.feeds() {
				c, err := f.catchUp(ctx, feed)
				if err != nil {
					return err
				}
				fmt.Printf("  %-10s %10.0f %18.0f %7d MB\n", feed.name(), c.perSecond, c.perCoreSecond, c.memory>>20)
				both = append(both, c)
			}
			a, b := both[0], both[1]
			fmt.Printf("  %-10s %10.1f %18.1f %10s\n", "ratio", a.perSecond/b.perSecond, a.perCoreSecond/b.perCoreSecond, fmt.Sprintf("1/%.1f", float64(b.memory)/float64(a.memory)))
		}
		return nil
	})
}

// withFeedRig does something on a rig, or says what is not there for one.
func withFeedRig(ctx context.Context, do func(*feedRig) error) error {
	f, err := openFeedRig(ctx)
	if errors.Is(err, errNoConnect) {
		fmt.Printf("  skipped: %v\n", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer f.close()
	return do(f)
}

// feeds are both, the built-in one first.
func (f *feedRig) feeds() []feed { return []feed{builtInFeed{f}, debeziumFeed{f}} }

var errNoConnect = errors.New("it needs a real Kafka with Debezium: make real-up DEBEZIUM=1, then make bench-real")

// feedRig is what both feeds work on.
type feedRig struct {
	url     string // of the shard
	brokers []string
	client  *kgo.Client
	admin   *kadm.Client
	worker  debezium.Worker
	jvm     int    // the worker's process
	prefix  string // of topics and slots that nobody else has
	runs    int
	stopDB  func()
}

// openFeedRig starts PostgreSQL and takes Kafka and the Connect worker from
// TIDEMARK_BENCH_KAFKA, _CONNECT and _CONNECT_PID.
func openFeedRig(ctx context.Context) (_ *feedRig, err error) {
	kafka, connect := os.Getenv("TIDEMARK_BENCH_KAFKA"), os.Getenv("TIDEMARK_BENCH_CONNECT")
	jvm, pidErr := strconv.Atoi(strings.TrimSpace(os.Getenv("TIDEMARK_BENCH_CONNECT_PID")))
	if kafka == "" || connect == "" || pidErr != nil {
		return nil, errNoConnect
	}
	f := &feedRig{
		brokers: strings.Split(kafka, ","), worker: debezium.Worker{URL: connect}, jvm: jvm,
		prefix: "bench" + strings.ToLower(rand.Text()[:8]),
	}
	if err := f.worker.Ready(ctx); err != nil {
		return nil, err
	}
	if f.client, err = kafkaadmin.Client(f.brokers, nil); err != nil {
		return nil, err
	}
	f.admin = kadm.NewClient(f.client)
	if f.url, f.stopDB, err = startPostgres(ctx); err != nil {
		f.client.Close()
		return nil, err
	}
	if err := relations.Migrate(ctx, f.url, 0); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *feedRig) close() {
	f.stopDB()
	f.client.Close()
}

// exec runs one statement in the shard.
func (f *feedRig) exec(ctx context.Context, sql string, args ...any) error {
	conn, err := pgx.Connect(ctx, f.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, sql, args...)
	return err
}

// backlogSlot stands before the backlog: every catch-up reads from a copy.
const backlogSlot = "bench_backlog"

// feedPayload is an event as the relation store writes it.
const feedPayload = `{"eventId":"0190f5fe-7a00-7000-8000-000000000001","aggregateKey":"like:user0000001:video1","kind":"like","userId":"user0000001","targetId":"video1","relationVersion":1,"absoluteState":"LIKED","previousState":"UNLIKED","sourceShard":0,"stateChangedAt":"2026-08-19T10:20:30.123456Z"}`

// writeBacklog returns the mean size of a row's columns.
func (f *feedRig) writeBacklog(ctx context.Context) (size int, err error) {
	if err := f.exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, backlogSlot); err != nil {
		return 0, fmt.Errorf("creating the slot of the backlog: %w", err)
	}
	conn, err := pgx.Connect(ctx, f.url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close(ctx) }()
	// A disk flush per transaction would only take time.
	if _, err := conn.Exec(ctx, `SET synchronous_commit = off`); err != nil {
		return 0, err
	}
	_, err = conn.Exec(ctx, fmt.Sprintf(`DO $$BEGIN FOR i IN 1..%d LOOP
		INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
		SELECT 'relation', 'like:user' || lpad(i::text, 7, '0') || ':video' || g, 'RelationChanged', '%s', 0, now() FROM generate_series(1, %d) g;
		COMMIT; END LOOP; END$$`, feedRows/feedPerTransaction, feedPayload, feedPerTransaction))
	if err != nil {
		return 0, fmt.Errorf("writing the backlog: %w", err)
	}
	return size, conn.QueryRow(ctx, `SELECT (length(payload::text) + length(aggregateid) + 47)::int FROM outbox LIMIT 1`).Scan(&size)
}

// newTopic makes a topic of one partition for one run of one feed, and a name
// for its slot.
func (f *feedRig) newTopic(ctx context.Context) (topic, slot string, err error) {
	f.runs++
	name := fmt.Sprintf("%s_%d", f.prefix, f.runs)
	_, err = f.admin.CreateTopic(ctx, 1, -1, nil, name+".cdc")
	if err != nil {
		return "", "", fmt.Errorf("creating topic %s.cdc: %w", name, err)
	}
	return name + ".cdc", name, nil
}

func (f *feedRig) dropTopic(ctx context.Context, topic string) error {
	_, err := f.admin.DeleteTopic(ctx, topic)
	return err
}

// dropSlot waits until nobody reads from the slot.
func (f *feedRig) dropSlot(ctx context.Context, slot string) error {
	for {
		err := f.exec(ctx, `SELECT pg_drop_replication_slot($1)`, slot)
		if err == nil || !strings.Contains(err.Error(), "is active") {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// caughtUp is what one catch-up came to.
type caughtUp struct {
	perSecond, perCoreSecond float64
	memory                   int64 // most resident, bytes
}

// catchUp lets a feed read the whole backlog. What it needs to start is not
// counted: the time runs from the first records in Kafka to the last.
func (f *feedRig) catchUp(ctx context.Context, feed feed) (c caughtUp, err error) {
	topic, slot, err := f.newTopic(ctx)
	if err != nil {
		return c, err
	}
	if err := f.exec(ctx, `SELECT pg_copy_logical_replication_slot($1, $2)`, backlogSlot, slot); err != nil {
		return c, err
	}
	pid, stop, err := feed.start(ctx, topic, slot)
	if err != nil {
		return c, err
	}
	c, err = f.watch(ctx, topic, pid)
	return c, errors.Join(err, stop(), f.dropSlot(ctx, slot), f.dropTopic(ctx, topic))
}

// watch looks at a feed until its topic has the whole backlog.
func (f *feedRig) watch(ctx context.Context, topic string, pid int) (c caughtUp, err error) {
	type moment struct {
		at    time.Time
		ticks int64
		rows  int64
	}
	var first moment
	for {
		ends, err := f.admin.ListEndOffsets(ctx, topic)
		if err = errors.Join(err, ends.Error()); err != nil {
			return c, err
		}
		end, _ := ends.Lookup(topic, 0)
		now := moment{at: time.Now(), rows: end.Offset}
		if now.ticks, err = ticks(pid); err != nil {
			return c, err
		}
		c.memory = max(c.memory, residentMemory(pid))
		if first.rows == 0 {
			first = now
		}
		if now.rows >= feedRows {
			rows := float64(now.rows - first.rows)
			c.perSecond = rows / now.at.Sub(first.at).Seconds()
			c.perCoreSecond = rows / (float64(now.ticks-first.ticks) / ticksPerSecond)
			return c, nil
		}
		select {
		case <-ctx.Done():
			return c, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// residentMemory is what a process has in memory, bytes.
func residentMemory(pid int) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid)) // 0 where there is none
	var size, resident int64
	_, _ = fmt.Sscan(string(b), &size, &resident)
	return resident * int64(os.Getpagesize())
}

// loadAverage says how busy the machine is with everything.
func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	one, _, _ := strings.Cut(string(b), " ")
	return one
}
