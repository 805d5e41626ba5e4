package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
)

// stallAfter is how long a read may go without a record before it is given up.
const stallAfter = 15 * time.Second

// ReadTable reads a compacted topic from its start to where it ends when asked,
// its partitions at the same time, each in order. opts say how to reach the
// brokers.
//
// It is given up, with the partition and offset where it stands, when ctx ends
// or when no record comes for 15 s although the end is not reached.
func ReadTable(topic string, opts ...kgo.Opt) Table {
	return func(ctx context.Context, each func(partition int, key string, value []byte) error) error {
		return readTable(ctx, topic, stallAfter, opts, each)
	}
}

// ends is how far to read, and where the reading is, by partition.
type ends map[int32]*stretch

type stretch struct{ next, end int64 }

func readTable(ctx context.Context, topic string, stall time.Duration, opts []kgo.Opt, each func(int, string, []byte) error) error {
	stretches, err := listStretches(ctx, topic, opts)
	if err != nil || len(stretches) == 0 {
		return err
	}
	from := map[int32]kgo.Offset{}
	for p, s := range stretches {
		from[p] = kgo.NewOffset().At(s.next)
	}
	client, err := kgo.NewClient(append(opts[:len(opts):len(opts)],
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()), // what is gone is an error
		kgo.KeepControlRecords(),                    // the last record may be one
		kgo.FetchMaxPartitionBytes(4<<20),
	)...)
	if err != nil {
		return fmt.Errorf("making a Kafka client: %w", err)
	}
	defer client.Close()
	for len(stretches) > 0 {
		if err := readSome(ctx, client, topic, stall, stretches, each); err != nil {
			return err
		}
	}
	return nil
}

// listStretches gives the partitions that have anything to read.
func listStretches(ctx context.Context, topic string, opts []kgo.Opt) (ends, error) {
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("making a Kafka client: %w", err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	first, err := admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = first.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("listing the start of %s: %w", topic, err)
	}
	last, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = last.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("listing the end of %s: %w", topic, err)
	}
	if len(last[topic]) == 0 {
		return nil, fmt.Errorf("listing the end of %s: there is no such topic", topic)
	}
	stretches := ends{}
	for p, end := range last[topic] {
		if s := first[topic][p].Offset; s < end.Offset {
			stretches[p] = &stretch{s, end.Offset}
		}
	}
	return stretches, nil
}

// readSome takes one round of fetched records, and drops the partitions that
// are read to their end.
func readSome(ctx context.Context, client *kgo.Client, topic string, stall time.Duration, stretches ends, each func(int, string, []byte) error) error {
	wait, cancel := context.WithTimeout(ctx, stall)
	defer cancel()
	fetches := client.PollFetches(wait)
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %s", context.Cause(ctx), stretches.where(topic))
	}
	if errs := fetches.Errors(); len(errs) > 0 {
		if errors.Is(errs[0].Err, context.DeadlineExceeded) {
			return fmt.Errorf("no record for %v: %s", stall, stretches.where(topic))
		}
		return fmt.Errorf("fetching %s, partition %d: %w", errs[0].Topic, errs[0].Partition, errs[0].Err)
	}
	var group errgroup.Group
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		s := stretches[f.Partition]
		if s == nil {
			return // it is done, and goes on beyond what is read
		}
		group.Go(func() error { return s.take(f, each) })
	})
	if err := group.Wait(); err != nil {
		return err
	}
	for p, s := range stretches {
		if s.next >= s.end {
			delete(stretches, p)
			client.PauseFetchPartitions(map[string][]int32{topic: {p}})
		}
	}
	return nil
}

func (s *stretch) take(f kgo.FetchTopicPartition, each func(int, string, []byte) error) error {
	for _, r := range f.Records {
		if r.Offset >= s.end {
			s.next = s.end
			return nil
		}
		s.next = r.Offset + 1
		if r.Attrs.IsControl() {
			continue
		}
		if err := each(int(f.Partition), string(r.Key), r.Value); err != nil {
			return err
		}
	}
	return nil
}

// where names the partition that has the most left.
func (e ends) where(topic string) string {
	var at int32
	var most int64
	for p, s := range e {
		if left := s.end - s.next; left > most {
			at, most = p, left
		}
	}
	return fmt.Sprintf("%d partitions of %s are not read to their end, partition %d stands at offset %d of %d", len(e), topic, at, e[at].next, e[at].end)
}
