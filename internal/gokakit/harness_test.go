package gokakit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// world is a broker with the topics, the inputs that were sent, and the
// processors that run on it.
type world struct {
	t      testing.TB
	topo   *topology.Topology
	kafka  *embedded.Kafka // nil when the test has its own broker
	broker []string
	client *kgo.Client
	admin  *kadm.Client

	input, table, out string // topics
	group             string
	sent              map[string]uint64
	perPartition      [4]int64
}

func newWorld(t testing.TB) *world {
	k := testenv.Broker(t)
	w := worldAt(t, k.Brokers())
	w.kafka = k
	return w
}

func worldAt(t testing.TB, brokers []string) *world {
	topo := testTopology(t)
	testenv.CreateTopics(t, brokers, topo)
	w := &world{t: t, topo: topo, broker: brokers, sent: map[string]uint64{}, group: topo.Group(topology.ProjectionGroup).ID,
		input: topo.Topic(topology.BucketChanges), table: topo.Topic(topology.ProjectionTable), out: topo.Topic(topology.PartialCounts)}
	w.connect()
	return w
}

// connect makes new clients, which know nothing of former topics.
func (w *world) connect() {
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.broker...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(cl.Close)
	w.client, w.admin = cl, kadm.NewClient(cl)
}

func (w *world) cluster() *kfake.Cluster { return w.kafka.Cluster() }

// produce writes a record where its key belongs, or to partition if that is
// not -1.
func (w *world) produce(topic string, partition int, key string, value []byte) int64 {
	w.t.Helper()
	if partition < 0 {
		p, err := topology.PartitionOf(key, 4)
		if err != nil {
			w.t.Fatal(err)
		}
		partition = p
	}
	r, err := w.client.ProduceSync(w.t.Context(), &kgo.Record{Topic: topic, Partition: int32(partition), Key: []byte(key), Value: value}).First()
	if err != nil {
		w.t.Fatal(err)
	}
	return r.Offset
}

// send gives n keys of each partition their next version.
func (w *world) send(n int) {
	w.t.Helper()
	for p := range 4 {
		for i := range n {
			key := fmt.Sprintf("%04x|g%d:a%d", p, i%3, i)
			w.sent[key]++
			w.produce(w.input, p, key, strconv.AppendUint(nil, w.sent[key], 10))
			w.perPartition[p]++
		}
	}
}

// count is a handler that counts versions: a row of a group is the sum of its
// keys' versions.
func count(p *Partition, r Record) error {
	version, err := strconv.ParseUint(string(r.Value), 10, 64)
	if err != nil {
		return err
	}
	value, err := p.Get(r.Key)
	if err != nil {
		return err
	}
	old, err := decodeCell(value)
	if err != nil || version <= old.version {
		return err
	}
	group, item := tallyRow(r.Key)
	if value, err = p.Derived(group, item); err != nil {
		return err
	}
	row, err := decodeCell(value)
	if err != nil {
		return err
	}
	next := cell{version, row.seq, row.count, row.input}
	if r.Offset > row.input {
		next = cell{version, row.seq + 1, row.count + int64(version-old.version), r.Offset}
	}
	return p.Put(r.Key, next.encode())
}

// member is a running processor.
type member struct {
	*Processor
	stop func()
	done chan struct{}
}

