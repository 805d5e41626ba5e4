package topology

import (
	"encoding/binary"
	"fmt"
)

// PartitionOf is the only partitioner: a key that names its partition goes
// there, every other key goes where Java clients put it (murmur2). It returns
// an error when the key names a partition that the topic does not have.
func PartitionOf(key string, partitions int) (int, error) {
	if p, _, ok := CutPartition(key); ok {
		if p >= partitions {
			return 0, fmt.Errorf("key %q names partition %d of a topic with %d", clip(key), p, partitions)
		}
		return p, nil
	}
	return int(Murmur2(key)&0x7fffffff) % partitions, nil
}

// Murmur2 is the hash of Kafka's Java clients (DefaultPartitioner), before
// its sign bit is cleared.
func Murmur2(key string) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := seed ^ uint32(len(key))
	b := []byte(key)
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b)
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h = (h ^ uint32(b[0])) * m
	}
	h = (h ^ h>>13) * m
	return h ^ h>>15
}

// KeyHash is PartitionOf as goka wants it, a hash.Hash32 whose sum modulo the
// partition count is the partition. Its top bit is clear, since goka negates a
// negative sum and math.MinInt32 has no negative.
type KeyHash struct{ key []byte }

// Write adds to the key.
func (h *KeyHash) Write(p []byte) (int, error) { h.key = append(h.key, p...); return len(p), nil }

// Sum appends Sum32, big endian.
func (h *KeyHash) Sum(b []byte) []byte { return binary.BigEndian.AppendUint32(b, h.Sum32()) }

// Reset forgets the key.
func (h *KeyHash) Reset() { h.key = h.key[:0] }

// Size is the number of bytes of a sum.
func (h *KeyHash) Size() int { return 4 }

// BlockSize is 1.
func (h *KeyHash) BlockSize() int { return 1 }

// Sum32 is the partition that the key names, or its murmur2.
func (h *KeyHash) Sum32() uint32 {
	key := string(h.key)
	if p, _, ok := CutPartition(key); ok {
		return uint32(p)
	}
	return Murmur2(key) & 0x7fffffff
}
