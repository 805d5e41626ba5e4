// Package newest merges parts of a list that is ordered newest first: what a
// partition's reverse shards have of a target, and what its partitions have.
//
// A part may be a prefix of what there is; More says so. Nothing is popped past
// the end of such a prefix, since what stands behind it may be newer than what
// the other parts have. So what Merge pops is the list's own beginning, and
// what it was given and did not pop is as if it had never been read.
package newest

import (
	"cmp"
	"container/heap"
	"strings"
)

// Entry is a user in a list.
type Entry struct {
	User      string
	LikedAtUs int64
	Version   uint64 // of the relation
}

// Before orders a list: newest first, of one time by user.
func (e Entry) Before(o Entry) bool {
	return Compare(e, o) < 0
}

// Compare orders as Before does.
func Compare(a, b Entry) int {
	return cmp.Or(cmp.Compare(b.LikedAtUs, a.LikedAtUs), strings.Compare(a.User, b.User))
}

// Part is the beginning of a part of a list, in order.
type Part struct {
	Entries []Entry
	More    bool // entries stand behind the last one
}

// Merge pops the newest entries of all parts together, at most limit. More says
// that entries are left, in a part or behind one. It pops fewer than limit
// while more are left only when a part that has more has run dry.
func Merge(parts []Part, limit int) Part {
	h := make(heads, 0, len(parts))
	dry := false // a part ends, and nobody knows what comes next
	for _, p := range parts {
		if len(p.Entries) > 0 {
			h = append(h, p)
		} else {
			dry = dry || p.More
		}
	}
	heap.Init(&h)
	var merged Part
	for len(h) > 0 && len(merged.Entries) < limit && !dry {
		merged.Entries = append(merged.Entries, h[0].Entries[0])
		h[0].Entries = h[0].Entries[1:]
		if len(h[0].Entries) > 0 {
			heap.Fix(&h, 0)
			continue
		}
		dry = h[0].More
		heap.Pop(&h)
	}
	merged.More = dry || len(h) > 0
	return merged
}

// heads is a heap of parts by their first entry.
type heads []Part

func (h heads) Len() int           { return len(h) }
func (h heads) Less(i, j int) bool { return h[i].Entries[0].Before(h[j].Entries[0]) }
func (h heads) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *heads) Push(x any)        { *h = append(*h, x.(Part)) }
func (h *heads) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}
