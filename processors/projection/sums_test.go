package projection

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// However loads, settled rows and evictions interleave, a known sum is the sum
// of the store's rows; a row that settles while its target is being read is
// not lost, and one that comes twice counts once.
func TestSumsEqualTheStore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSums()
		store := map[string]map[uint32]bucketSum{}
		var seq uint64
		settle := func(target string) {
			seq++
			bucket := uint32(rapid.IntRange(0, 3).Draw(t, "bucket"))
			drawn := rapid.Int64Range(0, 9)
			b := bucketSum{topology.Counts{Raw: drawn.Draw(t, "raw"), RiskHidden: drawn.Draw(t, "risk"), PolicyHidden: drawn.Draw(t, "policy"), Disliked: 1}, seq}
			if store[target] == nil {
				store[target] = map[uint32]bucketSum{}
			}
			store[target][bucket] = b
			value, err := (&tidemarkv1.BucketCount{Active: b.counts.Raw, RiskHidden: b.counts.RiskHidden, PolicyHidden: b.counts.PolicyHidden, Disliked: b.counts.Disliked, Seq: b.seq}).MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			for range rapid.IntRange(1, 2).Draw(t, "times") {
				s.settle(target, fmt.Sprintf("%04x", bucket), value)
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			target := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "target")
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				settle(target)
			case 1:
				delete(s.targets, target) // as enter does for room
			case 2:
				if s.targets[target] != nil {
					continue
				}
				entered := s.enter(target)
				read := map[uint32]bucketSum{}
				for bucket, b := range store[target] {
					read[bucket] = b
				}
				if rapid.Bool().Draw(t, "settles meanwhile") {
					settle(target)
				}
				s.load(entered, read, int64(seq))
			}
			for target, sum := range s.targets {
				var want topology.Counts
				for _, b := range store[target] {
					want = want.Plus(b.counts)
				}
				if sum.counts != want {
					t.Fatalf("sum of %s is %v; the store's %v", target, sum.counts, want)
				}
			}
		}
	})
}
