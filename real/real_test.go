//go:build real

// Tests against what `make real-up` started; run by `make test-real`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/debezium"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

const patience = 2 * time.Minute // a worker that has just started is slow

// where are the endpoints of what runs.
var where struct {
	kafka   []string
	connect debezium.Worker // URL "": no worker runs
}

func TestMain(m *testing.M) {
	if err := findEndpoints(); err != nil {
		fmt.Fprintln(os.Stderr, "real:", err)
		os.Exit(1)
	}
	// The tests share the broker with others: prefixes keep them apart.
	if err := os.Setenv(testenv.KafkaVariable, strings.Join(where.kafka, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "real:", err)
		os.Exit(1)
	}
	testenv.Main(m)
}

func findEndpoints() error {
	root, err := repository()
	if err != nil {
		return err
	}
	b, err := os.ReadFile(root + "/.real/endpoints")
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("no real Kafka runs here: run `make real-up` first (DEBEZIUM=1 for all tests)")
	}
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "KAFKA":
			where.kafka = strings.Split(value, ",")
		case "CONNECT":
			where.connect.URL = value
		}
	}
	return nil
}

func client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kafkaadmin.Client(where.kafka, nil, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// A real broker takes the topology's topics as they are drawn, with as many
// replicas as there are brokers, and refuses what the embedded one would
// accept without a word.
func TestTopologyOnARealBroker(t *testing.T) {
	testenv.Kafka(t)
	c := client(t)
	topo := testenv.Topology(t, func(c *topology.Config) { c.ReplicationFactor = len(where.kafka) })
	for range 2 {
		if err := kafkaadmin.Create(t.Context(), c, topo); err != nil {
			t.Fatal(err)
		}
	}
	if diffs, err := kafkaadmin.Check(t.Context(), c, topo); err != nil || len(diffs) != 0 {
		t.Errorf("after Create: %v, %v", diffs, err)
	}
	admin := kadm.NewClient(c)
	topics, err := admin.ListTopics(t.Context(), topo.Topic(topology.CDC)+"-typo")
	if err != nil || topics[topo.Topic(topology.CDC)+"-typo"].Err == nil {
		t.Errorf("a topic came into being by being asked for: %v, %v", topics, err)
	}
}

// readTopic reads n records of a topic, all there are, by partition.
func readTopic(ctx context.Context, t *testing.T, topic string, ends map[int]int64) map[int][]topology.Record {
	t.Helper()
	from, left := map[int32]kgo.Offset{}, int64(0)
	for p, end := range ends {
		from[int32(p)] = kgo.NewOffset().AtStart()
		left += end
	}
	c := client(t, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	read := map[int][]topology.Record{}
	for left > 0 {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("reading %s, %d records are left: %v", topic, left, err)
		}
		for _, r := range fetches.Records() {
			left--
			p := int(r.Partition)
			read[p] = append(read[p], topology.Record{Topic: r.Topic, Key: string(r.Key), Value: r.Value, Partition: p, Offset: r.Offset, Timestamp: r.Timestamp})
			if len(r.Headers) > 0 {
				t.Errorf("%s, partition %d, offset %d has headers: %v", topic, p, r.Offset, r.Headers)
			}
		}
	}
	return read
}

// awaitEnds waits until every partition of a topic has its number of records.
func awaitEnds(t *testing.T, topic string, want map[int]int64) {
	t.Helper()
	admin := kadm.NewClient(client(t))
	testenv.Eventually(t, patience, func() error {
		ends, err := admin.ListEndOffsets(t.Context(), topic)
		if err = errors.Join(err, ends.Error()); err != nil {
			return err
		}
		for p, n := range want {
			if end, _ := ends.Lookup(topic, int32(p)); end.Offset != n {
				return fmt.Errorf("%s, partition %d has %d of %d records", topic, p, end.Offset, n)
			}
		}
		return nil
	})
}

// endsOf gives the end of each partition of a topic.
func endsOf(listed kadm.ListedOffsets) map[int]int64 {
	ends := map[int]int64{}
	listed.Each(func(o kadm.ListedOffset) { ends[int(o.Partition)] = o.Offset })
	return ends
}
