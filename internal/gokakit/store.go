package gokakit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
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
// Lock order: lane.mu, then store.mu.
type store struct {
	where  string // topic/partition, for errors
	schema Schema
	opts   storeOptions

	mu     sync.RWMutex
	thawed *sync.Cond // signalled when frozen has reached Pebble
	db     *pebble.DB // nil when closed
	values map[string]*row
	groups map[string]map[string]*row
	frozen *frozen // being written to Pebble; nil when none
	filter *filter // nil until built
	next   *filter // being built
	acked  int64   // changelog offset that acked rows reach; -1 for none
	onDisk int64   // changelog offset in Pebble
	bytes  int     // of acked rows that are not frozen
	stale  map[string]struct{}
	failed error // set once; nothing is written any more
	tasks  sync.WaitGroup
}

type storeOptions struct {
	dir         string
	cache       *pebble.Cache
	writeBehind int // bytes of acked rows before they are frozen
	weak        Weakness
	metrics     *metrics
	fs          pebbleFS
}

// row is what RAM knows of a value or of a derived row (sequence in the first
// eight bytes, then the value).
type row struct {
	latest  []byte // newest write
	acked   []byte // newest acked write since the last freeze; nil for none
	pending int    // writes that are not acked yet
}

// frozen is an immutable set of acked rows on its way to Pebble.
type frozen struct {
	values map[string]*row
	groups map[string]map[string]*row
	offset int64
}

// write is a put that waits for its ack.
type write struct {
	key     string
	value   []byte
	row     *row
	derived []derivedWrite
}

type derivedWrite struct {
	Derived
	stored []byte
	row    *row
}

var errClosed = errors.New("the partition's store is closed")

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
	return s.fromDisk(append(append(buf[:0], valueName), key...))
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
	return s.fromDisk(appendRowName(buf[:0], group, item))
}

func appendRowName(b []byte, group, item string) []byte {
	b = append(append(b, rowName), group...)
	return append(append(b, 0), item...)
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

// put makes a value and its derived rows readable and returns the write, to be
// acked once its changelog record is.
func (s *store) put(key string, value []byte) (*write, error) {
	w := &write{key: key, value: value}
	if err := s.schema.Derive(key, value, func(d Derived) {
		w.derived = append(w.derived, derivedWrite{Derived: d, stored: storedRow(d)})
	}); err != nil {
		return nil, fmt.Errorf("table %s: deriving rows: %w", s.where, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	w.row = s.valueRow(key)
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
		return w, s.freezeIfFull()
	}
	return w, nil
}

func storedRow(d Derived) []byte {
	b := make([]byte, 8, 8+len(d.Value))
	binary.BigEndian.PutUint64(b, d.Seq)
	return append(b, d.Value...)
}

func rowSeq(stored []byte) uint64 { return binary.BigEndian.Uint64(stored) }

func (s *store) valueRow(key string) *row {
	r := s.values[key]
	if r == nil {
		r = new(row)
		s.values[key] = r
		s.remember(hashName(valueName, key, ""))
	}
	return r
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

// ack takes writes whose changelog records have these offsets, in emission
// order. An offset that does not follow the last one proves that someone else
// writes to this partition's changelog.
func (s *store) ack(writes []*write, offsets []int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, w := range writes {
		if err := s.usable(); err != nil {
			return err
		}
		if offsets[i] != s.acked+1 && !s.opts.weak.has(WithoutFence) {
			s.opts.metrics.fenced.Inc()
			s.failed = fmt.Errorf("table %s: changelog offset %d was acked where %d was due: another owner writes to this partition", s.where, offsets[i], s.acked+1)
			return s.failed
		}
		s.acked = offsets[i]
		if !s.opts.weak.has(WithoutGate) {
			s.settle(w)
		}
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

// replay takes a record read from the log (recovery, hot standby, views).
func (s *store) replay(key string, value []byte, offset int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if offset <= s.acked {
		return nil
	}
	if value != nil { // tables have no tombstones; a foreign one changes nothing
		if err := s.replayValue(key, value); err != nil {
			return fmt.Errorf("table %s: changelog record at offset %d: %w", s.where, offset, err)
		}
	}
	s.acked = offset
	return s.freezeIfFull()
}

func (s *store) replayValue(key string, value []byte) error {
	keep, err := s.supersedes(key, value)
	if err != nil {
		return err
	}
	if keep {
		s.replayRow(s.valueRow(key), value, len(key))
	}
	var rowErr error
	err = s.schema.Derive(key, value, func(d Derived) {
		cur, err := s.derivedLocked(d.Group, d.Item)
		if err != nil {
			rowErr = err
			return
		}
		if cur == nil || d.Seq > rowSeq(cur) {
			s.replayRow(s.derivedRow(d.Group, d.Item), storedRow(d), len(d.Group)+len(d.Item))
		}
	})
	return errors.Join(err, rowErr)
}

// supersedes compares a record of the log with what earlier ones said, and
// remembers keys whose newest record is not the winner (I3).
func (s *store) supersedes(key string, value []byte) (bool, error) {
	if s.opts.weak.has(WithoutVersion) {
		return true, nil
	}
	v, err := s.schema.Version(value)
	if err != nil {
		return false, err
	}
	cur, err := s.valueLocked(key)
	if err != nil || cur == nil {
		return err == nil, err
	}
	have, err := s.schema.Version(cur)
	if err != nil {
		return false, err
	}
	if v < have {
		s.stale[key] = struct{}{}
		return false, nil
	}
	delete(s.stale, key)
	return true, nil
}

func (s *store) replayRow(r *row, value []byte, name int) {
	r.latest = value
	s.settleRow(r, value, name)
}

// takeStale returns, once, the keys whose newest changelog record is older
// than what the store holds.
func (s *store) takeStale() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, 0, len(s.stale))
	for k := range s.stale {
		keys = append(keys, k)
	}
	clear(s.stale)
	return keys
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
	if s.failed == nil {
		s.failed = err
	}
	s.thawed.Broadcast()
}
