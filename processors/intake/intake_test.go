package intake

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Sarama's metrics have one goroutine per process that never ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// feed is a broker with a topology and a running intake.
type feed struct {
	t       *testing.T
	topo    *topology.Topology
	brokers []string
	client  *kgo.Client
	reg     *prometheus.Registry
	stop    func()

	recorder recorder
}

func newFeed(t *testing.T) *feed {
	f := &feed{t: t, topo: testenv.Topology(t, nil), brokers: testenv.Kafka(t)}
	testenv.CreateTopics(t, f.brokers, f.topo)
	var err error
	if f.client, err = kafkaadmin.Client(f.brokers, nil, kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.client.Close)
	return f
}

func (f *feed) start() {
	f.t.Helper()
	f.reg = prometheus.NewRegistry()
	in, err := New(Config{
		Client:   gokakit.Client{Brokers: f.brokers},
		Topology: f.topo, Manifest: topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), f.topo.Config.CountPartitions),
		Reverse:  topology.NewReverseGeneration(1, f.topo.Config.LikerPartitions, f.topo.Config.ReverseShards),
		Instance: "one", StateDir: f.t.TempDir(), Gaps: &f.recorder, Logger: slog.New(slog.DiscardHandler), Registerer: f.reg,
		Now: func() time.Time { return sampleTime.Add(3 * time.Second) },
	})
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- in.Run(ctx) }()
	f.stop = func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Error(err)
		}
	}
}

func (f *feed) send(records ...topology.Record) {
	f.t.Helper()
	for _, r := range records {
		out := &kgo.Record{Topic: f.topo.Topic(topology.CDC), Partition: int32(r.Partition), Key: []byte(r.Key), Value: r.Value}
		if err := f.client.ProduceSync(f.t.Context(), out).FirstErr(); err != nil {
			f.t.Fatal(err)
		}
	}
}

// read waits for n records of a stream, from its beginning, and for no more
// than n.
func (f *feed) read(stream string, n int) []*kgo.Record {
	f.t.Helper()
	client, err := kafkaadmin.Client(f.brokers, nil, kgo.ConsumeTopics(f.topo.Topic(stream)))
	if err != nil {
		f.t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(f.t.Context(), 30*time.Second)
	defer cancel()
	var got []*kgo.Record
	for len(got) < n {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			f.t.Fatalf("%s: %d records came, %d were due", stream, len(got), n)
		}
		got = append(got, fetches.Records()...)
	}
	if len(got) > n {
		f.t.Fatalf("%s: %d records came, %d were due", stream, len(got), n)
	}
	return got
}

func numbered(t *testing.T, version int) topology.Record {
	e := sampleEvent()
	e.RelationVersion = uint64(version)
	return recordOf(t, envelopeOf(e.SourceShard, topology.AggregateRelation, e.AggregateKey, topology.TypeRelationChanged, jsonb(t, e)))
}

// Good records flow around bad ones; a restart goes on where it stopped; a
// record that the feed brings twice goes out twice, for the projection to
// ignore (B5, I9, I17).
func TestGoodRecordsFlowAroundBadOnes(t *testing.T) {
	f := newFeed(t)
	bad := numbered(t, 2)
	bad.Value = []byte("not json")
	tombstone := numbered(t, 2)
	tombstone.Key, tombstone.Value = "0009|odd", nil
	f.start()
	f.send(numbered(t, 1), bad, tombstone, numbered(t, 2), sealRecord(t))
	f.read(topology.BucketChanges, 2+f.topo.Config.CountPartitions)
	f.checkMetrics()
	f.stop()

	f.send(numbered(t, 3), numbered(t, 3))
	f.start()
	facts := f.read(topology.Facts, 4)
	for i, version := range []uint64{1, 2, 3, 3} {
		c := decodeAs(t, facts[i].Value, &tidemarkv1.RelationChange{})
		if c.RelationVersion != version || facts[i].Partition != 2 || string(facts[i].Key) != "0002|like:u7:V9001" {
			t.Errorf("fact %d: %v on %d as %s", i, c, facts[i].Partition, facts[i].Key)
		}
	}
	f.checkBuckets(f.read(topology.BucketChanges, 4+f.topo.Config.CountPartitions))
	f.checkQuarantine(f.read(topology.Quarantine, 2))
	f.stop()
}

