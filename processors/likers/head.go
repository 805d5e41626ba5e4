package likers

import (
	"slices"

	"github.com/tidemark/tidemark/internal/newest"
)

// head is the newest of a list, as one partition has it: every entry up to the
// cut, and nothing of what stands behind it.
//
// Entries behind the cut come and go unseen. One that enters before it makes the
// head longer, and at one and a quarter of its length it is cut anew; one that
// leaves makes it shorter, and below half of its length it has to be filled from
// the index, since the next entries are not known. So no page costs the index
// anything while entries come, and a filling comes after at least length/2
// cancels.
type head struct {
	length  int     // entries that it is cut to
	entries []Entry // in order
	byUser  map[string]Entry
	whole   bool  // nothing stands behind the last entry
	cut     Entry // the last that it says something of, while it is not whole
	// was has, of each user whose entry has changed since changes was called, what
	// it was then: the zero Entry for none.
	was map[string]Entry
}

func newHead(length int, from newest.Part) *head {
	h := &head{length: length, entries: slices.Clone(from.Entries), whole: !from.More, byUser: map[string]Entry{}, was: map[string]Entry{}}
	for _, e := range h.entries {
		h.byUser[e.User] = e
	}
	if !h.whole {
		h.cut = h.entries[len(h.entries)-1]
	}
	return h
}

// set makes a user's entry what the index has now; nil for none.
func (h *head) set(user string, now *Entry) {
	if now != nil && !h.whole && h.cut.Before(*now) {
		now = nil // behind the cut
	}
	old, in := h.byUser[user]
	if in && now != nil && old == *now {
		return
	}
	if in {
		h.take(old)
	}
	if now != nil {
		h.note(user)
		at, _ := slices.BinarySearchFunc(h.entries, *now, newest.Compare)
		h.entries = slices.Insert(h.entries, at, *now)
		h.byUser[user] = *now
	}
}

func (h *head) take(e Entry) {
	h.note(e.User)
	if at, found := slices.BinarySearchFunc(h.entries, e, newest.Compare); found {
		h.entries = slices.Delete(h.entries, at, at+1)
	}
	delete(h.byUser, e.User)
}

func (h *head) note(user string) {
	if _, noted := h.was[user]; !noted {
		h.was[user] = h.byUser[user]
	}
}

// trim cuts a head that has grown.
func (h *head) trim() {
	if len(h.entries) <= h.length+h.length/4 {
		return
	}
	for _, e := range slices.Clone(h.entries[h.length:]) {
		h.take(e)
	}
	h.whole, h.cut = false, h.entries[h.length-1]
}

// worn tells that so many have left that the head should be filled anew.
func (h *head) worn() bool { return !h.whole && len(h.entries) < (h.length+1)/2 }

// changes are what brings a copy of the head from what it was at the call before
// to what it is.
func (h *head) changes() (remove, add []Entry) {
	for user, was := range h.was {
		now, in := h.byUser[user]
		if was.User != "" && (!in || was != now) {
			remove = append(remove, was)
		}
		if in && was != now {
			add = append(add, now)
		}
	}
	clear(h.was)
	return remove, add
}
