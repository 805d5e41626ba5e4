package kafkaadmin_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func client(t *testing.T, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kafkaadmin.Client(testenv.Kafka(t), nil, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func check(t *testing.T, c *kgo.Client, topo *topology.Topology) []kafkaadmin.Difference {
	t.Helper()
	diffs, err := kafkaadmin.Check(t.Context(), c, topo)
	if err != nil {
		t.Fatal(err)
	}
	return diffs
}

func TestCreateThenCheck(t *testing.T) {
	c, topo := client(t), testenv.Topology(t, nil)
	diffs := check(t, c, topo)
	if len(diffs) != len(topo.Streams) || diffs[0].String() != "topic "+topo.Topic(topology.CDC)+" is missing" {
		t.Errorf("on an empty broker: %v", diffs)
	}
	for range 2 {
		if err := kafkaadmin.Create(t.Context(), c, topo); err != nil {
			t.Fatal(err)
		}
	}
	if diffs := check(t, c, topo); len(diffs) != 0 {
		t.Errorf("after Create: %v", diffs)
	}
}

// Each difference is named by topic and field, and Create changes nothing
// while there is one.
func TestDifferencesAreRefusedByName(t *testing.T) {
	c, topo := client(t), testenv.Topology(t, nil)
	admin := kadm.NewClient(c)
	projection := topo.Stream(topology.ProjectionTable)
	settings := map[string]*string{
		"cleanup.policy":      kadm.StringPtr("compact,delete"),
		"retention.ms":        kadm.StringPtr("1000"),
		"min.insync.replicas": kadm.StringPtr("2"),
		"max.message.bytes":   kadm.StringPtr("100"),
	}
	if _, err := admin.CreateTopic(t.Context(), 3, 1, settings, projection.Topic); err != nil {
		t.Fatal(err)
	}
	unset := kafkaadmin.Missing // what a broker says of a setting that nobody made
	if testenv.External() {
		unset = "0"
	}
	want := []string{
		"topic " + projection.Topic + " has partitions 3, not 8",
		"topic " + projection.Topic + " has cleanup.policy compact,delete, not compact",
		"topic " + projection.Topic + " has max.message.bytes 100, not 1048588",
		"topic " + projection.Topic + " has min.compaction.lag.ms " + unset + ", not 3600000",
		"topic " + projection.Topic + " has min.insync.replicas 2, not 1",
		"topic " + projection.Topic + " has retention.ms 1000, not -1",
	}
	testenv.Eventually(t, 10*time.Second, func() error { // a broker learns of a new topic from its controller
		var got []string
		for _, d := range check(t, c, topo) {
			if d.Topic == projection.Topic {
				got = append(got, d.String())
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		return nil
	})
	err := kafkaadmin.Create(t.Context(), c, topo)
	if err == nil || !strings.Contains(err.Error(), want[0]) {
		t.Errorf("Create: %v", err)
	}
	if diffs := check(t, c, topo); diffs[0].Field != kafkaadmin.FieldTopic {
		t.Error("Create made topics though one differs")
	}
}

func TestReplicationFactorIsCompared(t *testing.T) {
	c, topo := client(t), testenv.Topology(t, nil)
	if err := kafkaadmin.Create(t.Context(), c, topo); err != nil {
		t.Fatal(err)
	}
	topo = testenv.Topology(t, func(c *topology.Config) { c.ReplicationFactor = 3 })
	if diffs := check(t, c, topo); len(diffs) == 0 || diffs[0].Field != kafkaadmin.FieldReplicationFactor || diffs[0].Have != "1" {
		t.Errorf("got %v", diffs)
	}
}

// Two processes that start together both succeed.
func TestCreateTogether(t *testing.T) {
	brokers, topo := testenv.Kafka(t), testenv.Topology(t, nil)
	done := make(chan error)
	for range 4 {
		go func() {
			c, err := kafkaadmin.Client(brokers, nil)
			if err == nil {
				err = kafkaadmin.Create(t.Context(), c, topo)
				c.Close()
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestNoBroker(t *testing.T) {
	c, err := kafkaadmin.Client([]string{"127.0.0.1:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := kafkaadmin.Check(ctx, c, testenv.Topology(t, nil)); err == nil || !strings.Contains(err.Error(), "listing topics") {
		t.Errorf("error %v", err)
	}
}

// I11: a record goes where its key says, and nowhere when there is no such
// partition.
func TestPartitioner(t *testing.T) {
	topo := testenv.Topology(t, nil)
	brokers := testenv.Kafka(t)
	testenv.CreateTopics(t, brokers, topo)
	c, err := kafkaadmin.Client(brokers, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	produce := func(key string) (int32, error) {
		r, err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topo.Topic(topology.BucketChanges), Key: []byte(key)}).First()
		return r.Partition, err
	}
	if p, err := produce("0005|like:u:v"); err != nil || p != 5 {
		t.Errorf("named partition: %d, %v", p, err)
	}
	want, err := topology.PartitionOf("like:v", 8)
	if err != nil {
		t.Fatal(err)
	}
	if p, err := produce("like:v"); err != nil || int(p) != want {
		t.Errorf("hashed partition: %d, %v, want %d", p, err, want)
	}
	if _, err := produce("0008|like:u:v"); err == nil {
		t.Error("a partition that is not there is accepted")
	}
}
