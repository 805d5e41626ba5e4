package gokakit

import "github.com/cespare/xxhash/v2"

// filter answers "was this key ever in the store": no is certain, yes may be
// wrong. It spares the point read of first-sight relations, most of real
// traffic. Not safe for concurrent use.
//
// Each key sets 6 bits within one 64-byte block (one cache miss). Built for
// n keys it has 12 bits a key, about 1 % wrong yeses; it is rebuilt for twice
// as many when it holds more keys than it was built for.
type filter struct {
	words []uint64
	keys  int
	built int // capacity in keys
}

const (
	filterBitsPerKey = 12
	filterMinKeys    = 1 << 16
	filterProbes     = 6
)

func newFilter(keys int) *filter {
	keys = max(keys, filterMinKeys)
	blocks := keys*filterBitsPerKey/512 + 1
	return &filter{words: make([]uint64, blocks*8), built: keys}
}

// Kinds of names in a store's key space.
const (
	valueName = 'k'
	groupName = 'g'
	rowName   = 'd'
	indexName = 'i' // not in the filter: the index is scanned, never looked up
)

// hashName hashes a value's key, a group, or a row of a group.
func hashName(kind byte, a, b string) uint64 {
	h := xxhash.Sum64String(a) ^ uint64(kind)*0x9e3779b97f4a7c15
	if kind == rowName {
		h = h*0xff51afd7ed558ccd + xxhash.Sum64String(b)
	}
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>29
}

func (f *filter) block(h uint64) []uint64 {
	blocks := uint64(len(f.words) / 8)
	i := (h >> 32) % blocks * 8
	return f.words[i : i+8 : i+8]
}

func (f *filter) may(h uint64) bool {
	b := f.block(h)
	for range filterProbes {
		if b[h&7]&(1<<(h>>3&63)) == 0 {
			return false
		}
		h = h>>9 | h<<55
	}
	return true
}

func (f *filter) add(h uint64) {
	b := f.block(h)
	fresh := false
	for range filterProbes {
		w, bit := h&7, uint64(1)<<(h>>3&63)
		fresh = fresh || b[w]&bit == 0
		b[w] |= bit
		h = h>>9 | h<<55
	}
	if fresh {
		f.keys++
	}
}

func (f *filter) full() bool { return f.keys > f.built }
