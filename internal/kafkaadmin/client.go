package kafkaadmin

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/kafkaaccess"
	"github.com/tidemark/tidemark/topology"
)

// Client makes a client that loses and reorders nothing: acks from all
// in-sync replicas, idempotent writes, the topology's partitioner, no topic
// made by accident. It connects when first used. opts are added and win. The
// caller closes it.
func Client(brokers []string, access *kafkaaccess.Access, opts ...kgo.Opt) (*kgo.Client, error) {
	all := []kgo.Opt{
		kgo.SeedBrokers(brokers...),
		kgo.ClientID("tidemark"),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(Partitioner()),
		kgo.DialTimeout(5 * time.Second),
		kgo.RetryTimeout(10 * time.Second),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}
	all = append(all, access.Franz()...)
	client, err := kgo.NewClient(append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("making a Kafka client: %w", err)
	}
	return client, nil
}

// Partitioner is the topology's partitioner for franz-go. A record whose key
// names a partition that its topic does not have fails; it is never moved.
func Partitioner() kgo.Partitioner {
	return kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
		return func(r *kgo.Record, partitions int) int {
			p, err := topology.PartitionOf(string(r.Key), partitions)
			if err != nil {
				return -1 // the client fails the record
			}
			return p
		}
	})
}
