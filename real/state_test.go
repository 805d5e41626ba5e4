//go:build real

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/processors/intake"
	"github.com/tidemark/tidemark/processors/projection"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// startCounting runs intake and projection on a feed's topic until the test
// ends.
func startCounting(t *testing.T, topo *topology.Topology) {
	t.Helper()
	client := gokakit.Client{Brokers: where.kafka}
	few := topology.DefaultBucketSpace()
	few.Modulus = 16 // so that a bucket counts several relations, of several shards
	manifest := topology.NewManifest(1, 1, 1, few, topo.Config.CountPartitions)
	in, err := intake.New(intake.Config{
		Client: client, Topology: topo, Manifest: manifest, StateDir: t.TempDir(), Instance: "1", Logger: slog.New(slog.DiscardHandler),
		Reverse: topology.NewReverseGeneration(1, topo.Config.LikerPartitions, topo.Config.ReverseShards),
	})
	if err != nil {
		t.Fatal(err)
	}
	counting, err := projection.New(projection.Config{
		Client: client, Topology: topo, Manifest: manifest, StateDir: t.TempDir(), Instance: "1", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for name, run := range map[string]func(context.Context) error{topology.IntakeGroup: in.Run, topology.ProjectionGroup: counting.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s of %s: %v", name, topo.Config.Prefix, err)
			}
		})
	}
	t.Cleanup(func() { cancel(); running.Wait() })
}

// awaitCounted waits until the projection has counted all that is in the
// feed's topic now.
func awaitCounted(t *testing.T, topo *topology.Topology) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	admin := kadm.NewClient(client(t))
	// One group after the other: the ends to reach are listed once per call.
	for _, group := range []string{topology.IntakeGroup, topology.ProjectionGroup} {
		only := *topo
		only.Groups = []topology.Group{topo.Group(group)}
		if err := verify.WaitGroups(ctx, admin, &only); err != nil {
			t.Fatal(err)
		}
	}
}

// projected is the newest state in a projection table.
type projected struct {
	relations  map[string]*tidemarkv1.ProjectedRelation
	buckets    map[string]*tidemarkv1.ProjectedRelation // the one that has the bucket's newest count
	watermarks map[string]*tidemarkv1.SourceWatermark
}

