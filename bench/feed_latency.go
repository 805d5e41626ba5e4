package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

const (
	latencyRate    = 1000 // commits per second
	latencyWriters = 16
	latencyWarmUp  = 5 * time.Second
	latencySpan    = 20 * time.Second
)

// benchFeedLatency commits rows one by one at a fixed rate and measures, with
// a consumer, how long after its commit each is read from Kafka; the feeds take
// turns.
func benchFeedLatency(ctx context.Context) error {
	return withFeedRig(ctx, func(f *feedRig) error {
		fmt.Printf("  commit to a consumer of the topic, %d commits/s for %v after %v; load average %s\n", latencyRate, latencySpan, latencyWarmUp, loadAverage())
		fmt.Printf("  %-10s %10s %10s %10s\n", "", "p50", "p99", "max")
		for range feedRounds {
			var p99 []time.Duration
			for _, feed := range f.feeds() {
				ages, err := f.latencies(ctx, feed)
				if err != nil {
					return err
				}
				p99 = append(p99, quantile(ages, 0.99))
				fmt.Printf("  %-10s %7.1f ms %7.1f ms %7.1f ms\n", feed.name(), milliseconds(quantile(ages, 0.5)), milliseconds(quantile(ages, 0.99)), milliseconds(ages[len(ages)-1]))
			}
			fmt.Printf("  %-10s %20.2f\n", "ratio", p99[0].Seconds()/p99[1].Seconds())
		}
		return nil
	})
}

// latencies are those of one feed, ascending.
func (f *feedRig) latencies(ctx context.Context, feed feed) (ages []time.Duration, err error) {
	topic, slot, err := f.newTopic(ctx)
	if err != nil {
		return nil, err
	}
	if err := f.exec(ctx, `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, slot); err != nil {
		return nil, err
	}
	_, stop, err := feed.start(ctx, topic, slot)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop(), f.dropSlot(ctx, slot), f.dropTopic(ctx, topic)) }()

	both, working := errgroup.WithContext(ctx)
	start := time.Now()
	both.Go(func() error { return f.commitSteadily(working, start) })
	both.Go(func() (err error) { ages, err = f.consumeAges(working, topic, start.Add(latencyWarmUp)); return err })
	if err := both.Wait(); err != nil {
		return nil, err
	}
	slices.Sort(ages)
	return ages, nil
}

const latencyRows = latencyRate * int((latencyWarmUp+latencySpan)/time.Second)

// commitSteadily commits rows on a timetable, whatever each takes.
func (f *feedRig) commitSteadily(ctx context.Context, start time.Time) error {
	writers, ctx := errgroup.WithContext(ctx)
	for w := range latencyWriters {
		writers.Go(func() error { return f.commitEvery(ctx, start, w) })
	}
	return writers.Wait()
}

func (f *feedRig) commitEvery(ctx context.Context, start time.Time, first int) error {
	conn, err := pgx.Connect(ctx, f.url)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for n := first; n < latencyRows; n += latencyWriters {
		if !pause.For(ctx, time.Until(start.Add(time.Duration(n)*time.Second/latencyRate))) {
			return ctx.Err()
		}
		_, err := conn.Exec(ctx, `INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at) VALUES ('relation', $1, 'RelationChanged', $2, 0, now())`,
			fmt.Sprintf("like:user%07d:video1", n), feedPayload)
		if err != nil {
			return err
		}
	}
	return nil
}

// consumeAges reads every row's record and notes the age of those committed
// after the warm-up. A commit's time is the database's, of the same clock; it
// is taken before the commit is flushed to disk, so the flush is inside.
func (f *feedRig) consumeAges(ctx context.Context, topic string, after time.Time) (ages []time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, latencyWarmUp+latencySpan+time.Minute)
	defer cancel()
	cl, err := kafkaadmin.Client(f.brokers, nil, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	for seen := 0; seen < latencyRows; {
		fetches := cl.PollFetches(ctx)
		now := time.Now()
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("reading %s, %d of %d rows: %w", topic, seen, latencyRows, err)
		}
		for _, r := range fetches.Records() {
			seen++
			var envelope topology.Envelope
			if err := json.Unmarshal(r.Value, &envelope); err != nil {
				return nil, fmt.Errorf("reading %s, offset %d: %w", topic, r.Offset, err)
			}
			if committed := time.UnixMicro(envelope.Source.TsUs); committed.After(after) {
				ages = append(ages, now.Sub(committed))
			}
		}
	}
	if len(ages) == 0 {
		return nil, errors.New("no row was committed after the warm-up")
	}
	return ages, nil
}

// quantile of values that ascend.
func quantile(values []time.Duration, q float64) time.Duration {
	return values[min(len(values)-1, int(q*float64(len(values))))]
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
