package likers

import (
	"testing"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Whatever lies in liker-changes, nothing panics, versions never go back, and
// a row that is written can be read, has a version, and has an entry exactly
// when its relation is in the list (I14).
func FuzzDecodeAndApply(f *testing.F) {
	like, cancel := change(11, topology.Liked), change(12, topology.Unliked)
	r := placed(like)
	placed(cancel)
	f.Add(r.Key, changeValue(f, like), changeValue(f, cancel))
	f.Add(r.Key, changeValue(f, cancel), changeValue(f, like))
	f.Add(topology.WatermarkKey(2, 1), []byte{0x12, 4, 8, 1, 16, 9}, []byte{})
	f.Add("like:u7:V9001", []byte(nil), []byte{0xff})
	f.Fuzz(func(t *testing.T, key string, first, second []byte) {
		at, err := topology.PartitionOf(key, generation.Partitions())
		if err != nil {
			return
		}
		var old *tidemarkv1.LikerRow
		var version uint64
		for _, value := range [][]byte{first, second, first} {
			var c tidemarkv1.LikerChange
			if decode(generation, topology.Record{Key: key, Value: value, Partition: at}, &c) != nil {
				continue
			}
			row := next(old, &c)
			if row == nil {
				continue
			}
			b, err := row.MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			old = new(tidemarkv1.LikerRow)
			if err := old.UnmarshalVT(b); err != nil || !old.EqualVT(row) {
				t.Fatalf("%v was written, %v read: %v", row, old, err)
			}
			v, err := Schema{}.Version(b)
			if err != nil || v <= version {
				t.Fatalf("version %d after %d, %v", v, version, err)
			}
			version = v
			_, ok, err := Schema{}.Index(key, b)
			if err != nil || ok != (row.GetRelation().GetCurrentLikedAtUs() != 0) {
				t.Fatalf("%v has an entry: %v, %v", row, ok, err)
			}
		}
	})
}
