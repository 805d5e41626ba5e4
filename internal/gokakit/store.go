package gokakit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// store is one partition of a table: Pebble below, RAM above.
//
//	put ──▶ row.latest ──ack──▶ row.acked ──freeze──▶ frozen ──▶ Pebble (+ offset)
//
// Reads see the newest write, acked or not, so that a handler reads its own
// effects. Pebble has no write-ahead log of its own: the changelog is that. It
// receives acked rows only, in one sorted batch together with the changelog
// offset that they reach, so after any crash it holds exactly the state of
// some changelog prefix, and the rest is read from the log.
//
// Memory is bounded: when a frozen set is still being written and the next one
// is full, ack and replay wait, which holds back the producer's budget and
// with it the handler.
//
// Whatever goes wrong on disk fails the store by name and for good; the rest
// of the processor is told through storeOptions.onFail and is built anew.
//
// Lock order: lane.mu, then store.mu. Pebble's callbacks hold locks of Pebble
// and must not take store.mu.
type store struct {
	where  string // topic/partition, for errors
	schema Schema
	index  Indexer // the schema, when it has an index; nil when not
	opts   storeOptions
	// opening is this opening's prefix in the row cache.
	opening  [cachePrefix]byte
	deriving *write        // that put is filling in
	derive   func(Derived) // adds a row to it; made once, since a closure for each write costs

	mu      sync.RWMutex
	thawed  *sync.Cond // signalled when frozen has reached Pebble, or never will
	db      *pebble.DB // nil when closed
	topicID [16]byte   // of the changelog
	values  map[string]*row
	groups  map[string]map[string]*row
	frozen  *frozen // being written to Pebble; nil when none
	filter  *filter // nil until built
	next    *filter // being built
	acked   int64   // changelog offset that acked rows reach; -1 for none
	onDisk  int64   // changelog offset in Pebble
	from    int64   // changelog offset in Pebble when the store was opened
	goal    int64   // last changelog offset then
	bytes   int     // of acked rows that are not frozen
	stale   map[string]struct{}
	marks   map[string]bool // changes of stale since the last freeze: true for added
	failed  error           // set once; nothing is written any more
	dead    chan struct{}   // closed when failed is set

	closing  atomic.Bool  // scans and filter builds give up
	replayed atomic.Int64 // newest offset read from the log
	opened   atomic.Bool  // the opening is over
	broken   atomic.Bool  // Pebble has reported an error
	damaged  atomic.Bool  // Pebble has read what it never wrote
	tasks    sync.WaitGroup
}

type storeOptions struct {
	dir         string
	partition   int
	partitions  int // of the table
	cache       *pebble.Cache
	rows        *rowCache
	writeBehind int // bytes of acked rows before they are frozen
	weak        Weakness
	metrics     *metrics
	fs          vfs.FS
	onFail      func(error) // told once when the store fails; may be nil
}

// row is what RAM knows of a value or of a derived row (sequence in the first
// eight bytes, then the value).
type row struct {
	latest  []byte // newest write
	acked   []byte // newest acked write since the last freeze; nil for none
	pending int    // writes that are not acked yet
	// base is the value on disk, or on its way there, that acked will replace;
	// kept for a value of a table with an index only.
	base []byte
}

// frozen is an immutable set of acked rows on its way to Pebble.
type frozen struct {
	values map[string]*row
	groups map[string]map[string]*row
	marks  map[string]bool
	offset int64
}

// write is a put that waits for its ack.
type write struct {
	key     string
	value   []byte
	row     *row
	derived []derivedWrite
	inline  [1]derivedWrite // most values imply one row
	offset  int64           // of the changelog record, once acked
}

type derivedWrite struct {
	Derived
	stored []byte
	row    *row
}

var errClosed = errors.New("the partition's store is closed")

func newStore(where string, schema Schema, opts storeOptions) *store {
	s := &store{where: where, schema: schema, opts: opts, acked: -1, onDisk: -1,
		values: map[string]*row{}, groups: map[string]map[string]*row{},
		stale: map[string]struct{}{}, marks: map[string]bool{},
		dead: make(chan struct{})}
	s.index, _ = schema.(Indexer)
	s.thawed = sync.NewCond(&s.mu)
	s.derive = func(d Derived) {
		s.deriving.derived = append(s.deriving.derived, derivedWrite{Derived: d, stored: storedRow(d)})
	}
	return s
}

func (s *store) usable() error {
	if s.failed != nil {
		return s.failed
	}
	if s.db == nil {
		return fmt.Errorf("table %s: %w", s.where, errClosed)
	}
	return nil
}

// get reads a key's newest value; nil when there is none. The caller must not
// change it.
func (s *store) get(key string) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	return s.valueLocked(key)
}

func (s *store) valueLocked(key string) ([]byte, error) {
	if r := s.values[key]; r != nil {
		return r.latest, nil
	}
	if s.filter != nil && !s.filter.may(hashName(valueName, key, "")) {
		return nil, nil
	}
	if s.frozen != nil {
		if r := s.frozen.values[key]; r != nil {
			return r.acked, nil
		}
	}
	var buf [128]byte
	return s.settledRow(append(append(append(buf[:0], s.opening[:]...), valueName), key...))
}

// derived reads the newest row of a group; nil when there is none.
func (s *store) derived(group, item string) ([]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	stored, err := s.derivedLocked(group, item)
	if err != nil || stored == nil {
		return nil, err
	}
	return stored[8:], nil
}

