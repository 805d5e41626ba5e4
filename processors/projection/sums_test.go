package projection

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

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
			b := bucketSum{active: int64(rapid.IntRange(0, 9).Draw(t, "active")), disliked: 1, seq: seq}
			if store[target] == nil {
				store[target] = map[uint32]bucketSum{}
			}
			store[target][bucket] = b
			value, err := (&tidemarkv1.BucketCount{Active: b.active, Disliked: b.disliked, Seq: b.seq}).MarshalVT()
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
				var want bucketSum
				for _, b := range store[target] {
					want.active += b.active
					want.disliked += b.disliked
				}
				if sum.active != want.active || sum.disliked != want.disliked {
					t.Fatalf("sum of %s is %d, %d; the store's %d, %d", target, sum.active, sum.disliked, want.active, want.disliked)
				}
			}
		}
	})
}
