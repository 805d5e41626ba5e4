package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// kafka is a broker with the topics of a topology, and a client of it.
func kafka(t *testing.T) (*kgo.Client, []string, *topology.Topology) {
	t.Helper()
	brokers := testenv.Kafka(t)
	topo := testenv.Topology(t, func(c *topology.Config) {
		c.Shards, c.CountPartitions, c.LikerPartitions, c.DisplayPartitions = 2, worldPartitions, worldPartitions, 2
	})
	testenv.CreateTopics(t, brokers, topo)
	client, err := kafkaadmin.Client(brokers, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, brokers, topo
}

func produce(t *testing.T, client *kgo.Client, records ...*kgo.Record) {
	t.Helper()
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// The tables in a broker give the verdict that they give in memory, through
// the verification's own readers.
func TestRunReadsTopics(t *testing.T) {
	client, brokers, topo := kafka(t)
	w := smallWorld()
	for i := range 500 {
		w.set(topology.Relation{Kind: topology.Like, User: fmt.Sprint("u", i%50), Target: fmt.Sprint("V", i%7)}, []topology.State{topology.Liked, topology.Unliked}[i/50%2], topology.Hiding{})
	}
	config := w.config()
	fill := func(stream string, table Table) {
		err := table(t.Context(), func(_ int, key string, value []byte) error {
			produce(t, client, &kgo.Record{Topic: topo.Topic(stream), Key: []byte(key), Value: value})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	fill(topology.ProjectionTable, config.Projection)
	fill(topology.LikersTable, config.Likers)
	fill(topology.DisplayTable, config.Display)
	config.Projection = ReadTable(topo.Topic(topology.ProjectionTable), kgo.SeedBrokers(brokers...))
	config.Display = ReadTable(topo.Topic(topology.DisplayTable), kgo.SeedBrokers(brokers...))
	config.Likers = ReadTable(topo.Topic(topology.LikersTable), kgo.SeedBrokers(brokers...))
	r := Run(t.Context(), config)
	if r.Verdict != Equal || r.Rows.Projection != int64(len(w.log)) || r.Rows.Display != int64(len(w.displayRecords())) || r.Rows.Likers != int64(len(w.likes)) {
		t.Fatalf("%s, %s, rows %+v, %+v", r.Verdict, r.Reason, r.Rows, r.Differences)
	}
	w.facts[u1V1] = Fact{Relation: u1V1, State: topology.Disliked, Version: 9, ChangedAtUs: 9}
	if r := Run(t.Context(), config); r.Verdict != Different || r.Counts[RelationBelow] != 1 || r.Counts[LikerBelow] != 1 {
		t.Fatalf("%s, %s, %v", r.Verdict, r.Reason, r.Counts)
	}
}

// What is written after the reading has begun is not read: each sees every
// partition's records in order up to where it ended, and not beyond.
func TestReadTableStopsWhereItEnded(t *testing.T) {
	client, brokers, topo := kafka(t)
	topic := topo.Topic(topology.ProjectionTable)
	write := func(n int) {
		var records []*kgo.Record
		for i := range n {
			records = append(records, &kgo.Record{Topic: topic, Key: []byte(topology.OnPartition(i%3, "x"))}) // none on partition 3
		}
		produce(t, client, records...)
	}
	write(300)
	var once sync.Once
	var mu sync.Mutex
	seen := map[int]int{}
	err := ReadTable(topic, kgo.SeedBrokers(brokers...))(t.Context(), func(partition int, key string, value []byte) error {
		once.Do(func() { write(300) })
		mu.Lock()
		defer mu.Unlock()
		seen[partition]++
		if key != topology.OnPartition(partition, "x") || value != nil {
			t.Errorf("partition %d has key %q, value %q", partition, key, value)
		}
		return nil
	})
	if err != nil || len(seen) != 3 || seen[0] != 100 || seen[1] != 100 || seen[2] != 100 {
		t.Errorf("%v, read %v", err, seen)
	}
}

// A fetch may bring more than was there when the reading began, and holes.
func TestStretchTakesNothingBeyondItsEnd(t *testing.T) {
	at := func(offsets ...int64) (f kgo.FetchTopicPartition) {
		for _, o := range offsets {
			f.Records = append(f.Records, &kgo.Record{Offset: o, Key: fmt.Append(nil, o)})
		}
		return f
	}
	s := stretch{next: 3, end: 9}
	var keys []string
	each := func(_ int, key string, _ []byte) error { keys = append(keys, key); return nil }
	for _, f := range []kgo.FetchTopicPartition{at(3, 5), at(7), at(9, 10)} {
		if err := s.take(f, each); err != nil {
			t.Fatal(err)
		}
	}
	if strings.Join(keys, " ") != "3 5 7" || s.next != 9 {
		t.Errorf("took %v, next %d", keys, s.next)
	}
}

func TestReadTableErrors(t *testing.T) {
	client, brokers, topo := kafka(t)
	topic := topo.Topic(topology.DisplayTable)
	ignore := func(int, string, []byte) error { return nil }
	if err := ReadTable(topic, kgo.SeedBrokers(brokers...))(t.Context(), ignore); err != nil {
		t.Errorf("an empty topic: %v", err)
	}
	if err := ReadTable("no.such", kgo.SeedBrokers(brokers...))(t.Context(), ignore); !errors.Is(err, kerr.UnknownTopicOrPartition) || !strings.Contains(err.Error(), "no.such") {
		t.Errorf("a missing topic: %v", err)
	}
	produce(t, client, &kgo.Record{Topic: topic, Key: []byte("like:V1")})
	full := errors.New("full")
	if err := ReadTable(topic, kgo.SeedBrokers(brokers...))(t.Context(), func(int, string, []byte) error { return full }); !errors.Is(err, full) {
		t.Errorf("each fails: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := ReadTable(topic, kgo.SeedBrokers("127.0.0.1:1"))(ctx, ignore); err == nil || !strings.Contains(err.Error(), "listing the start of "+topic) {
		t.Errorf("no broker: %v", err)
	}
}

// A broker that has no more to give than the end it named does not hang the
// reading.
func TestReadTableGivesUpWhenItStalls(t *testing.T) {
	broker := testenv.Broker(t)
	topo := testenv.Topology(t, nil)
	testenv.CreateTopics(t, broker.Brokers(), topo)
	topic := topo.Topic(topology.DisplayTable)
	client, err := kafkaadmin.Client(broker.Brokers(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	produce(t, client, &kgo.Record{Topic: topic, Key: []byte("like:V1")})
	broker.Cluster().ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		broker.Cluster().KeepControl()
		return nil, errors.New("cut"), true
	})
	err = readTable(t.Context(), topic, 300*time.Millisecond, []kgo.Opt{kgo.SeedBrokers(broker.Brokers()...)}, func(int, string, []byte) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "stands at offset 0 of 1") {
		t.Errorf("error %v", err)
	}
}

func TestWaitGroups(t *testing.T) {
	client, _, topo := kafka(t)
	admin := kadm.NewClient(client)
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		t.Cleanup(cancel)
		return ctx
	}
	if err := WaitGroups(soon(), admin, topo); err != nil {
		t.Fatalf("empty topics: %v", err)
	}
	cdc := topo.Topic(topology.CDC)
	before, err := EndOffsets(t.Context(), admin, cdc)
	if err != nil || before != 0 {
		t.Fatalf("end %d, %v", before, err)
	}
	for p := range 2 {
		for range 3 {
			produce(t, client, &kgo.Record{Topic: cdc, Key: []byte(topology.OnPartition(p, "x"))})
		}
	}
	if end, err := EndOffsets(t.Context(), admin, cdc); err != nil || end != 6 {
		t.Errorf("end %d, %v", end, err)
	}
	err = WaitGroups(soon(), admin, topo)
	if err == nil || !strings.Contains(err.Error(), "group "+topo.Group(topology.IntakeGroup).ID+" in "+cdc) || !strings.Contains(err.Error(), "-1 of 3") {
		t.Errorf("nothing committed: %v", err)
	}
	commit := func(p int32, at int64) {
		t.Helper()
		var o kadm.Offsets
		o.Add(kadm.Offset{Topic: cdc, Partition: p, At: at, LeaderEpoch: -1})
		if err := admin.CommitAllOffsets(t.Context(), topo.Group(topology.IntakeGroup).ID, o); err != nil {
			t.Fatal(err)
		}
	}
	commit(0, 3)
	commit(1, 2)
	err = WaitGroups(soon(), admin, topo)
	if err == nil || !strings.Contains(err.Error(), "partition 1, at 2 of 3") {
		t.Errorf("one behind: %v", err)
	}
	done := make(chan error, 1)
	waiting := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() { close(waiting); done <- WaitGroups(ctx, admin, topo) }()
	<-waiting
	commit(1, 3)
	if err := <-done; err != nil {
		t.Errorf("all committed: %v", err)
	}
}
