package verify

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Each fault of cached counts is named, and what is merely late or absent is not
// one.
func TestCompareCounts(t *testing.T) {
	type at struct {
		seq    uint64
		active int64
	}
	for name, test := range map[string]struct {
		redis, bucket, table, partial at
		told, has                     uint64 // seals
		want                          CountsReport
		text                          string
	}{
		"agrees":                      {at{4, 9}, at{7, 9}, at{4, 9}, at{7, 9}, 5, 5, CountsReport{Displays: 1, Buckets: 1, Targets: 1}, ""},
		"late":                        {at{3, 8}, at{6, 8}, at{4, 9}, at{7, 9}, 4, 5, CountsReport{Displays: 1, Buckets: 1, Targets: 1, Late: 2}, ""},
		"not cached":                  {at{}, at{}, at{4, 9}, at{7, 9}, 0, 5, CountsReport{Targets: 1, Absent: 1}, ""},
		"above the table":             {at{5, 9}, at{7, 9}, at{4, 9}, at{7, 9}, 5, 5, CountsReport{Displays: 1, Buckets: 1, Targets: 1, Wrong: 1}, "at seq 5, the display table active 9, disliked 0 at seq 4"},
		"another count of one seq":    {at{4, 8}, at{7, 9}, at{4, 9}, at{7, 9}, 5, 5, CountsReport{Displays: 1, Buckets: 1, Targets: 1, Wrong: 1}, "Redis shows active 8"},
		"a bucket above the table":    {at{4, 9}, at{8, 9}, at{4, 9}, at{7, 9}, 5, 5, CountsReport{Displays: 1, Buckets: 1, Targets: 1, Wrong: 1}, "bucket 3: Redis has active 9, disliked 0 at seq 8"},
		"a bucket that is not":        {at{4, 9}, at{8, 9}, at{4, 9}, at{}, 5, 5, CountsReport{Displays: 1, Buckets: 1, Targets: 1, Wrong: 1}, "no such bucket"},
		"a target that is not":        {at{4, 9}, at{}, at{}, at{}, 5, 5, CountsReport{Displays: 1, Wrong: 1}, "no such target"},
		"a seal that is not in there": {at{4, 9}, at{7, 9}, at{4, 9}, at{7, 9}, 6, 5, CountsReport{Displays: 1, Buckets: 1, Targets: 1, Wrong: 1}, "includes seal 6 of shard 0, the display table includes 5"},
	} {
		t.Run(name, func(t *testing.T) {
			encode := func(row *tidemarkv1.DisplayRow) []byte {
				v, err := row.MarshalVT()
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			order := func(seq uint64) cache.Order { return cache.Order{Seq: seq, Manifest: 1, Projection: 1} }
			got, err := CompareCounts(t.Context(), CountsConfig{
				Generation: cache.Generation{Family: cache.Counts, ID: 7, Deployment: "d", Manifest: 1},
				Topology:   topology.Config{Shards: 1, CountPartitions: 1, DisplayPartitions: 1},
				Progress: func(context.Context, []int) ([]*cache.CountProgress, error) {
					return []*cache.CountProgress{{AsOf: []cache.ShardSeal{{Shard: 0, Seal: test.told}}}}, nil
				},
				Entries: func(_ context.Context, visit func(*cache.DisplayCount, *cache.BucketCount) error) error {
					if test.redis.seq > 0 {
						if err := visit(&cache.DisplayCount{Kind: topology.Like, Target: "V1", Order: order(test.redis.seq), Counts: topology.Counts{Raw: test.redis.active}}, nil); err != nil {
							return err
						}
					}
					if test.bucket.seq == 0 {
						return nil
					}
					return visit(nil, &cache.BucketCount{Kind: topology.Like, Target: "V1", Number: 3, Order: order(test.bucket.seq), Counts: topology.Counts{Raw: test.bucket.active}})
				},
				Display: func(_ context.Context, each func(int, string, []byte) error) error {
					progress := &tidemarkv1.PartitionProgress{Seq: 2, Watermarks: []*tidemarkv1.SourceWatermark{{Shard: 0, Seal: test.has}}}
					if err := each(0, topology.ProgressKey(0, 0), encode(&tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Progress{Progress: progress}})); err != nil || test.table.seq == 0 {
						return err
					}
					s := &tidemarkv1.DisplaySnapshot{Seq: test.table.seq, Active: test.table.active, ManifestId: 1, Generation: 1}
					if test.partial.seq > 0 {
						s.Partials = []*tidemarkv1.PartialCount{{Partition: 3, Seq: test.partial.seq, Active: test.partial.active, Generation: 1, ManifestId: 1}}
					}
					row := encode(&tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Snapshot{Snapshot: s}})
					zombie := encode(&tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Snapshot{Snapshot: &tidemarkv1.DisplaySnapshot{Seq: 1, Active: 1, ManifestId: 1, Generation: 1}}})
					if err := each(0, "like:V1", row); err != nil {
						return err
					}
					return each(0, "like:V1", zombie)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(got.Examples, "\n")
			if !strings.Contains(text, test.text) || (text == "") != (test.text == "") {
				t.Errorf("examples %q, want %q", text, test.text)
			}
			got.Examples, test.want.Generation = nil, 7
			if got.Displays != test.want.Displays || got.Buckets != test.want.Buckets || got.Targets != test.want.Targets || got.Late != test.want.Late || got.Absent != test.want.Absent || got.Wrong != test.want.Wrong {
				t.Errorf("report %+v, want %+v", got, test.want)
			}
		})
	}
}

// Tables give their partitions at the same time; the race detector, and Go's maps,
// see who is not prepared for it.
func TestCachesAreComparedWithPartitionsReadAtATime(t *testing.T) {
	const rows = 2000
	table := func(row func(partition, i int) (string, []byte)) Table {
		return func(_ context.Context, each func(int, string, []byte) error) error {
			var group errgroup.Group
			for p := range 4 {
				group.Go(func() error {
					for i := range rows {
						key, value := row(p, i)
						if err := each(p, key, value); err != nil {
							return err
						}
					}
					return nil
				})
			}
			return group.Wait()
		}
	}
	snapshot, err := (&tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Snapshot{Snapshot: &tidemarkv1.DisplaySnapshot{Seq: 1, ManifestId: 1, Generation: 1}}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	counts, err := CompareCounts(t.Context(), CountsConfig{
		Generation: cache.Generation{Family: cache.Counts, ID: 7, Deployment: "d", Manifest: 1},
		Topology:   topology.Config{Shards: 1, CountPartitions: 1, DisplayPartitions: 4},
		Progress:   func(context.Context, []int) ([]*cache.CountProgress, error) { return nil, nil },
		Entries: func(context.Context, func(*cache.DisplayCount, *cache.BucketCount) error) error {
			return nil
		},
		Display: table(func(p, i int) (string, []byte) {
			return topology.TargetKey(topology.Like, fmt.Sprintf("V%d-%d", p, i)), snapshot
		}),
	})
	if err != nil || counts.Targets != 4*rows || counts.Absent != 4*rows {
		t.Errorf("counts %+v: %v", counts, err)
	}
	floor, err := (&tidemarkv1.FloorRow{Body: &tidemarkv1.FloorRow_Relation{Relation: &tidemarkv1.FloorRelation{Generation: 7, State: tidemarkv1.State(topology.Liked), Version: 1}}}).MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	relations, err := CompareCache(t.Context(), CacheConfig{
		Generation: cache.Generation{Family: cache.Relations, ID: 7, Deployment: "d", Buckets: 1},
		Entries:    func(context.Context, func(cache.Relation) error, func(cache.Bucket)) error { return nil },
		Floors: table(func(p, i int) (string, []byte) {
			return topology.FloorKey(p, 7, topology.Relation{Kind: topology.Like, User: fmt.Sprintf("u%d", p), Target: fmt.Sprintf("V%d", i)}.Key()), floor
		}),
		Facts: func(context.Context, func(Fact) error) error { return nil },
	})
	if err != nil || relations.Floors != 4*rows {
		t.Errorf("relations %+v: %v", relations, err)
	}
}
