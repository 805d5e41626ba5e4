package topology

import (
	"slices"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// MaxBarriers is how many barriers of each shard a progress names.
const MaxBarriers = 8

// NewestBarriers gives the newest barriers of have and more, each once, oldest
// first. It changes neither.
func NewestBarriers(have, more []*tidemarkv1.SourceWatermark) []*tidemarkv1.SourceWatermark {
	var all []*tidemarkv1.SourceWatermark
	for _, b := range slices.Concat(have, more) {
		same := func(a *tidemarkv1.SourceWatermark) bool { return a.Shard == b.Shard && a.Seal == b.Seal }
		if !slices.ContainsFunc(all, same) {
			all = append(all, b)
		}
	}
	count := map[uint32]int{}
	for _, b := range slices.Backward(all) {
		count[b.Shard]++
	}
	return slices.DeleteFunc(all, func(b *tidemarkv1.SourceWatermark) bool {
		count[b.Shard]--
		return count[b.Shard] >= MaxBarriers
	})
}