func (f *feed) checkBuckets(records []*kgo.Record) {
	f.t.Helper()
	sealed := map[int]bool{}
	for _, r := range records {
		c := decodeAs(f.t, r.Value, &tidemarkv1.BucketChange{})
		if at, err := topology.PartitionOf(string(r.Key), f.topo.Config.CountPartitions); err != nil || at != int(r.Partition) {
			f.t.Errorf("%s lies on partition %d, not %d: %v", r.Key, r.Partition, at, err)
		}
		if p, shard, ok := topology.ParseWatermarkKey(string(r.Key)); ok {
			sealed[p] = true
			if shard != 2 || c.GetWatermark().GetSeal() != 4711 {
				f.t.Errorf("watermark %s: %v", r.Key, c)
			}
		}
	}
	if len(sealed) != f.topo.Config.CountPartitions {
		f.t.Errorf("the seal reached %d partitions", len(sealed))
	}
}

func (f *feed) checkQuarantine(records []*kgo.Record) {
	f.t.Helper()
	want := []struct {
		reason quarantine.Reason
		key    string
		offset int64
	}{{quarantine.MalformedEnvelope, "like:u7:V9001", 1}, {quarantine.NullPayload, "~0009|odd", 2}}
	for i, w := range want {
		q := decodeAs(f.t, records[i].Value, &tidemarkv1.Quarantined{})
		if q.Reason != w.reason || string(records[i].Key) != w.key || q.Offset != w.offset || q.Partition != 2 || q.Topic != f.topo.Topic(topology.CDC) || q.FirstSeenUs <= 0 {
			f.t.Errorf("quarantined %d: %v as %s", i, q, records[i].Key)
		}
	}
}

func (f *feed) checkMetrics() {
	f.t.Helper()
	want := map[string]float64{
		`tidemark_intake_records_total{change}`:                 2,
		`tidemark_intake_records_total{proof}`:                  0,
		`tidemark_intake_records_total{quarantined}`:            2,
		`tidemark_intake_records_total{seal}`:                   1,
		`tidemark_intake_quarantined_total{malformed_envelope}`: 1,
		`tidemark_intake_quarantined_total{null_payload}`:       1,
		`tidemark_intake_quarantined_total{wrong_partition}`:    0,
		`tidemark_intake_watermark_lag_seconds{2}`:              3,
		`tidemark_intake_watermark_seal{2}`:                     4711,
	}
	testenv.Eventually(f.t, 10*time.Second, func() error {
		got := f.metrics()
		for name, v := range want {
			if g, ok := got[name]; !ok || g != v {
				return fmt.Errorf("%s is %v, not %v", name, g, v)
			}
		}
		return nil
	})
}

// metrics gives every sample of intake under name{label value}.
func (f *feed) metrics() map[string]float64 {
	families, err := f.reg.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			if len(m.Label) == 1 {
				got[fmt.Sprintf("%s{%s}", family.GetName(), m.Label[0].GetValue())] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return got
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	topo := testenv.Topology(t, nil)
	good := Config{Client: gokakit.Client{Brokers: []string{"localhost:1"}}, Topology: topo, Instance: "one", StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
		Manifest: topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), topo.Config.CountPartitions),
		Reverse:  topology.NewReverseGeneration(1, topo.Config.LikerPartitions, topo.Config.ReverseShards)}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(*Config){
		"brokers":  func(c *Config) { c.Client.Brokers = nil },
		"instance": func(c *Config) { c.Instance = "" },
		"manifest": func(c *Config) { c.Manifest.Routes = c.Manifest.Routes[:5] },
	} {
		c := good
		breakIt(&c)
		if _, err := New(c); err == nil || !strings.Contains(fmt.Sprint(err), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}
