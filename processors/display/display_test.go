package display

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// stage is a broker with a topology and display processors on it.
type stage struct {
	t       *testing.T
	topo    *topology.Topology
	brokers []string
	client  *kgo.Client
	state   string
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, topo: testenv.Topology(t, nil), brokers: testenv.Kafka(t), state: t.TempDir()}
	testenv.CreateTopics(t, s.brokers, s.topo)
	var err error
	if s.client, err = kafkaadmin.Client(s.brokers, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	return s
}

// start runs a display processor until stop.
func (s *stage) start() (stop func()) {
	s.t.Helper()
	d, err := New(Config{Client: gokakit.Client{Brokers: s.brokers}, Topology: s.topo, StateDir: s.state, Instance: "one",
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	}
}

func (s *stage) send(key string, u *tidemarkv1.CountUpdate) {
	s.t.Helper()
	r := &kgo.Record{Topic: s.topo.Topic(topology.PartialCounts), Key: []byte(key), Value: encode(s.t, u)}
	if err := s.client.ProduceSync(s.t.Context(), r).FirstErr(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) partial(key string, from uint32, seq uint64, active int64) {
	s.t.Helper()
	s.send(key, partialUpdate(&tidemarkv1.PartialCount{Partition: from, Seq: seq, Active: active, Generation: 1, ManifestId: 1, GeneratedAtUs: 1000}))
}

// read waits until the newest record of each key of a stream satisfies done.
func (s *stage) read(stream string, done func(rows map[string][]byte) error) []*kgo.Record {
	s.t.Helper()
	client, err := kafkaadmin.Client(s.brokers, nil, kgo.ConsumeTopics(s.topo.Topic(stream)))
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	rows, all := map[string][]byte{}, []*kgo.Record(nil)
	testenv.Eventually(s.t, 30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 100*time.Millisecond)
		defer cancel()
		for _, r := range client.PollFetches(ctx).Records() {
			rows[string(r.Key)], all = r.Value, append(all, r)
		}
		return done(rows)
	})
	return all
}

func wantCount(t *testing.T, key string, active int64, seq uint64) func(map[string][]byte) error {
	return func(rows map[string][]byte) error {
		row := new(tidemarkv1.DisplayRow)
		if err := row.UnmarshalVT(rows[key]); err != nil {
			t.Fatal(err)
		}
		if got := row.GetSnapshot(); got.GetActive() != active || got.GetSeq() != seq {
			return fmt.Errorf("%s shows %d at seq %d, not %d at %d", key, got.GetActive(), got.GetSeq(), active, seq)
		}
		return nil
	}
}

// The table shows the sum of the newest partials across duplicates, bad
// records and restarts, also when the local state is gone (I6, I9, B5).
func TestTheTableShowsTheNewestPartials(t *testing.T) {
	s := newStage(t)
	stop := s.start()
	s.partial("like:V1", 0, 3, 10)
	s.partial("like:V1", 5, 7, 4)
	s.partial("like:V1", 0, 3, 10) // twice
	s.partial("like:V1", 0, 4, -1) // never shown
	s.partial("like:V1", 0, 5, 11)
	s.read(topology.DisplayTable, wantCount(t, "like:V1", 15, 3))
	s.send(topology.ProgressKey(2, 5), progressUpdate(&tidemarkv1.PartitionProgress{Partition: 5, Seq: 7,
		Watermarks: []*tidemarkv1.SourceWatermark{{Shard: 1, Seal: 9, SealedAtUs: 1}}}))
	s.read(topology.DisplayTable, func(rows map[string][]byte) error {
		row := new(tidemarkv1.DisplayRow)
		if err := row.UnmarshalVT(rows[topology.ProgressKey(2, 5)]); err != nil || seal(row.GetProgress(), 1) != 9 {
			return fmt.Errorf("progress %v, %w", row, err)
		}
		return nil
	})
	stop()

	s.partial("like:V1", 5, 6, 3) // late
	s.partial("like:V1", 5, 8, 6)
	stop = s.start()
	s.read(topology.DisplayTable, wantCount(t, "like:V1", 17, 4))
	stop()

	s.state = t.TempDir() // another machine
	s.partial("like:V1", 5, 9, 7)
	stop = s.start()
	defer stop()
	all := s.read(topology.DisplayTable, wantCount(t, "like:V1", 18, 5))
	last := uint64(0)
	for _, r := range all {
		row := new(tidemarkv1.DisplayRow)
		if err := row.UnmarshalVT(r.Value); err != nil {
			t.Fatal(err)
		}
		if snap := row.GetSnapshot(); snap != nil {
			if snap.Seq != last+1 || snap.Active < 0 {
				t.Errorf("%v follows seq %d", snap, last)
			}
			last = snap.Seq
		}
	}
	s.checkQuarantine()
}

func (s *stage) checkQuarantine() {
	s.t.Helper()
	q := new(tidemarkv1.Quarantined)
	s.read(topology.Quarantine, func(rows map[string][]byte) error {
		if rows["like:V1"] == nil {
			return fmt.Errorf("%d records are set aside", len(rows))
		}
		return q.UnmarshalVT(rows["like:V1"])
	})
	if q.Reason != quarantine.NegativeCount || q.Topic != s.topo.Topic(topology.PartialCounts) || q.Detail != "count partition 0 says active -1, disliked 0" {
		s.t.Errorf("quarantined %v", q)
	}
}
