package limits

import (
	"hash/maphash"
	"sync"
	"time"
)

// key names a bucket: a hash, so that no id stands in Redis or in memory.
type key [16]byte

// ways are the entries among which a new key finds its place.
const ways = 8

// entry is a bucket that is not full; fullAt 0: a free place.
type entry struct {
	tag    uint64
	fullAt int64 // microseconds of the table's clock
}

// table keeps buckets in memory of a fixed size. A key has its place among a few,
// by a hash that nobody outside can tell. Full buckets need no place; when all
// places are taken by others, the one that is full soonest is forgotten, which
// gives its owner at most one burst more.
type table struct {
	clock func() int64 // microseconds, never set back: the process's own
	seed  maphash.Seed

	mu   sync.Mutex
	sets [][ways]entry
}

// newTable makes a table of at least entries places.
func newTable(entries int) *table {
	start := time.Now()
	return &table{
		clock: func() int64 { return 1 + time.Since(start).Microseconds() },
		seed:  maphash.MakeSeed(), sets: make([][ways]entry, (entries+ways-1)/ways),
	}
}

// take takes a token of each bucket, or of none when one has none, and puts into
// fullIn in how many microseconds each is full. It allocates nothing.
func (t *table) take(keys []key, buckets []bucket, fullIn []int64) (ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock()
	ok = true
	for i, b := range buckets {
		fullIn[i] = b.stand(t.find(keys[i]), now) - now
		ok = ok && b.wait(fullIn[i]) == 0
	}
	for i, b := range buckets {
		if ok {
			fullIn[i] += b.token
		}
		if at := now + fullIn[i]; ok || at < t.find(keys[i]) {
			t.put(keys[i], now, at)
		}
	}
	return ok
}

// giveBack returns a token that was taken.
func (t *table) giveBack(k key, b bucket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock()
	if at := t.find(k); at > now {
		t.put(k, now, at-b.token)
	}
}

func (t *table) place(k key) (set *[ways]entry, tag uint64) {
	h := maphash.Bytes(t.seed, k[:])
	return &t.sets[h%uint64(len(t.sets))], h
}

// find is when the key's bucket is full; 0 for one that is.
func (t *table) find(k key) int64 {
	set, tag := t.place(k)
	for _, e := range set {
		if e.fullAt != 0 && e.tag == tag {
			return e.fullAt
		}
	}
	return 0
}

func (t *table) put(k key, now, fullAt int64) {
	set, tag := t.place(k)
	soonest := 0
	for i, e := range set {
		if e.fullAt != 0 && e.tag == tag {
			soonest = i
			break
		}
		if e.fullAt < set[soonest].fullAt {
			soonest = i
		}
	}
	if fullAt <= now {
		if set[soonest].tag == tag {
			set[soonest] = entry{}
		}
		return
	}
	set[soonest] = entry{tag, fullAt}
}
