package paging

import (
	"time"

	"github.com/tidemark/tidemark/drills/oracle"
)

// walk is one reading of a list.
type walk struct {
	readers *Readers
	n       int // of the list
	list    string
	size    int // of pages
	pages   int
	told    map[string]time.Time // users who stay
	last    Entry                // of them
}

func (w *walk) found(c oracle.Class, format string, a ...any) {
	w.readers.cfg.Findings.Add(c, "%s, pages of %d, page %d: "+format, append([]any{w.list, w.size, w.pages}, a...)...)
}

// take checks a page.
func (w *walk) take(p Page) {
	w.pages++
	if p.Next != "" && len(p.Entries) < w.size || len(p.Entries) > w.size {
		w.found(Short, "%d entries, and more follows: %v", len(p.Entries), p.Next != "")
	}
	for i, e := range p.Entries {
		if i > 0 && !before(p.Entries[i-1], e) {
			w.found(Disorder, "%s since %v stands behind %s since %v", e.User, e.At, p.Entries[i-1].User, p.Entries[i-1].At)
		}
		w.entry(e)
	}
}

func (w *walk) entry(e Entry) {
	since, stays := w.readers.entered(w.n, e)
	if !stays {
		return
	}
	if _, twice := w.told[e.User]; twice {
		w.found(Twice, "%s was told before", e.User)
		return
	}
	if !e.At.Equal(since) {
		w.found(Twice, "%s is in the list since %v, and was since %v", e.User, e.At, since)
	}
	if len(w.told) > 0 && !before(w.last, e) {
		w.found(Disorder, "%s since %v stands behind %s since %v of an earlier page", e.User, e.At, w.last.User, w.last.At)
	}
	w.told[e.User], w.last = e.At, e
}

// end looks for who was left out.
func (w *walk) end() {
	w.readers.count(func(f *Figures) { f.Readings++ })
	missing, one := int64(0), ""
	for _, user := range w.readers.cfg.Lists[w.n].Stable {
		if _, ok := w.told[user]; !ok {
			missing, one = missing+1, user
		}
	}
	if missing > 0 {
		w.readers.cfg.Findings.AddMany(Missing, missing, "%s, pages of %d: of %d users who stay %d were not told in %d pages, such as %s",
			w.list, w.size, len(w.readers.cfg.Lists[w.n].Stable), missing, w.pages, one)
	}
}

// before tells whether a stands before b: newest first, of one time by user.
func before(a, b Entry) bool {
	if !a.At.Equal(b.At) {
		return a.At.After(b.At)
	}
	return a.User < b.User
}
