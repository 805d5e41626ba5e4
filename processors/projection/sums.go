package projection

import (
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// sums keeps the acked buckets of recently counted targets, so that bringing a
// busy target out costs one addition per event instead of a read of all its
// buckets. It is a cache of the store: an absent target is read from there.
//
// A target is entered before it is read, so that rows that settle meanwhile
// are not lost; of two values for a bucket the one with the higher seq stands,
// whichever came first.
type sums struct {
	targets map[string]*sum
	buckets int // in all targets
}

type sum struct {
	// at is the changelog offset that the store had reached when the target
	// was read; the sum includes every row up to it and all that settled since.
	at      int64
	counts  topology.Counts
	buckets map[uint32]bucketSum // by virtual bucket
}

type bucketSum struct {
	counts topology.Counts
	seq    uint64
}

// maxSummedBuckets bounds the cache of one partition, about 100 bytes each.
const maxSummedBuckets = 100_000

func newSums() *sums { return &sums{targets: map[string]*sum{}} }

// settle takes an acked bucket row of a target, if the target is here.
func (s *sums) settle(target, bucket string, value []byte) {
	if t := s.targets[target]; t != nil {
		s.set(t, bucketNumber(bucket), readBucketSum(value))
	}
}

func (s *sums) set(t *sum, bucket uint32, b bucketSum) {
	old, known := t.buckets[bucket]
	if known && b.seq <= old.seq {
		return
	}
	if !known {
		s.buckets++
	}
	t.buckets[bucket] = b
	t.counts = t.counts.Plus(b.counts).Minus(old.counts)
}

// enter makes room and a place for a target that is about to be read.
func (s *sums) enter(target string) *sum {
	for name, t := range s.targets { // any will do: the order of a map is arbitrary
		if s.buckets < maxSummedBuckets {
			break
		}
		s.buckets -= len(t.buckets)
		delete(s.targets, name)
	}
	t := &sum{at: -1, buckets: map[uint32]bucketSum{}}
	s.targets[target] = t
	return t
}

// load completes a target with what the store had.
func (s *sums) load(t *sum, stored map[uint32]bucketSum, at int64) {
	for bucket, b := range stored {
		s.set(t, bucket, b)
	}
	t.at = at
}

// bucketNumber reads a derived row's item, the virtual bucket in four
// hexadecimal digits as the key has it.
func bucketNumber(item string) uint32 {
	var n uint32
	for i := range len(item) {
		d := item[i] - '0'
		if item[i] >= 'a' {
			d = item[i] - 'a' + 10
		}
		n = n<<4 | uint32(d)
	}
	return n
}

func readBucketSum(value []byte) bucketSum {
	var b tidemarkv1.BucketCount
	if err := b.UnmarshalVT(value); err != nil {
		return bucketSum{} // the store has refused what cannot be decoded
	}
	return bucketSum{topology.CountsOfBucket(&b), b.Seq}
}
