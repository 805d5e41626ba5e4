package display

import (
	"testing"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Whatever lies in partial-counts, nothing panics, no count is ever negative,
// and a row that is written can be read again.
func FuzzDecodeAndApply(f *testing.F) {
	partial := func(p *tidemarkv1.PartialCount) []byte { return encode(f, partialUpdate(p)) }
	f.Add("like:V9001", partial(&tidemarkv1.PartialCount{Partition: 1, Active: 5, Seq: 3, Generation: 1, ManifestId: 1, GeneratedAtUs: 9}), partial(&tidemarkv1.PartialCount{Partition: 2, Active: 1 << 62, Seq: 3, Generation: 1, ManifestId: 1, GeneratedAtUs: 9}))
	f.Add("like:V9001", partial(&tidemarkv1.PartialCount{Active: 5, RiskHidden: 3, PolicyHidden: 3, Seq: 3, Generation: 1, ManifestId: 1, GeneratedAtUs: 9}), []byte{})
	f.Add("like:V9001", partial(&tidemarkv1.PartialCount{Partition: 1, Active: -5, Seq: 3, Generation: 1, ManifestId: 1, GeneratedAtUs: 9}), []byte{})
	f.Add(topology.ProgressKey(2, 1), encode(f, progressUpdate(&tidemarkv1.PartitionProgress{Partition: 1, Seq: 4, Watermarks: []*tidemarkv1.SourceWatermark{{Shard: 1, Seal: 5, SealedAtUs: 1}}})), []byte(nil))
	topo := topology.DefaultConfig()
	f.Fuzz(func(t *testing.T, key string, first, second []byte) {
		at, _ := topology.PartitionOf(key, topo.DisplayPartitions)
		var row *tidemarkv1.DisplayRow
		for offset, value := range [][]byte{first, second, first} {
			update, no := decode(topo, topology.Record{Key: key, Value: value, Partition: at, Offset: int64(offset)})
			if no != nil {
				continue
			}
			next, no := Apply(row, update, int64(offset))
			if next == nil || no != nil {
				continue
			}
			if s := next.GetSnapshot(); !topology.CountsOfSnapshot(s).Possible() {
				t.Fatalf("an impossible count in %v", next)
			}
			b, err := next.MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			row = new(tidemarkv1.DisplayRow)
			if err := row.UnmarshalVT(b); err != nil || !row.EqualVT(next) {
				t.Fatalf("%v was written, %v read: %v", next, row, err)
			}
		}
	})
}
