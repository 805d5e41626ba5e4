package idset

import (
	"maps"
	"math/bits"
	"slices"
)

const (
	chunkBits = 16
	chunkIDs  = 1 << chunkBits
)

// Set is a set of ids as chunks of 65,536: none, full, or a bitmap of 8 KiB.
// Ids that arrive nearly in order need one bit each while their chunk is
// incomplete and next to nothing afterwards.
type Set struct {
	chunks  map[int64]*chunk
	bitmaps int // chunks that are not full
	limit   int // of bitmaps
	highest int64
}

type chunk struct {
	bits  *[chunkIDs / 64]uint64 // nil when full
	count int
}

// NewSet makes a set that takes at most about maxBytes.
func NewSet(maxBytes int) *Set {
	return &Set{chunks: map[int64]*chunk{}, limit: max(1, maxBytes/(chunkIDs/8))}
}

// Add puts id in. added is false when it was there already; fits is false when
// the set has no room for it.
func (s *Set) Add(id int64) (added, fits bool) {
	number, bit := id>>chunkBits, uint(id&(chunkIDs-1))
	c := s.chunks[number]
	if c == nil {
		if s.bitmaps == s.limit {
			return false, false
		}
		c = &chunk{bits: new([chunkIDs / 64]uint64)}
		s.chunks[number] = c
		s.bitmaps++
	}
	if c.has(bit) {
		return false, true
	}
	c.bits[bit/64] |= 1 << (bit % 64)
	if c.count++; c.count == chunkIDs {
		c.bits = nil
		s.bitmaps--
	}
	s.highest = max(s.highest, id)
	return true, true
}

func (c *chunk) has(bit uint) bool { return c.bits == nil || c.bits[bit/64]&(1<<(bit%64)) != 0 }

// Has tells whether id is in s.
func (s *Set) Has(id int64) bool {
	c := s.chunks[id>>chunkBits]
	return c != nil && c.has(uint(id&(chunkIDs-1)))
}

// Highest is the highest id that was ever put in; 0 for none.
func (s *Set) Highest() int64 { return s.highest }

// Absent lists the ids of from..to that are not in s.
func (s *Set) Absent(from, to int64) Ranges {
	var out Ranges
	at := from
	for _, number := range slices.Sorted(maps.Keys(s.chunks)) {
		first, last := number<<chunkBits, (number+1)<<chunkBits-1
		if last < at {
			continue
		}
		if first > to {
			break
		}
		if first > at {
			out = out.AppendRange(Range{at, first - 1})
			at = first
		}
		if c := s.chunks[number]; c.bits != nil {
			out = c.absent(out, at, min(to, last))
		}
		at = last + 1
	}
	if at <= to {
		out = out.AppendRange(Range{at, to})
	}
	return out
}

// absent adds the ids of from..to, all of this chunk, that are not in it.
func (c *chunk) absent(out Ranges, from, to int64) Ranges {
	for at := from; at <= to; {
		bit := uint(at & (chunkIDs - 1))
		word := c.bits[bit/64] >> (bit % 64)
		left := int64(64 - bit%64)
		if present := int64(bits.TrailingZeros64(^word)); present > 0 {
			at += min(present, left)
			continue
		}
		missing := min(int64(bits.TrailingZeros64(word)), left, to-at+1)
		out = out.AppendRange(Range{at, at + missing - 1})
		at += missing
	}
	return out
}

// DropTo forgets the chunks whose ids are all at or below id. Has says false
// for what was forgotten: the caller remembers up to where.
func (s *Set) DropTo(id int64) {
	for number, c := range s.chunks {
		if (number+1)<<chunkBits-1 <= id {
			delete(s.chunks, number)
			if c.bits != nil {
				s.bitmaps--
			}
		}
	}
}

// Fill puts in the ids of from..to without those in absent, and tells whether
// they fit.
func (s *Set) Fill(from, to int64, absent Ranges) bool {
	for _, r := range (Ranges{{from, to}}).Without(absent) {
		if r.From > r.To {
			continue
		}
		for id := r.From; id <= r.To; id++ {
			if _, fits := s.Add(id); !fits {
				return false
			}
		}
	}
	return true
}
