package newest

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func order(a, b Entry) int {
	switch {
	case a.Before(b):
		return -1
	case b.Before(a):
		return 1
	}
	return 0
}

// What is popped is the whole list's own beginning, whatever prefixes of its
// parts were read; and it is all that could be known.
func TestMergeIsTheBeginningOfTheList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var whole []Entry
		var parts []Part
		known := map[int]int{} // entries of each part that were read
		var full [][]Entry
		for i := range rapid.IntRange(0, 6).Draw(t, "parts") {
			var p []Entry
			for j := range rapid.IntRange(0, 8).Draw(t, "entries") {
				p = append(p, Entry{User: fmt.Sprintf("u%d-%d", j, i), LikedAtUs: rapid.Int64Range(1, 5).Draw(t, "at")})
			}
			slices.SortFunc(p, order)
			whole, full = append(whole, p...), append(full, p)
			known[i] = rapid.IntRange(0, len(p)).Draw(t, "read")
			parts = append(parts, Part{Entries: p[:known[i]], More: known[i] < len(p)})
		}
		slices.SortFunc(whole, order)
		limit := rapid.IntRange(0, 12).Draw(t, "limit")
		got := Merge(parts, limit)
		n := len(got.Entries)
		if n > limit || n > len(whole) || !slices.Equal(got.Entries, whole[:n]) {
			t.Fatalf("popped %v of %v", got.Entries, whole)
		}
		if got.More != (n < len(whole)) {
			t.Fatalf("popped %d of %d, more: %v", n, len(whole), got.More)
		}
		if n == limit || n == len(whole) {
			return
		}
		for i, p := range full { // the next entry must be one that was not known
			popped := 0
			for _, e := range p {
				if slices.Contains(got.Entries, e) {
					popped++
				}
			}
			if popped == known[i] && popped < len(p) {
				return
			}
		}
		t.Fatalf("stopped at %d of %d entries, limit %d, though every part has its next", n, len(whole), limit)
	})
}

func TestMergeStopsWhereAPartRunsDry(t *testing.T) {
	a := Part{Entries: []Entry{{User: "a", LikedAtUs: 9}}, More: true} // 8 may come next
	b := Part{Entries: []Entry{{User: "b", LikedAtUs: 7}}}
	if got := Merge([]Part{a, b}, 10); len(got.Entries) != 1 || got.Entries[0].User != "a" || !got.More {
		t.Errorf("%+v", got)
	}
	if got := Merge([]Part{{More: true}, b}, 10); len(got.Entries) != 0 || !got.More {
		t.Errorf("beside a part of which nothing is known: %+v", got)
	}
}