func readProjected(t *testing.T, topo *topology.Topology) *projected {
	t.Helper()
	p := &projected{map[string]*tidemarkv1.ProjectedRelation{}, map[string]*tidemarkv1.ProjectedRelation{}, map[string]*tidemarkv1.SourceWatermark{}}
	var mu sync.Mutex // partitions come at the same time
	read := verify.ReadTable(topo.Topic(topology.ProjectionTable), kgo.SeedBrokers(where.kafka...))
	err := read(t.Context(), func(partition int, key string, value []byte) error {
		var row tidemarkv1.ProjectionRow
		if err := row.UnmarshalVT(value); err != nil {
			return fmt.Errorf("partition %d, key %q: %w", partition, key, err)
		}
		mu.Lock()
		defer mu.Unlock()
		return p.take(key, &row)
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// take keeps what wins: the highest version of a relation, the highest number
// of events of a bucket, the highest seal of a shard.
func (p *projected) take(key string, row *tidemarkv1.ProjectionRow) error {
	if w := row.GetWatermark(); w != nil {
		if w.Seal > p.watermarks[key].GetSeal() {
			p.watermarks[key] = w
		}
		return nil
	}
	r := row.GetRelation()
	if r == nil { // a checkpoint of the partial counts
		return nil
	}
	at, vbucket, relation, err := topology.ParseCountedKey(key)
	if err != nil {
		return fmt.Errorf("key %q: %w", key, err)
	}
	if r.Version > p.relations[key].GetVersion() {
		p.relations[key] = r
	}
	bucket := fmt.Sprintf("%04x|%04x|%s", at, vbucket, topology.TargetKey(relation.Kind, relation.Target))
	if r.GetBucket().GetSeq() > p.buckets[bucket].GetBucket().GetSeq() {
		p.buckets[bucket] = r
	}
	return nil
}

// dump is the state as text, a line for each row in the order of the keys. It
// leaves out what depends on how the shards' streams met in a partition of
// bucket-changes, which is chance, also with one feed twice:
//
//   - input_offset and input_epoch of relations and buckets, where a change
//     stood in that partition;
//   - the bucket inside a relation's row, how far the bucket was when the
//     relation changed: the bucket's newest count has a line of its own;
//   - the checkpoint of partial counts, an offset of the table itself.
//
// Nothing here is a time of processing: times are the commit's.
func (p *projected) dump() []byte {
	var b bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(p.relations)) {
		r := p.relations[key]
		fmt.Fprintf(&b, "relation %q state=%v version=%d changed_us=%d committed_us=%d position=%d/%d/%d route=%d generation=%d\n",
			key, r.State, r.Version, r.StateChangedAtUs, r.CommittedAtUs, r.Position.Shard, r.Position.PreviousCommitLsn, r.Position.Lsn, r.RouteEpoch, r.Generation)
	}
	for _, key := range slices.Sorted(maps.Keys(p.buckets)) {
		r := p.buckets[key]
		fmt.Fprintf(&b, "bucket %q active=%d disliked=%d events=%d route=%d generation=%d\n",
			key, r.Bucket.Active, r.Bucket.Disliked, r.Bucket.Seq, r.RouteEpoch, r.Generation)
	}
	for _, key := range slices.Sorted(maps.Keys(p.watermarks)) {
		w := p.watermarks[key]
		fmt.Fprintf(&b, "watermark %q shard=%d seal=%d sealed_us=%d position=%d/%d cdc_offset=%d barrier=%q\n",
			key, w.Shard, w.Seal, w.SealedAtUs, w.Position.PreviousCommitLsn, w.Position.Lsn, w.CdcOffset, w.BarrierId)
	}
	return b.Bytes()
}

// compareState compares what the projections made of both feeds, and both with
// the relation store.
func (f *feeds) compareState() {
	f.t.Helper()
	awaitCounted(f.t, f.builtIn)
	awaitCounted(f.t, f.other)
	ours, theirs := readProjected(f.t, f.builtIn), readProjected(f.t, f.other)
	a, b := ours.dump(), theirs.dump()
	f.t.Logf("state: %d relations, %d buckets, %d watermarks; %d bytes, sha256 %x", len(ours.relations), len(ours.buckets), len(ours.watermarks), len(a), sha256.Sum256(a))
	if !bytes.Equal(a, b) {
		at := bytes.Count(a[:firstDifference(a, b)], []byte("\n"))
		f.t.Errorf("the states differ (%d and %d bytes), first in line %d:\n%s\nof the built-in emitter's,\n%s\nof Debezium's", len(a), len(b), at+1, line(a, at), line(b, at))
	}
	if len(ours.watermarks) == 0 || len(ours.buckets) == 0 {
		f.t.Errorf("%d buckets and %d watermarks: the test shows less than it should", len(ours.buckets), len(ours.watermarks))
	}
	var facts, versions int64
	for shard := range f.urls {
		var n, sum int64
		if err := f.query(shard, &n, `SELECT count(*) FROM relation WHERE version > 0`); err != nil {
			f.t.Fatal(err)
		}
		if err := f.query(shard, &sum, `SELECT coalesce(sum(version), 0)::bigint FROM relation`); err != nil {
			f.t.Fatal(err)
		}
		facts, versions = facts+n, versions+sum
	}
	var have int64
	for _, r := range ours.relations {
		have += int64(r.Version)
	}
	if int64(len(ours.relations)) != facts || have != versions {
		f.t.Errorf("projected are %d relations with versions of %d in all, the store has %d with %d", len(ours.relations), have, facts, versions)
	}
}

func line(text []byte, n int) string {
	lines := strings.Split(string(text), "\n")
	return lines[min(n, len(lines)-1)]
}
