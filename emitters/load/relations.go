package load

import (
	"sync"

	"github.com/tidemark/tidemark/topology"
)

// relations keeps the client's side of every relation: what the last answer
// said, and the commands that wait while one is undecided. At most one command
// of a relation is out at a time, and they go in the order of submit.
type relations struct {
	mu     sync.Mutex
	most   int
	known  map[topology.Relation]*relation
	forgot int64
	seen   int64
}

// relation is owned, except for waiting and busy, by the worker whose turn it
// is.
type relation struct {
	version uint64

	busy    bool
	waiting []*command
}

func newRelations(most int) *relations {
	return &relations{most: most, known: make(map[topology.Relation]*relation)}
}

// submit adds a command and tells whether its turn is now; otherwise finish
// will give it to the worker that is busy with its relation.
func (t *relations) submit(c *command) (now bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, ok := t.known[c.relation]
	if !ok {
		if len(t.known) >= t.most {
			t.forget()
		}
		r = &relation{}
		t.known[c.relation] = r
		t.seen++
	}
	if r.busy {
		r.waiting = append(r.waiting, c)
		return false
	}
	r.busy = true
	return true
}

// of gives the relation to the worker whose turn it is.
func (t *relations) of(c *command) *relation {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[c.relation]
}

// finish ends a command's turn and gives the next one of its relation, or nil.
func (t *relations) finish(c *command) *command {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.known[c.relation]
	if len(r.waiting) == 0 {
		r.busy, r.waiting = false, nil
		return nil
	}
	next := r.waiting[0]
	r.waiting = r.waiting[1:]
	return next
}

// forget drops some relation that is not busy. There is one: at most Pending
// are busy, and Pending is not above the bound.
func (t *relations) forget() {
	for key, r := range t.known {
		if !r.busy {
			delete(t.known, key)
			t.forgot++
			return
		}
	}
}

// cardinality is the number of distinct relations; one that was forgotten and
// came again counts twice.
func (t *relations) cardinality() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}
