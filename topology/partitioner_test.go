package topology

import (
	"hash"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

var _ hash.Hash32 = (*KeyHash)(nil)

func TestPartitionVectors(t *testing.T) {
	for _, v := range readHashVectors(t).Partitions {
		if got := int32(Murmur2(v.Key)); got != v.Murmur2 {
			t.Errorf("murmur2 of %q is %d, want %d", v.Key, got, v.Murmur2)
		}
		if got, err := PartitionOf(v.Key, v.Partitions); err != nil || got != v.Partition {
			t.Errorf("partition of %q is %d, %v; want %d", v.Key, got, err, v.Partition)
		}
	}
}

// G13, S10: keys that name no partition go where Java clients put them.
func TestPartitionOfEqualsJavaClients(t *testing.T) {
	java := kgo.StickyKeyPartitioner(nil).ForTopic("any")
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.OneOf(
			rapid.Map(rapid.SliceOfN(rapid.Byte(), 1, 70), func(b []byte) string { return string(b) }),
			rapid.Custom(func(t *rapid.T) string { return drawRelation(t).Key() }),
		).Draw(t, "key")
		if _, _, named := CutPartition(key); named {
			t.Skip("names its partition")
		}
		n := rapid.IntRange(1, 4096).Draw(t, "partitions")
		got, err := PartitionOf(key, n)
		if want := java.Partition(&kgo.Record{Key: []byte(key)}, n); err != nil || got != want {
			t.Fatalf("partition of %q of %d is %d, %v; Java clients say %d", key, n, got, err, want)
		}
	})
}

// KeyHash is PartitionOf modulo the partition count, however the key is
// written, after any use before, and never negative as goka reads it.
func TestKeyHashEqualsPartitionOf(t *testing.T) {
	var h KeyHash
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4096).Draw(t, "partitions")
		key := rapid.OneOf(
			rapid.String(),
			rapid.Custom(func(t *rapid.T) string { return drawRelation(t).Key() }),
			rapid.Custom(func(t *rapid.T) string {
				return OnPartition(rapid.IntRange(0, n-1).Draw(t, "partition"), rapid.String().Draw(t, "rest"))
			}),
		).Draw(t, "key")
		want, err := PartitionOf(key, n)
		if err != nil {
			t.Skip("names a partition that is not there")
		}
		h.Reset()
		cut := rapid.IntRange(0, len(key)).Draw(t, "cut")
		_, _ = h.Write([]byte(key[:cut]))
		_, _ = h.Write([]byte(key[cut:]))
		sum := int32(h.Sum32())
		if sum < 0 || int(sum)%n != want {
			t.Fatalf("hash of %q is %d, modulo %d not %d", key, sum, n, want)
		}
		if b := h.Sum([]byte("x")); len(b) != 1+h.Size() || b[0] != 'x' {
			t.Fatalf("Sum gives %x", b)
		}
	})
}

func TestPartitionOfRefusesMissingPartition(t *testing.T) {
	_, err := PartitionOf(OnPartition(8, "like:u7:V9001"), 8)
	expectError(t, err, "names partition 8 of a topic with 8")
	if p, err := PartitionOf(OnPartition(7, "x"), 8); err != nil || p != 7 {
		t.Errorf("partition %d, %v; want 7", p, err)
	}
}

func TestMurmur2DoesNotAllocate(t *testing.T) {
	key := CountedKey(63, 418, Relation{Kind: Like, User: "00000000-0000-4000-8000-000000000000", Target: "V9001"})
	var sink uint32
	if n := testing.AllocsPerRun(1000, func() { sink += Murmur2(key) }); n != 0 {
		t.Errorf("Murmur2 allocates %v times", n)
	}
}
