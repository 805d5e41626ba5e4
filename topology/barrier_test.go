package topology

import (
	"testing"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func TestNewestBarriers(t *testing.T) {
	mark := func(shard uint32, seal uint64) *tidemarkv1.SourceWatermark {
		return &tidemarkv1.SourceWatermark{Shard: shard, Seal: seal, BarrierId: "b"}
	}
	var have []*tidemarkv1.SourceWatermark
	for seal := uint64(1); seal <= 20; seal++ {
		have = NewestBarriers(have, []*tidemarkv1.SourceWatermark{mark(0, seal), mark(0, seal)})
		if seal%10 == 0 {
			have = NewestBarriers(have, []*tidemarkv1.SourceWatermark{mark(1, seal), mark(0, seal)})
		}
	}
	var of [2][]uint64
	for _, b := range have {
		of[b.Shard] = append(of[b.Shard], b.Seal)
	}
	if len(of[0]) != MaxBarriers || of[0][0] != 13 || of[0][7] != 20 || len(of[1]) != 2 || of[1][0] != 10 {
		t.Errorf("kept %v", of)
	}
	if len(NewestBarriers(nil, nil)) != 0 {
		t.Error("nothing of nothing")
	}
}
