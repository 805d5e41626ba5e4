package displaytable

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func encode(t interface{ Fatal(...any) }, row *tidemarkv1.DisplayRow) []byte {
	b, err := row.MarshalVT()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func snapshotRow(seq uint64, partials ...*tidemarkv1.PartialCount) *tidemarkv1.DisplayRow {
	return &tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Snapshot{Snapshot: &tidemarkv1.DisplaySnapshot{
		Active: 7, Partials: partials, GeneratedAtUs: 5, Generation: 1, ManifestId: 1, Seq: seq, CommittedAtUs: 4, InputOffset: 99}}}
}

func progressRow(seq uint64, marks ...*tidemarkv1.SourceWatermark) *tidemarkv1.DisplayRow {
	return &tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Progress{Progress: &tidemarkv1.PartitionProgress{Partition: 3, Seq: seq, Watermarks: marks}}}
}

func TestVersionIsTheSeqOfTheBody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seq := rapid.Uint64().Draw(t, "seq")
		for _, row := range []*tidemarkv1.DisplayRow{
			snapshotRow(seq), snapshotRow(seq, &tidemarkv1.PartialCount{Seq: 5}, &tidemarkv1.PartialCount{Partition: 2}),
			progressRow(seq), progressRow(seq, &tidemarkv1.SourceWatermark{Seal: 9}),
		} {
			if v, err := (Schema{}).Version(encode(t, row)); err != nil || v != seq {
				t.Fatalf("version %d of %v: %v", v, row, err)
			}
		}
	})
}

func TestVersionRefusesWhatIsNoRow(t *testing.T) {
	good := encode(t, snapshotRow(300))
	for name, b := range map[string][]byte{
		"nothing": nil, "another message": {0x08, 1}, "cut": good[:len(good)-1], "more behind it": append(append([]byte{}, good...), 0x08),
		"a cut field": {0x0a, 2, 0x38, 0x80},
	} {
		if v, err := (Schema{}).Version(b); err == nil {
			t.Errorf("%s has version %d", name, v)
		}
	}
}

func FuzzVersion(f *testing.F) {
	f.Add(encode(f, snapshotRow(300, &tidemarkv1.PartialCount{Seq: 5})))
	f.Add(encode(f, progressRow(1, &tidemarkv1.SourceWatermark{Seal: 9})))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := Schema{}.Version(b)
		var row tidemarkv1.DisplayRow
		if err != nil || row.UnmarshalVT(b) != nil {
			return
		}
		if want := max(row.GetSnapshot().GetSeq(), row.GetProgress().GetSeq()); v != want {
			t.Fatalf("version %d, the row says %d", v, want)
		}
	})
}
