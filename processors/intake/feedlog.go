package intake

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
)

// feedLog reads again what intake has read, or written, before.
type feedLog struct{ client gokakit.Client }

// start is the first offset that a partition still has.
func (f feedLog) start(ctx context.Context, topic string, partition int) (int64, error) {
	client, err := kafkaadmin.Client(f.client.Brokers, f.client.Access)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	offsets, err := kadm.NewClient(client).ListStartOffsets(ctx, topic)
	return lookUp(offsets, err, topic, partition)
}

// since is the first offset of a partition whose time is not before at; its
// end when there is none.
func (f feedLog) since(ctx context.Context, topic string, partition int, at time.Time) (int64, error) {
	client, err := kafkaadmin.Client(f.client.Brokers, f.client.Access)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	offsets, err := kadm.NewClient(client).ListOffsetsAfterMilli(ctx, at.UnixMilli(), topic)
	return lookUp(offsets, err, topic, partition)
}

func lookUp(offsets kadm.ListedOffsets, err error, topic string, partition int) (int64, error) {
	o, ok := offsets.Lookup(topic, int32(partition))
	switch {
	case err == nil && !ok:
		err = errors.New("the broker does not know it")
	case err == nil:
		err = o.Err
	}
	if err != nil {
		return 0, fmt.Errorf("asking for offsets of %s/%d: %w", topic, partition, err)
	}
	return o.Offset, nil
}

// end is behind the last record of a partition.
func (f feedLog) end(ctx context.Context, topic string, partition int) (int64, error) {
	client, err := kafkaadmin.Client(f.client.Brokers, f.client.Access)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	offsets, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	return lookUp(offsets, err, topic, partition)
}

// read visits the records of from..to that the partition still has, in order.
// to must be an offset that the partition has reached.
func (f feedLog) read(ctx context.Context, topic string, partition int, from, to int64, visit func(topology.Record) error) error {
	if from > to {
		return nil
	}
	client, err := kafkaadmin.Client(f.client.Brokers, f.client.Access,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(partition): kgo.NewOffset().At(from)}}),
		kgo.KeepControlRecords(), // so that offsets have no holes of their own
		kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("reading %s/%d again: %w", topic, partition, context.Cause(ctx))
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return fmt.Errorf("reading %s/%d again: %w", topic, partition, errs[0].Err)
		}
		for _, r := range fetches.Records() {
			if r.Offset <= to && !r.Attrs.IsControl() {
				if err := visit(recordOfKafka(r)); err != nil {
					return err
				}
			}
			if r.Offset >= to {
				return nil
			}
		}
	}
}

func recordOfKafka(r *kgo.Record) topology.Record {
	return topology.Record{
		Topic: r.Topic, Key: string(r.Key), Value: r.Value,
		Partition: int(r.Partition), Offset: r.Offset, Timestamp: r.Timestamp,
	}
}
