package embedded

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

func kafkaForTest(t *testing.T, dir string) (*Kafka, *kadm.Client) {
	t.Helper()
	k, err := StartKafka(KafkaConfig{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		for range 2 {
			if err := k.Stop(); err != nil {
				t.Error(err)
			}
		}
	})
	return k, kadm.NewClient(client)
}

func state(t *testing.T, admin *kadm.Client) (end, committed int64) {
	t.Helper()
	ends, err := admin.ListEndOffsets(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	e, ok := ends.Lookup("t", 0)
	if !ok || e.Err != nil {
		t.Fatalf("topic t: %v", e.Err)
	}
	offsets, err := admin.FetchOffsets(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	o, _ := offsets.Lookup("t", 0)
	return e.Offset, o.At
}

// Topics, records and committed offsets survive kill -9, on the same port.
func TestKafkaSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	var first string
	for n := 1; n <= 3; n++ {
		cmd, broker := startChild(t, "kafka", dir)
		if first == "" {
			first = broker
		}
		if broker != first {
			t.Errorf("start %d is at %s, the first was at %s", n, broker, first)
		}
		kill(t, cmd)
	}
	k, admin := kafkaForTest(t, dir)
	if k.Brokers()[0] != first {
		t.Errorf("after the kills at %s, before at %s", k.Brokers()[0], first)
	}
	if end, committed := state(t, admin); end != 3 || committed != 1 {
		t.Errorf("end offset %d, committed %d; want 3, 1", end, committed)
	}
	if _, err := StartKafka(KafkaConfig{DataDir: dir}); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("second start on the same data: %v", err)
	}
}

func TestKafkaRestart(t *testing.T) {
	dir := t.TempDir()
	k, _ := kafkaForTest(t, dir)
	if err := produceAndCommit(t.Context(), k.Brokers()); err != nil {
		t.Fatal(err)
	}
	if err := k.Stop(); err != nil {
		t.Fatal(err)
	}
	again, admin := kafkaForTest(t, dir)
	if again.Brokers()[0] != k.Brokers()[0] {
		t.Errorf("at %v, before at %v", again.Brokers(), k.Brokers())
	}
	if end, committed := state(t, admin); end != 1 || committed != 1 {
		t.Errorf("end offset %d, committed %d; want 1, 1", end, committed)
	}
}

// A typo in a topic's name must not make a topic.
func TestKafkaMakesNoTopicByItself(t *testing.T) {
	k, admin := kafkaForTest(t, "")
	client, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...), kgo.AllowAutoTopicCreation(), kgo.UnknownTopicRetries(1))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: "typo"}).FirstErr(); err == nil {
		t.Error("a record to a topic that is not there is accepted")
	}
	if topics, err := admin.ListTopics(t.Context()); err != nil || len(topics) != 0 {
		t.Errorf("topics %v, %v", topics.Names(), err)
	}
}

func TestKafkaPortTaken(t *testing.T) {
	k, _ := kafkaForTest(t, t.TempDir())
	if _, err := StartKafka(KafkaConfig{Port: k.port}); err == nil {
		t.Error("two brokers on one port")
	}
}

// A member of a group tells what it reads and where it answers; nobody may see
// it without that after a restart of the broker.
func TestMembersAreKnownAfterARestart(t *testing.T) {
	dir := t.TempDir()
	k, admin := kafkaForTest(t, dir)
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, "t"); err != nil {
		t.Fatal(err)
	}
	member, err := kgo.NewClient(kgo.SeedBrokers(k.Brokers()...), kgo.ConsumerGroup("g"), kgo.InstanceID("a"), kgo.ConsumeTopics("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	seen := func(admin *kadm.Client) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for {
			member.PollFetches(canceled()) // the member works in the background
			groups, err := admin.DescribeGroups(ctx, "g")
			if err == nil && groups["g"].State == "Stable" && len(groups["g"].Members) > 0 {
				joined, ok := groups["g"].Members[0].Join.AsConsumer()
				if !ok || !slices.Equal(joined.Topics, []string{"t"}) {
					t.Errorf("the member reads %+v", joined)
				}
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("no member: %+v, %v", groups, err)
			}
		}
	}
	seen(admin)
	if err := k.Stop(); err != nil {
		t.Fatal(err)
	}
	_, admin = kafkaForTest(t, dir)
	seen(admin)
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
