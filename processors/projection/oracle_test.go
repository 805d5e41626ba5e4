package projection

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// difference compares facts with the projected relations, the bucket sums and
// the newest partial counts; "" when all agree.
func difference(t *testing.T, cl *kgo.Client, brokers []string, topo *topology.Topology, facts map[topology.Relation]*tidemarkv1.RelationChange) string {
	t.Helper()
	want := map[string]topology.Counts{}
	for rel, f := range facts {
		key := topology.TargetKey(rel.Kind, rel.Target)
		want[key] = want[key].Plus(counted(f.State, f.Hidden))
	}
	var report []string
	relations, buckets := readTable(t, cl, brokers, topo)
	for rel, f := range facts {
		p := relations[rel.Key()]
		if p == nil || p.Version != f.RelationVersion || p.State != f.State || p.Hidden != f.Hidden || p.HiddenReason != f.HiddenReason {
			report = append(report, fmt.Sprintf("relation %s is %v, its fact version %d state %v hidden %v", rel.Key(), p, f.RelationVersion, f.State, f.Hidden))
		}
	}
	report = append(report, unequal("bucket sum", want, buckets)...)
	// Partials follow within the refresh interval.
	var partials []string
	deadline := time.Now().Add(10 * time.Second)
	for {
		partials = unequal("partial counts", want, readPartials(t, cl, brokers, topo))
		if len(partials) == 0 || time.Now().After(deadline) {
			break
		}
	}
	report = append(report, partials...)
	if len(report) > 5 {
		report = append(report[:5], fmt.Sprintf("and %d more", len(report)-5))
	}
	return strings.Join(report, "\n")
}

func unequal(what string, want, have map[string]topology.Counts) (report []string) {
	for key, w := range want {
		if have[key] != w {
			report = append(report, fmt.Sprintf("%s of %s is %+v, the facts %+v", what, key, have[key], w))
		}
	}
	return report
}

// readTable folds the projection table as a reader must: the highest version
// of a relation, the highest seq of a bucket.
func readTable(t *testing.T, cl *kgo.Client, brokers []string, topo *topology.Topology) (map[string]*tidemarkv1.ProjectedRelation, map[string]topology.Counts) {
	t.Helper()
	relations := map[string]*tidemarkv1.ProjectedRelation{}
	buckets := map[string]*tidemarkv1.BucketCount{}
	for _, r := range readAll(t, cl, brokers, topo.Topic(topology.ProjectionTable)) {
		row, err := decodeRow(r.Value)
		if err != nil {
			t.Fatal(err)
		}
		p := row.GetRelation()
		if p == nil {
			continue
		}
		_, _, rel, err := topology.ParseCountedKey(string(r.Key))
		if err != nil {
			t.Fatal(err)
		}
		if old := relations[rel.Key()]; old == nil || p.Version >= old.Version {
			relations[rel.Key()] = p
		}
		group, item, _ := bucketOf(string(r.Key))
		if old := buckets[group+"|"+item]; old == nil || p.Bucket.Seq > old.Seq {
			buckets[group+"|"+item] = p.Bucket
		}
	}
	sums := map[string]topology.Counts{}
	for name, b := range buckets {
		target, _, _ := strings.Cut(name, "|")
		sums[target] = sums[target].Plus(topology.CountsOfBucket(b))
	}
	return relations, sums
}

func readPartials(t *testing.T, cl *kgo.Client, brokers []string, topo *topology.Topology) map[string]topology.Counts {
	t.Helper()
	newest := map[string]*tidemarkv1.PartialCount{}
	for _, r := range readAll(t, cl, brokers, topo.Topic(topology.PartialCounts)) {
		var u tidemarkv1.CountUpdate
		if err := u.UnmarshalVT(r.Value); err != nil {
			t.Fatal(err)
		}
		p := u.GetPartial()
		if p == nil {
			continue
		}
		name := fmt.Sprintf("%s|%d", r.Key, p.Partition)
		if old := newest[name]; old == nil || p.Seq > old.Seq {
			newest[name] = p
		}
	}
	sums := map[string]topology.Counts{}
	for name, p := range newest {
		target, _, _ := strings.Cut(name, "|")
		sums[target] = sums[target].Plus(topology.CountsOfPartial(p))
	}
	return sums
}

// readAll reads a topic from its start to its present end.
func readAll(t *testing.T, cl *kgo.Client, brokers []string, topic string) []*kgo.Record {
	t.Helper()
	ends, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	from, left := map[int32]kgo.Offset{}, 0
	ends.Each(func(o kadm.ListedOffset) {
		from[o.Partition] = kgo.NewOffset().AtStart()
		left += int(o.Offset)
	})
	reader, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var records []*kgo.Record
	testenv.Eventually(t, 30*time.Second, func() error {
		if len(records) < left {
			records = append(records, reader.PollFetches(t.Context()).Records()...)
		}
		if len(records) < left {
			return fmt.Errorf("read %d of %d records of %s", len(records), left, topic)
		}
		return nil
	})
	return records
}
