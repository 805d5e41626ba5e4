// Command facts-go reads the stream facts from its start to where it ended
// when this began, and prints each relation as it is by then:
//
//	go run ./examples/facts-go 127.0.0.1:9092 tidemark.facts
//
// There is no consumer group: the state is in memory, so it is read anew by
// each start. A reader that keeps its state in a database writes its offsets
// in the same transaction, see examples/facts-python.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: facts-go BROKERS TOPIC, such as: facts-go 127.0.0.1:9092 tidemark.facts")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	all, err := read(ctx, strings.Split(os.Args[1], ","), os.Args[2], os.Stderr)
	if err == nil {
		err = all.print(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "facts-go:", err)
		os.Exit(1) //nolint:gocritic // stop has nothing left to do
	}
}

// read takes everything that the topic holds now.
func read(ctx context.Context, brokers []string, topic string, log io.Writer) (relations, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeResetOffset(kgo.NoResetOffset())) // never skip
	if err != nil {
		return nil, fmt.Errorf("connecting to %v: %w", brokers, err)
	}
	defer client.Close()
	left, err := follow(ctx, client, topic)
	if err != nil {
		return nil, err
	}
	all, counts := relations{}, map[outcome]int{}
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, fmt.Errorf("reading %s: %w", topic, err)
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return nil, fmt.Errorf("reading %s, partition %d: %w", topic, errs[0].Partition, errs[0].Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			o := all.apply(r.Value)
			counts[o]++
			if o == unusable {
				fmt.Fprintf(log, "not usable: partition %d, offset %d\n", r.Partition, r.Offset)
			}
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
		})
	}
	fmt.Fprintln(log, counts)
	return all, nil
}

// follow has the client read each partition from its start, and gives the ends
// of those that hold anything.
func follow(ctx context.Context, client *kgo.Client, topic string) (map[int32]int64, error) {
	admin := kadm.NewClient(client)
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("asking where %s begins: %w", topic, err)
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("asking where %s ends: %w", topic, err)
	}
	begin, left := map[int32]kgo.Offset{}, map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		if start, _ := starts.Lookup(topic, end.Partition); start.Offset < end.Offset {
			begin[end.Partition] = kgo.NewOffset().At(start.Offset)
			left[end.Partition] = end.Offset
		}
	})
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: begin})
	return left, nil
}