func (s *store) derivedLocked(group, item string) ([]byte, error) {
	if r := s.groups[group][item]; r != nil {
		return r.latest, nil
	}
	if s.filter != nil && !s.filter.may(hashName(rowName, group, item)) {
		return nil, nil
	}
	if s.frozen != nil {
		if r := s.frozen.groups[group][item]; r != nil {
			return r.acked, nil
		}
	}
	var buf [128]byte
	return s.settledRow(appendRowName(append(buf[:0], s.opening[:]...), group, item))
}

func appendRowName(b []byte, group, item string) []byte {
	b = append(append(b, rowName), group...)
	return append(append(b, 0), item...)
}

// settledRow reads a row that is on disk, by cache prefix and name.
func (s *store) settledRow(name []byte) ([]byte, error) {
	if v := s.opts.rows.get(name); v != nil {
		return v, nil
	}
	v, err := s.fromDisk(name[cachePrefix:])
	if v != nil {
		s.opts.rows.set(name, v)
	}
	return v, err
}

func (s *store) fromDisk(name []byte) ([]byte, error) {
	v, closer, err := s.db.Get(name)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("table %s: reading the store: %w", s.where, err)
	}
	out := append(make([]byte, 0, len(v)), v...)
	return out, closer.Close()
}

// put makes a value and its derived rows readable and fills in w, to be acked
// once its changelog record is; the lane calls it for one write at a time. A
// value that is written again, to stand behind
// a stale record, implies rows of its own time: they give way to newer ones.
func (s *store) put(w *write, key string, value []byte, again bool) error {
	w.key, w.value, w.derived = key, value, w.inline[:0]
	s.deriving = w
	if err := s.schema.Derive(key, value, s.derive); err != nil {
		return fmt.Errorf("table %s: deriving rows: %w", s.where, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if again {
		if err := s.dropOld(w); err != nil {
			return err
		}
	}
	r, err := s.valueRow(key)
	if err != nil {
		return err
	}
	w.row = r
	w.row.latest = value
	w.row.pending++
	for i := range w.derived {
		d := &w.derived[i]
		d.row = s.derivedRow(d.Group, d.Item)
		d.row.latest = d.stored
		d.row.pending++
	}
	if s.opts.weak.has(WithoutGate) {
		s.settle(w)
		return s.freezeIfFull()
	}
	return nil
}

// dropOld takes the rows out of a write that the store has newer ones of.
func (s *store) dropOld(w *write) error {
	kept := w.derived[:0]
	for _, d := range w.derived {
		cur, err := s.derivedLocked(d.Group, d.Item)
		if err != nil {
			return err
		}
		if cur == nil || d.Seq > rowSeq(cur) {
			kept = append(kept, d)
		}
	}
	w.derived = kept
	return nil
}

func storedRow(d Derived) []byte {
	b := make([]byte, 8, 8+len(d.Value))
	binary.BigEndian.PutUint64(b, d.Seq)
	return append(b, d.Value...)
}

func rowSeq(stored []byte) uint64 { return binary.BigEndian.Uint64(stored) }

func (s *store) valueRow(key string) (*row, error) {
	r := s.values[key]
	if r != nil {
		return r, nil
	}
	r = new(row)
	if s.index != nil {
		var err error
		if r.base, err = s.valueLocked(key); err != nil {
			return nil, err
		}
	}
	s.values[key] = r
	s.remember(hashName(valueName, key, ""))
	return r, nil
}

func (s *store) derivedRow(group, item string) *row {
	g := s.groups[group]
	if g == nil {
		g = make(map[string]*row, 1)
		s.groups[group] = g
		s.remember(hashName(groupName, group, ""))
	}
	r := g[item]
	if r == nil {
		r = new(row)
		g[item] = r
		s.remember(hashName(rowName, group, item))
	}
	return r
}

func (s *store) remember(h uint64) {
	if s.filter != nil {
		s.filter.add(h)
	}
	if s.next != nil {
		s.next.add(h)
	}
}

// ack takes writes whose changelog records are acked, in emission order. An
// offset that does not follow the last one proves that someone else writes to
// this partition's changelog.
func (s *store) ack(writes []*write) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range writes {
		if err := s.usable(); err != nil {
			return err
		}
		if w.offset != s.acked+1 && !s.opts.weak.has(WithoutFence) {
			s.opts.metrics.fenced.Inc()
			s.failLocked(fmt.Errorf("table %s: changelog offset %d was acked where %d was due: another owner writes to this partition", s.where, w.offset, s.acked+1))
			return s.failed
		}
		s.acked = w.offset
		if !s.opts.weak.has(WithoutGate) {
			s.settle(w)
		}
		s.unmark(w.key)
		if err := s.freezeIfFull(); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) settle(w *write) {
	s.settleRow(w.row, w.value, len(w.key))
	for i := range w.derived {
		d := &w.derived[i]
		s.settleRow(d.row, d.stored, len(d.Group)+len(d.Item))
	}
}

const rowOverhead = 96 // bytes of RAM a row takes beside its name and value

func (s *store) settleRow(r *row, value []byte, name int) {
	if r.acked == nil {
		s.bytes += name + len(value) + rowOverhead
	}
	r.acked = value
	if r.pending > 0 {
		r.pending--
	}
}

func (s *store) locked(f func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return f()
}

// offset is the changelog offset that acked rows reach; -1 for none.
func (s *store) offset() int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.acked
}

// fail stops every further write; what was acked before stays readable on
// disk.
func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(err)
}

func (s *store) failLocked(err error) {
	if s.failed != nil {
		return
	}
	s.failed = err
	close(s.dead)
	s.thawed.Broadcast()
	if s.opts.onFail != nil {
		s.opts.onFail(err)
	}
}