func (w *world) start(change func(*ProcessorConfig)) *member {
	w.t.Helper()
	cfg := ProcessorConfig{
		Client: Client{Brokers: w.broker, Session: 2 * time.Second}, Topology: w.topo, Group: topology.ProjectionGroup,
		Schema: tally{}, Handle: count, StateDir: w.t.TempDir(), Instance: "one", WriteBehind: 16 << 10, Logger: quiet(),
		lagInterval: 200 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	p, err := NewProcessor(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.run(p)
}

func (w *world) run(p *Processor) *member {
	ctx, cancel := context.WithCancel(context.Background())
	m := &member{Processor: p, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		if err := p.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	m.stop = sync.OnceFunc(func() {
		cancel()
		<-m.done
	})
	w.t.Cleanup(m.stop)
	return m
}

func (w *world) ready(m *member) {
	w.t.Helper()
	testenv.Eventually(w.t, soon, m.Ready)
}

// live is the current attempt; nil between two.
func (m *member) live() *attempt {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current
}

// committed is the group's offset on a partition; 0 when there is none.
func (w *world) committed(partition int) (at int64) {
	w.t.Helper()
	testenv.Eventually(w.t, soon, func() error {
		offsets, err := w.admin.FetchOffsets(w.t.Context(), w.group)
		if errors.Is(err, kerr.GroupIDNotFound) {
			return nil
		}
		o, _ := offsets.Lookup(w.input, int32(partition))
		at = max(0, o.At)
		return err
	})
	return at
}

// counted waits until everything that was sent is committed, and says how the
// table's log differs from it; "" when not at all.
func (w *world) counted() string {
	w.t.Helper()
	w.taken()
	return w.compare()
}

// taken waits until everything that was sent is committed.
func (w *world) taken() {
	w.t.Helper()
	testenv.Eventually(w.t, soon, func() error {
		for p, n := range w.perPartition {
			if c := w.committed(p); c != n {
				return fmt.Errorf("partition %d: %d of %d committed", p, c, n)
			}
		}
		return nil
	})
}

func (w *world) compare() string {
	w.t.Helper()
	want := map[[2]string]int64{}
	for key, v := range w.sent {
		group, item := tallyRow(key)
		want[[2]string{key[:4] + group, item}] += int64(v)
	}
	for p := range 4 {
		log := w.log(w.table, p)
		f := fold(log)
		for key, v := range f.values {
			if c, _ := decodeCell(v); c.version != w.sent[key] {
				return fmt.Sprintf("%s has version %d, sent was %d", key, c.version, w.sent[key])
			}
		}
		for name, v := range f.rows {
			name[0] = fmt.Sprintf("%04x", p) + name[0]
			if c, _ := decodeCell(v); c.count != want[name] {
				return fmt.Sprintf("%v counts %d, sent was %d", name, c.count, want[name])
			}
			delete(want, name)
		}
		// A compacted log keeps the last record of a key: it must be the winner.
		if len(f.stale) > 0 {
			return fmt.Sprintf("partition %d: the last records of %v are stale", p, slices.Sorted(maps.Keys(f.stale)))
		}
	}
	if len(want) > 0 {
		return fmt.Sprintf("nothing counts %v", want)
	}
	return ""
}

func (w *world) end(topic string, partition int) int64 {
	w.t.Helper()
	ends, err := w.admin.ListEndOffsets(w.t.Context(), topic)
	if err != nil {
		w.t.Fatal(err)
	}
	o, _ := ends.Lookup(topic, int32(partition))
	return o.Offset
}

// log reads a partition from its start to its present end.
func (w *world) log(topic string, partition int) (log []logged) {
	w.t.Helper()
	end := w.end(topic, partition)
	if end == 0 {
		return nil
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.broker...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(partition): kgo.NewOffset().AtStart()}}))
	if err != nil {
		w.t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), soon)
	defer cancel()
	for {
		for _, r := range cl.PollFetches(ctx).Records() {
			log = append(log, logged{string(r.Key), r.Value})
			if r.Offset == end-1 {
				return log
			}
		}
		if ctx.Err() != nil {
			w.t.Fatalf("read %d records of %s/%d, its end is %d", len(log), topic, partition, end)
		}
	}
}

// hold keeps what is produced to a topic from being answered, or even taken,
// until the returned function is called.
func (w *world) hold(topic string) (held *atomic.Int64, release func()) {
	held = new(atomic.Int64)
	gate := make(chan struct{})
	release = sync.OnceFunc(func() { close(gate) })
	w.t.Cleanup(release)
	c := w.cluster()
	info := c.TopicInfo(topic)
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, t := range req.(*kmsg.ProduceRequest).Topics {
			if t.Topic == topic || t.TopicID == info.TopicID {
				held.Add(1)
				c.SleepControl(func() { <-gate })
			}
		}
		return nil, nil, false
	})
	return held, release
}

// stays polls a condition for d and returns its first failure.
func stays(d time.Duration, check func() error) error {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

var errNotYet = errors.New("not yet")

// eventually is testenv.Eventually for what may fail.
func eventually(d time.Duration, check func() error) (err error) {
	for end := time.Now().Add(d); ; time.Sleep(5 * time.Millisecond) {
		if err = check(); err == nil || time.Now().After(end) {
			return err
		}
	}
}

func counterValue(c prometheus.Counter) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}

func (w *world) delete(topic string) {
	w.t.Helper()
	if _, err := w.admin.DeleteTopics(w.t.Context(), topic); err != nil {
		w.t.Fatal(err)
	}
}

// eventuallyNamed waits until ready says why it is not.
func eventuallyNamed(t testing.TB, ready func() error, why ...string) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		err := ready()
		for _, w := range why {
			if err == nil || !strings.Contains(err.Error(), w) {
				return fmt.Errorf("ready does not say %q but: %w", w, err)
			}
		}
		return nil
	})
}
