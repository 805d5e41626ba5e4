package likers

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/newest"
)

// listModel is what an index has, and what a Redis has that was told changes.
type listModel struct {
	index map[string]Entry
	copy  map[Entry]bool
}

func (m *listModel) sorted() []Entry {
	return slices.SortedFunc(maps.Values(m.index), newest.Compare)
}

func (m *listModel) fill(length int) *head {
	all := m.sorted()
	h := newHead(length, newest.Part{Entries: all[:min(length, len(all))], More: len(all) > length})
	m.copy = map[Entry]bool{}
	for _, e := range h.entries {
		m.copy[e] = true
	}
	return h
}

// A head is the index's own list up to its cut, whatever comes and goes above and
// below it, in whatever steps it is told; and a copy that is brought the changes
// is the head.
func TestHeadIsTheListUpToItsCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &listModel{index: map[string]Entry{}}
		user := rapid.StringMatching(`u[0-9]`)
		version := uint64(0)
		step := func(changed map[string]bool) {
			u := user.Draw(t, "user") + user.Draw(t, "user")
			changed[u] = true
			version++
			if _, in := m.index[u]; in && rapid.Bool().Draw(t, "cancel") {
				delete(m.index, u)
				return
			}
			m.index[u] = Entry{User: u, LikedAtUs: rapid.Int64Range(1, 40).Draw(t, "at"), Version: version} // also a late one, and a re-like
		}
		for range rapid.IntRange(0, 40).Draw(t, "before") {
			step(map[string]bool{})
		}
		length := rapid.IntRange(1, 12).Draw(t, "length")
		h := m.fill(length)
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			changed := map[string]bool{}
			for range rapid.IntRange(0, 8).Draw(t, "changes") {
				step(changed)
			}
			for u := range changed {
				var now *Entry
				if e, in := m.index[u]; in {
					now = &e
				}
				h.set(u, now)
				if rapid.Bool().Draw(t, "twice") {
					h.set(u, now)
				}
			}
			h.trim()
			remove, add := h.changes()
			for _, e := range remove {
				if !m.copy[e] {
					t.Fatalf("%v is removed, which the copy has not", e)
				}
				delete(m.copy, e)
			}
			for _, e := range add {
				m.copy[e] = true
			}
			checkHead(t, m, h)
			if h.worn() {
				h = m.fill(length)
				checkHead(t, m, h)
			}
		}
	})
}

func checkHead(t *rapid.T, m *listModel, h *head) {
	all := m.sorted()
	n := len(h.entries)
	switch {
	case n > len(all) || !slices.Equal(h.entries, all[:n]):
		t.Fatalf("the head is %v, the list %v", h.entries, all)
	case h.whole && n < len(all):
		t.Fatalf("the head says that it is whole: %v of %v", h.entries, all)
	case !h.whole && n < len(all) && !h.cut.Before(all[n]):
		t.Fatalf("the head says that it has all up to %v, and has not %v", h.cut, all[n])
	case n > h.length+h.length/4:
		t.Fatalf("the head has %d entries, length %d", n, h.length)
	}
	if copied := slices.SortedFunc(maps.Keys(m.copy), newest.Compare); !slices.Equal(copied, h.entries) {
		t.Fatalf("the copy has %v, the head %v", copied, h.entries)
	}
}

// A cancel above the cut shortens the head, and one below it changes nothing.
func TestHeadCancels(t *testing.T) {
	m := &listModel{index: map[string]Entry{}}
	for i := range 10 {
		m.index[fmt.Sprint(i)] = Entry{User: fmt.Sprint(i), LikedAtUs: int64(100 - i), Version: 1}
	}
	h := m.fill(6)
	h.set("8", nil)
	if remove, add := h.changes(); len(remove)+len(add) > 0 || h.worn() {
		t.Errorf("a cancel below the cut: removes %v, adds %v", remove, add)
	}
	h.set("5", nil) // the one at the cut
	late := Entry{User: "late", LikedAtUs: 95, Version: 1}
	h.set("late", &late) // before the user who stood at the cut, in the order of one time
	if _, add := h.changes(); len(add) != 0 {
		t.Errorf("%v is behind the cut and was added", add)
	}
	for _, u := range []string{"0", "1"} {
		h.set(u, nil)
	}
	if h.worn() || len(h.entries) != 3 {
		t.Errorf("3 of 6 are left: %v", h.entries)
	}
	h.set("2", nil)
	if !h.worn() {
		t.Error("2 of 6 are left, and nothing is filled")
	}
}

func TestHeat(t *testing.T) {
	h := newHeat(10*time.Second, 3)
	at := time.Unix(1000, 0)
	for i := range 20 {
		h.read("hot", 2, at.Add(time.Duration(i)*time.Second))
		h.read("warm", 1, at.Add(time.Duration(i)*time.Second))
	}
	for i := range 100 {
		h.read(fmt.Sprint("other", i), 1, at.Add(19*time.Second))
	}
	rates := h.perMinute(at.Add(19 * time.Second))
	if rates["hot"] < 115 || rates["hot"] > 135 || rates["warm"] < 57 || rates["warm"] > 68 || len(rates) != 3 {
		t.Errorf("pages a minute: %v", rates)
	}
	if rates := h.perMinute(at.Add(25 * time.Second)); rates["hot"] < 50 || rates["hot"] > 70 {
		t.Errorf("half a window after the last page: %v", rates)
	}
	if rates := h.perMinute(at.Add(45 * time.Second)); len(rates) != 0 {
		t.Errorf("after two windows: %v", rates)
	}
}
