package likers

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// What a backfill writes is a change as intake writes it, and newer ones stand
// whichever comes first.
func TestBackfillRecordsAreChanges(t *testing.T) {
	g := topology.NewReverseGeneration(1, 4, 16)
	at := time.UnixMicro(1_700_000_000_000_123)
	for _, f := range []Fact{
		{topology.Relation{Kind: topology.Like, User: "u1", Target: "V1"}, topology.Liked, 3, at},
		{topology.Relation{Kind: topology.Favorite, User: "u:%2", Target: "V|1"}, topology.Unfavorited, 8, at},
	} {
		r, err := backfillRecord(g, f)
		if err != nil {
			t.Fatal(err)
		}
		var change tidemarkv1.LikerChange
		partition, err := topology.PartitionOf(string(r.Key), 4)
		if err != nil {
			t.Fatal(err)
		}
		if no := decode(g, topology.Record{Key: string(r.Key), Value: r.Value, Partition: partition}, &change); no != nil {
			t.Fatalf("%+v is refused: %+v", f, no)
		}
		c := change.GetRelation()
		row, _ := Apply(nil, c)
		wantAt := int64(0)
		if f.State == f.Relation.Kind.Active() {
			wantAt = at.UnixMicro()
		}
		if row.Version != f.Version || topology.State(row.State) != f.State || row.CurrentLikedAtUs != wantAt {
			t.Errorf("%+v becomes %v", f, row)
		}
		if again, _ := Apply(row, c); again != nil {
			t.Errorf("a second backfill alters %v", again)
		}
		newer, _ := Apply(&tidemarkv1.LikerRelation{Version: f.Version + 1, State: tidemarkv1.State(f.Relation.Kind.Initial())}, c)
		if newer != nil {
			t.Errorf("a backfill alters a newer version: %v", newer)
		}
	}
}

func TestBackfillEnds(t *testing.T) {
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	cfg := BackfillConfig{Client: producer(t, brokers), Topology: topo, Reverse: topology.NewReverseGeneration(1, 4, topo.Config.ReverseShards)}
	facts := func(n int, end error) func(context.Context, func(Fact) error) error {
		return func(_ context.Context, yield func(Fact) error) error {
			for i := range n {
				err := yield(Fact{topology.Relation{Kind: topology.Like, User: fmt.Sprint("u", i), Target: "V1"}, topology.Liked, 1, time.UnixMicro(5)})
				if err != nil {
					return err
				}
			}
			return end
		}
	}
	told := int64(0)
	cfg.Progress = func(n int64) { told = n }
	cfg.Facts = facts(backfillStep+5, nil)
	if n, err := Backfill(t.Context(), cfg); err != nil || n != backfillStep+5 || told != backfillStep {
		t.Errorf("%d sent, %d told, %v", n, told, err)
	}
	start := time.Now()
	cfg.Rate, cfg.Facts = 200, facts(20, nil)
	if n, err := Backfill(t.Context(), cfg); err != nil || n != 20 || time.Since(start) < due(20, 200) {
		t.Errorf("%d sent in %v, %v", n, time.Since(start), err)
	}
	broken := errors.New("the shard is away")
	cfg.Rate, cfg.Facts = 0, facts(3, broken)
	if _, err := Backfill(t.Context(), cfg); !errors.Is(err, broken) {
		t.Errorf("reading facts fails: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	cfg.Facts = facts(3, nil)
	if _, err := Backfill(ended, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("after its end: %v", err)
	}
	other, err := kafkaadmin.Client(brokers, nil, kgo.UnknownTopicRetries(0), kgo.RecordDeliveryTimeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	cfg.Client, cfg.Topology = other, testTopology("nowhere")
	if _, err := Backfill(t.Context(), cfg); err == nil {
		t.Error("a topic that is not there takes changes")
	}
}

// A paused backfill writes nothing, and then everything, at its rate.
func TestPausedBackfillGoesOn(t *testing.T) {
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	const facts, pausedAt, rate = 200, 100, 400
	var asked int
	var begun, over time.Time
	cfg := BackfillConfig{
		Client: producer(t, brokers), Topology: topo, Reverse: topology.NewReverseGeneration(1, 4, topo.Config.ReverseShards), Rate: rate,
		Paused: func() bool {
			if asked++; asked == pausedAt {
				begun = time.Now()
				return true
			}
			if over.IsZero() && !begun.IsZero() {
				over = time.Now()
			}
			return false
		},
		Facts: func(_ context.Context, yield func(Fact) error) error {
			for i := range facts {
				if err := yield(Fact{topology.Relation{Kind: topology.Like, User: fmt.Sprint("u", i), Target: "V1"}, topology.Liked, 1, time.UnixMicro(5)}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	start := time.Now()
	sent, err := Backfill(t.Context(), cfg)
	if err != nil || sent != facts {
		t.Fatalf("%d of %d were sent: %v", sent, facts, err)
	}
	if over.Sub(begun) < time.Second {
		t.Errorf("paused for %v", over.Sub(begun))
	}
	// What was not written meanwhile is not made up for by writing faster.
	if took, least := time.Since(start), facts*time.Second/rate+over.Sub(begun); took < least {
		t.Errorf("all took %v, at its rate and with its pause %v", took, least)
	}
}
