package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/barrier"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Under traffic, the snapshot of each shard and what stands before the
// barrier's passage in every count partition are the same facts (H3).
func TestABarrierIsTheSameCutAtTheSourceAndInEveryPartition(t *testing.T) {
	s := theSystem(t)
	cfg := s.config(t)
	topo, err := cfg.Topology()
	if err != nil {
		t.Fatal(err)
	}
	traffic := run(t, s.at("load", "--commands", "0", "--rate", "300", "--users", "300", "--targets", "50")...)
	store, err := relations.Open(t.Context(), relations.Config{URLs: cfg.Postgres, Map: topology.NewShardMap(1, cfg.Shards)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for range 3 {
		b, err := store.Barrier(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		passages, err := barrier.Reader{Brokers: cfg.Kafka.Brokers, Topology: topo}.Wait(ctx, b.ID, b.Shards[0].SealedAt)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		checkPassages(t, topo, passages, b)
		for _, cut := range b.Shards {
			want := map[topology.Relation]uint64{}
			if err := b.Facts(t.Context(), cut.Shard, func(f relations.Fact) error { want[f.Relation] = f.Version; return nil }); err != nil {
				t.Fatal(err)
			}
			got := versionsBefore(t, cfg.Kafka.Brokers, topo, passages, cut.Shard)
			for r, v := range want {
				if got[r] != v {
					t.Fatalf("shard %d: %s is v%d at the source and v%d in the partitions", cut.Shard, r.Key(), v, got[r])
				}
			}
			if len(got) != len(want) {
				t.Fatalf("shard %d: %d relations at the source, %d in the partitions", cut.Shard, len(want), len(got))
			}
		}
		b.Close()
	}
	traffic.stop(t)
	wantVerdict(t, exitOK, "--data-dir", s.dir)
}

func checkPassages(t *testing.T, topo *topology.Topology, passages []barrier.Passage, b *relations.Barrier) {
	t.Helper()
	c := topo.Config
	if want := c.Shards * (1 + 2*c.CountPartitions + 2*c.LikerPartitions + 2*c.DisplayPartitions*c.CountPartitions); len(passages) != want {
		t.Fatalf("%d passages, want %d", len(passages), want)
	}
	for _, p := range passages {
		if p.Seal != b.Shards[p.Shard].Seal || p.Offset < 0 {
			t.Fatalf("passage %+v of %+v", p, b.Shards[p.Shard])
		}
	}
}

// versionsBefore reads the newest version of each of a shard's relations before
// the barrier's passage of each partition of bucket-changes.
func versionsBefore(t *testing.T, brokers []string, topo *topology.Topology, passages []barrier.Passage, shard int) map[topology.Relation]uint64 {
	t.Helper()
	got := map[topology.Relation]uint64{}
	for _, p := range passages {
		if p.Stage != topology.BucketChanges || p.Shard != shard {
			continue
		}
		client, err := kafkaadmin.Client(brokers, nil, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			topo.Topic(p.Stage): {int32(p.Partition): kgo.NewOffset().AtStart()}}))
		if err != nil {
			t.Fatal(err)
		}
		for done := false; !done; {
			fetches := client.PollFetches(t.Context())
			if err := fetches.Err(); err != nil {
				t.Fatal(err)
			}
			for _, r := range fetches.Records() {
				if done = r.Offset >= p.Offset; done {
					break
				}
				var c tidemarkv1.BucketChange
				if err := c.UnmarshalVT(r.Value); err != nil {
					t.Fatal(err)
				}
				if x := c.GetRelation(); x != nil && int(x.Position.Shard) == shard {
					rel := topology.Relation{Kind: topology.Kind(x.Kind), User: x.UserId, Target: x.TargetId}
					got[rel] = max(got[rel], x.RelationVersion)
				}
			}
		}
		client.Close()
	}
	return got
}

// A barrier passes the projection although later seals hide it there, the
// projection was away, and was killed before it had told.
func TestABarrierPassesAProjectionThatIsKilled(t *testing.T) {
	r := newFeedRig(t, nil)
	r.run("intake").await(t, readyLine)
	r.run("cdc").await(t, readyLine)
	r.commit(5)
	r.verified()
	r.count.kill()
	b, err := r.store.Barrier(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	r.commit(5)
	r.verified() // several seals later
	for range 3 {
		p := r.run("projection", "likers", "display")
		eventually(t, func() error { return r.projects(b.Shards[0].Seal) })
		p.kill()
	}
	r.run("projection", "likers", "display")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	passages, err := barrier.Reader{Brokers: r.cfg.Kafka.Brokers, Topology: r.topo}.Wait(ctx, b.ID, b.Shards[0].SealedAt)
	if err != nil {
		t.Fatal(err)
	}
	checkPassages(t, r.topo, passages, b)
}

// projects tells whether the projection table has a seal's watermark.
func (r *feedRig) projects(seal uint64) error {
	ctx, cancel := context.WithTimeout(r.t.Context(), 10*time.Second)
	defer cancel()
	client, err := kafkaadmin.Client(r.cfg.Kafka.Brokers, nil)
	if err != nil {
		return err
	}
	defer client.Close()
	topic := r.topo.Topic(topology.ProjectionTable)
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		return err
	}
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}})
	end, _ := ends.Lookup(topic, 0)
	for last := int64(-1); last < end.Offset-1; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		for _, rec := range fetches.Records() {
			last = rec.Offset
			var row tidemarkv1.ProjectionRow
			if row.UnmarshalVT(rec.Value) == nil && row.GetWatermark().GetSeal() >= seal {
				return nil
			}
		}
	}
	return errors.New("the projection has not passed the barrier")
}

func TestBarrierCommand(t *testing.T) {
	s := theSystem(t)
	var report barrierReport
	mustJSON(t, must(t, exitOK, s.at("barrier", "--output", "json")...).out, &report)
	if report.ID == "" || len(report.Shards) != 2 || len(report.Passages) == 0 || report.Shards[1].Seal == 0 || report.Shards[1].Snapshot == "" {
		t.Errorf("%+v", report)
	}
	if out := must(t, exitOK, s.at("barrier")...).out; len(out) < 200 {
		t.Error(out)
	}
	if r := must(t, exitError, s.at("barrier", "--wait", "1ms")...); r.errOut == "" {
		t.Error(r)
	}
}
