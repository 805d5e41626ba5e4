package verify

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/displaytable"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// CountsConfig says where a comparison of cached counts reads from.
type CountsConfig struct {
	// Generation is the active one, whose counts are compared.
	Generation cache.Generation
	Topology   topology.Config
	// Progress is what Redis says of each display partition; nil where nothing.
	Progress func(ctx context.Context, partitions []int) ([]*cache.CountProgress, error)
	// Entries visits what Redis holds; an entry may come twice.
	Entries func(ctx context.Context, visit func(*cache.DisplayCount, *cache.BucketCount) error) error
	Display Table // the display table
}

// CountsReport compares cached counts with the display table.
type CountsReport struct {
	Generation uint64 `json:"generation"`
	Displays   int64  `json:"displays"`
	Buckets    int64  `json:"buckets"`
	Targets    int64  `json:"targets"` // of the display table
	// Late entries, displays and buckets, are below the table: right once Redis has
	// caught up. Absent targets have no displayed count in Redis.
	Late   int64 `json:"late"`
	Absent int64 `json:"absent"`
	// Whole display partitions have all that their progress says.
	Whole int `json:"whole"`
	// Wrong counts what can never be, whatever is under way: an entry above the
	// table, two counts of one seq, a seal that the table does not include.
	Wrong    int64    `json:"wrong"`
	Examples []string `json:"examples"`
}

// CompareCounts reads progress and entries from Redis, then the table. The table
// only rises and Redis never stands above it, so that this order proves a fault also
// while traffic runs (E4). It keeps every count in memory.
func CompareCounts(ctx context.Context, cfg CountsConfig) (CountsReport, error) {
	r := CountsReport{Generation: cfg.Generation.ID, Examples: []string{}}
	partitions := make([]int, cfg.Topology.DisplayPartitions)
	for i := range partitions {
		partitions[i] = i
	}
	told, err := cfg.Progress(ctx, partitions)
	if err != nil {
		return r, err
	}
	displays, buckets := map[string]cache.DisplayCount{}, map[string][]cache.BucketCount{}
	if err := cfg.Entries(ctx, func(d *cache.DisplayCount, b *cache.BucketCount) error {
		if d != nil {
			displays[topology.TargetKey(d.Kind, d.Target)] = *d
			return nil
		}
		key := topology.TargetKey(b.Kind, b.Target)
		buckets[key] = append(buckets[key], *b)
		return nil
	}); err != nil {
		return r, err
	}
	table, err := readDisplayTable(ctx, cfg)
	if err != nil {
		return r, err
	}
	for key, row := range table.targets {
		r.Targets++
		if _, ok := displays[key]; !ok {
			r.Absent++
		}
		r.compareDisplay(key, displays[key], row)
	}
	for key, d := range displays {
		r.Displays++
		if table.targets[key] == nil {
			r.wrong("%s: Redis shows %v at seq %d, the display table has no such target", key, d.Counts, d.Seq)
		}
	}
	for key, all := range buckets {
		for _, b := range all {
			r.Buckets++
			r.compareBucket(key, b, table.targets[key])
		}
	}
	for d, p := range told {
		if p != nil {
			r.compareProgress(d, p, displaytable.Least(cfg.Topology.Shards, table.progress[d]))
		}
	}
	return r, nil
}

// displayRows are the newest rows of the table.
type displayRows struct {
	targets  map[string]*tidemarkv1.DisplaySnapshot
	progress [][]*tidemarkv1.PartitionProgress // by display and count partition
}

func readDisplayTable(ctx context.Context, cfg CountsConfig) (displayRows, error) {
	rows := displayRows{map[string]*tidemarkv1.DisplaySnapshot{}, make([][]*tidemarkv1.PartitionProgress, cfg.Topology.DisplayPartitions)}
	for d := range rows.progress {
		rows.progress[d] = make([]*tidemarkv1.PartitionProgress, cfg.Topology.CountPartitions)
	}
	var mu sync.Mutex // partitions are read at a time
	err := cfg.Display(ctx, func(_ int, key string, value []byte) error {
		var row tidemarkv1.DisplayRow
		if err := row.UnmarshalVT(value); err != nil {
			return fmt.Errorf("reading %.60q of the display table: %w", key, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if d, c, ok := topology.ParseProgressKey(key); ok {
			if p := row.GetProgress(); d < len(rows.progress) && c < cfg.Topology.CountPartitions && p.GetSeq() >= rows.progress[d][c].GetSeq() {
				rows.progress[d][c] = p
			}
			return nil
		}
		if s := row.GetSnapshot(); s.GetSeq() >= rows.targets[key].GetSeq() { // a zombie's record may stand behind the winner's
			rows.targets[key] = s
		}
		return nil
	})
	return rows, err
}

func (r *CountsReport) wrong(format string, args ...any) {
	r.Wrong++
	if len(r.Examples) < maxExamples {
		r.Examples = append(r.Examples, fmt.Sprintf(format, args...))
	}
}

func (r *CountsReport) compareDisplay(key string, d cache.DisplayCount, row *tidemarkv1.DisplaySnapshot) {
	switch {
	case d.Seq == 0: // absent
	case d.Seq < row.Seq:
		r.Late++
	case d.Seq > row.Seq || d.Counts != topology.CountsOfSnapshot(row) || d.Manifest != row.ManifestId || d.Projection != row.Generation:
		r.wrong("%s: Redis shows %v at seq %d, the display table %v at seq %d", key, d.Counts, d.Seq, topology.CountsOfSnapshot(row), row.Seq)
	}
}

func (r *CountsReport) compareBucket(key string, b cache.BucketCount, row *tidemarkv1.DisplaySnapshot) {
	for _, p := range row.GetPartials() {
		if int(p.Partition) != b.Number {
			continue
		}
		switch {
		case b.Projection < p.Generation || b.Projection == p.Generation && b.Seq < p.Seq:
			r.Late++
		case b.Projection > p.Generation || b.Seq > p.Seq || b.Counts != topology.CountsOfPartial(p):
			r.wrong("%s, bucket %d: Redis has %v at seq %d, the display table %v at seq %d", key, b.Number, b.Counts, b.Seq, topology.CountsOfPartial(p), p.Seq)
		}
		return
	}
	if b.Projection >= row.GetGeneration() { // else the snapshot has begun afresh since
		r.wrong("%s, bucket %d: Redis has %v at seq %d, the display table has no such bucket", key, b.Number, b.Counts, b.Seq)
	}
}

func (r *CountsReport) compareProgress(display int, p *cache.CountProgress, table []*tidemarkv1.SourceWatermark) {
	if p.Whole {
		r.Whole++
	}
	for _, told := range p.AsOf {
		has := uint64(0)
		for _, w := range table {
			if int64(w.Shard) == int64(told.Shard) {
				has = w.Seal
			}
		}
		if told.Seal > has {
			r.wrong("display partition %d: Redis says that it includes seal %d of shard %d, the display table includes %d", display, told.Seal, told.Shard, has)
		}
	}
}

// WriteTable prints the report for people.
func (r CountsReport) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, "counts generation %d: %d displayed and %d buckets of %d targets; %d entries late, %d targets not cached, %d wrong\n",
		r.Generation, r.Displays, r.Buckets, r.Targets, r.Late, r.Absent, r.Wrong)
	for _, e := range r.Examples {
		fmt.Fprintln(w, "  "+e)
	}
	return err
}
