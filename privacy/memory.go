package privacy

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
)

// sort is what a subjectKey is of.
type sort uint8

const (
	ofAccount sort = iota
	ofVideo
	ofPair
	sorts
)

// subjectKey names an account or a video by a, or two users by a and b, of whom a
// is the lower.
type subjectKey struct {
	sort sort
	a, b string
}

func accountKey(id string) subjectKey { return subjectKey{ofAccount, id, ""} }
func videoKey(id string) subjectKey   { return subjectKey{ofVideo, id, ""} }
func pairKey(a, b string) subjectKey  { return subjectKey{ofPair, min(a, b), max(a, b)} }

// memory is what a process remembers of subjects. It is bounded, and what it
// gives as current is at most a lease old:
//
//	change committed ──notification──▶ forget ── the next question reads the database
//	beat sent ──notification──▶ proven: everything committed before the beat was
//	                            sent has been forgotten, so all is current for a lease
//
// The race that this is about: a question reads version 1, the deletion is
// committed as version 2 and its notification forgets the key, and only then the
// question's answer comes to be remembered, and would stay. So forget marks the
// key for all who are reading it (reading), and what they bring is not kept. A
// read that begins after the notification sees version 2, since the notification
// comes after the commit. It needs no versions, and so holds for what has none,
// as "nobody spoke of it".
//
// What is not current stays as the last that was known, for an outage.
type memory struct {
	kept *otter.Cache[subjectKey, remembered]

	// provenUntil is when the lease ends, in Unix ns; 0: nobody listens.
	provenUntil atomic.Int64
	// epoch counts the listeners; what an earlier one watched may have changed
	// unheard.
	epoch atomic.Uint64
	// none has, by sort, whether there is no subject at all; of the epoch.
	none [sorts]atomic.Bool

	mu      sync.Mutex
	reading map[subjectKey]*reads
	changes uint64 // forgotten keys so far
}

type remembered struct {
	subject
	epoch uint64
}

// reads are the questions that read a key of the database now.
type reads struct {
	n       int
	changed uint64 // changes when the key was last forgotten
}

// lease is how long after a beat was sent what is remembered counts as current.
const lease = 5 * time.Second

func newMemory(subjects int) *memory {
	return &memory{
		kept:    otter.Must(&otter.Options[subjectKey, remembered]{MaximumSize: subjects, Logger: &otter.NoopLogger{}}),
		reading: map[subjectKey]*reads{},
	}
}

// noneOf tells whether no event spoke of any subject of a sort; that is current.
func (m *memory) noneOf(of sort) bool {
	return time.Now().UnixNano() < m.provenUntil.Load() && m.none[of].Load()
}

// current gives what is remembered of k if nothing newer can have been committed
// more than a lease ago.
func (m *memory) current(k subjectKey) (subject, bool) {
	if time.Now().UnixNano() >= m.provenUntil.Load() {
		return subject{}, false
	}
	if m.none[k.sort].Load() {
		return subject{}, true // nobody spoke of any
	}
	r, ok := m.kept.GetIfPresent(k)
	return r.subject, ok && r.epoch == m.epoch.Load()
}

// last gives what was known last.
func (m *memory) last(k subjectKey) (subject, bool) {
	r, ok := m.kept.GetIfPresent(k)
	return r.subject, ok
}

// read is a read of the database under way, for keys.
type read struct {
	keys    []subjectKey
	changes uint64
	epoch   uint64
}

// begin must come before the database is asked, and end after it, whatever
// became of it.
func (m *memory) begin(keys []subjectKey) read {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, k := range keys {
		if m.reading[k] == nil {
			m.reading[k] = &reads{}
		}
		m.reading[k].n++
	}
	return read{keys, m.changes, m.epoch.Load()}
}

// end keeps what was read, by place in r's keys; nil when nothing was. The lock
// is held over looking and keeping: forget comes before both, or after.
func (m *memory) end(r read, found []subject) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, k := range r.keys {
		now := m.reading[k]
		if found != nil && now.changed <= r.changes {
			m.kept.Set(k, remembered{found[i], r.epoch})
		}
		if now.n--; now.n == 0 {
			delete(m.reading, k)
		}
	}
}

// forget drops k, and what is being read of it.
func (m *memory) forget(k subjectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.none[k.sort].Store(false)
	m.changes++
	if now := m.reading[k]; now != nil {
		now.changed = m.changes
	}
	m.kept.Invalidate(k)
}

// listen begins an epoch: a listener stands, and none says of which sorts there
// was no subject after that.
func (m *memory) listen(none [sorts]bool) {
	m.epoch.Add(1)
	for s, empty := range none {
		m.none[s].Store(empty)
	}
}

// proven renews the lease by a beat that came back.
func (m *memory) proven(sent time.Time) { m.provenUntil.Store(sent.Add(lease).UnixNano()) }

// deaf ends the lease: the listener is lost.
func (m *memory) deaf() { m.provenUntil.Store(0) }
