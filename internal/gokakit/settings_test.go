package gokakit

import (
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/lovoo/goka"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/internal/kafkaaccess"
	"github.com/tidemark/tidemark/topology"
)

// TestSettings pins what goka's and sarama's defaults get wrong (G25, G30, S01
// of the bug log).
func TestSettings(t *testing.T) {
	c := Client{Brokers: []string{"localhost:1"}, Access: &kafkaaccess.Access{SASL: &kafkaaccess.SASL{
		Mechanism: kafkaaccess.ScramSHA512, User: "tidemark", Password: func() (string, error) { return "secret", nil },
	}}}.withDefaults()
	line := c.newLifeline()
	defer line.cut()
	s, err := c.sarama("one.projection", line)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	if s.Consumer.Group.Rebalance.GroupStrategies[0] != goka.CopartitioningStrategy {
		t.Error("partitions of a group's topics are not assigned together")
	}
	cl, err := Client{Brokers: c.Brokers, Linger: c.Linger, ClientID: c.ClientID}.franz(c.producerOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for name, v := range map[string][2]any{
		"start of a new group":      {s.Consumer.Offsets.Initial, sarama.OffsetOldest},
		"lost offsets are skipped":  {s.Consumer.Group.ResetInvalidOffsets, false},
		"commit interval":           {s.Consumer.Offsets.AutoCommit.Interval, 200 * time.Millisecond},
		"session":                   {s.Consumer.Group.Session.Timeout, 6 * time.Second},
		"heartbeat":                 {s.Consumer.Group.Heartbeat.Interval, 1200 * time.Millisecond},
		"rebalance timeout":         {s.Consumer.Group.Rebalance.Timeout, 20 * time.Second},
		"static member":             {s.Consumer.Group.InstanceId, "one.projection"},
		"wait of a fetch":           {s.Consumer.MaxWaitTime, 100 * time.Millisecond},
		"errors are returned":       {s.Consumer.Return.Errors, true},
		"connections":               {s.Net.Proxy.Dialer == line, true},
		"SASL":                      {s.Net.SASL.Enable, true},
		"acks":                      {cl.OptValue(kgo.RequiredAcks), kgo.AllISRAcks()},
		"idempotence is off":        {cl.OptValue(kgo.DisableIdempotentWrite), false},
		"requests in flight":        {cl.OptValue(kgo.MaxProduceRequestsInflightPerBroker), 1},
		"stop when data is lost":    {cl.OptValue(kgo.StopProducerOnDataLossDetected), true},
		"linger":                    {cl.OptValue(kgo.ProducerLinger), 2 * time.Millisecond},
		"franz-go blocks emitters":  {cl.OptValue(kgo.MaxBufferedRecords).(int64) <= maxInflightRecords, false},
		"retries end after a while": {cl.OptValue(kgo.RecordRetries).(int64) < 1<<32, false},
	} {
		if fmt.Sprint(v[0]) != fmt.Sprint(v[1]) {
			t.Errorf("%s: %v, want %v", name, v[0], v[1])
		}
	}
}

func TestUnsafeSettingsAreRefused(t *testing.T) {
	topo := testTopology(t)
	good := ProcessorConfig{Client: Client{Brokers: []string{"localhost:1"}}, Topology: topo, Group: topology.ProjectionGroup,
		Schema: tally{}, Handle: count, StateDir: t.TempDir(), Instance: "one", Logger: quiet()}
	if _, err := NewProcessor(good); err != nil {
		t.Fatal(err)
	}
	for why, change := range map[string]func(*ProcessorConfig){
		"no brokers given":      func(c *ProcessorConfig) { c.Client.Brokers = nil },
		"session 1s is under":   func(c *ProcessorConfig) { c.Client.Session = time.Second },
		"session 1h0m0s is ove": func(c *ProcessorConfig) { c.Client.Session = time.Hour },
		"linger -1s is not in":  func(c *ProcessorConfig) { c.Client.Linger = -time.Second },
		"linger 1m0s is not in": func(c *ProcessorConfig) { c.Client.Linger = time.Minute },
		"no handler given":      func(c *ProcessorConfig) { c.Handle = nil },
		"no instance name":      func(c *ProcessorConfig) { c.Instance = "" },
		"a table needs a schem": func(c *ProcessorConfig) { c.Schema = nil },
		"and a schema a table":  func(c *ProcessorConfig) { c.Group = plainGroup },
		"no state directory":    func(c *ProcessorConfig) { c.StateDir = "" },
	} {
		c := good
		change(&c)
		if _, err := NewProcessor(c); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", why, err)
		}
	}
}

// What the broker sees: acks from all replicas, idempotent batches whose
// sequences have no gap, no transactions (K10), static members, and only topics
// that exist (G30).
func TestRequestsAreSafe(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var mu sync.Mutex
	seen := map[string]int{}
	note := func(format string, a ...any) {
		mu.Lock()
		defer mu.Unlock()
		seen[fmt.Sprintf(format, a...)]++
	}
	info := w.cluster().TopicInfo(w.table)
	c := w.cluster()
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.ProduceRequest)
		if r.TransactionID != nil {
			note("transaction %s", *r.TransactionID)
		}
		for _, topic := range r.Topics {
			for _, p := range topic.Partitions {
				if topic.TopicID != info.TopicID && topic.Topic != w.table {
					continue
				}
				id := int64(binary.BigEndian.Uint64(p.Records[43:])) // of the producer, in a v2 batch
				note("acks %d, idempotent %v", r.Acks, id >= 0)
			}
		}
		return nil, nil, false
	})
	c.ControlKey(int16(kmsg.JoinGroup), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		r := req.(*kmsg.JoinGroupRequest)
		note("instance %s, session %d, rebalance %d, protocol %s", *r.InstanceID, r.SessionTimeoutMillis, r.RebalanceTimeoutMillis, r.Protocols[0].Name)
		return nil, nil, false
	})
	c.ControlKey(int16(kmsg.CreateTopics), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		note("a topic is created")
		return nil, nil, false
	})
	w.send(3) // before the group's first start: counted all the same (G25)
	m := w.start(nil)
	w.ready(m)
	if d := w.counted(); d != "" {
		t.Error(d)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, want := range []string{"acks -1, idempotent true", "instance one.projection, session 2000, rebalance 20000, protocol copartition"} {
		if seen[want] == 0 {
			t.Errorf("never seen: %s", want)
		}
		delete(seen, want)
	}
	for s := range seen {
		t.Errorf("seen: %s", s)
	}
}

// A topic that is missing, or has another number of partitions, is named (G17).
func TestTopicsAreChecked(t *testing.T) {
	t.Parallel()
	for why, spoil := range map[string]func(*world){
		"tidemark topology create": func(w *world) { w.delete(w.out) },
		"has 4 partitions, 8 are": func(w *world) {
			w.topo = testTopologyOf(w.t, 8)
		},
	} {
		w := newWorld(t)
		spoil(w)
		m := w.start(nil)
		eventuallyNamed(t, m.Ready, why)
	}
}
