package gokakit

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// freezeIfFull hands acked rows to a background write when there are enough of
// them; it waits while an earlier set is still being written. The caller holds
// the lock.
func (s *store) freezeIfFull() error {
	if s.bytes < s.opts.writeBehind {
		return nil
	}
	return s.freeze()
}

func (s *store) freeze() error {
	for s.frozen != nil && s.failed == nil && s.db != nil {
		s.thawed.Wait()
	}
	if err := s.usable(); err != nil {
		return err
	}
	if s.acked == s.onDisk {
		return nil
	}
	f := &frozen{values: s.values, groups: s.groups, marks: s.marks, offset: s.acked}
	s.values, s.groups = make(map[string]*row, len(f.values)), make(map[string]map[string]*row, len(f.groups))
	s.marks = map[string]bool{}
	split(f.values, s.values)
	for group, rows := range f.groups {
		live := make(map[string]*row)
		split(rows, live)
		if len(live) > 0 {
			s.groups[group] = live
		}
	}
	s.bytes = 0
	s.frozen = f
	db := s.db
	s.tasks.Go(func() { s.writeFrozen(db, f) })
	return nil
}

// split leaves acked rows in all and moves those with writes under way to
// live; a row that is both is copied, since its acks go on.
func split(all, live map[string]*row) {
	for name, r := range all {
		if r.pending == 0 {
			continue
		}
		live[name] = r
		if r.acked == nil {
			delete(all, name)
			continue
		}
		all[name] = &row{latest: r.acked, acked: r.acked, base: r.base}
		r.base, r.acked = r.acked, nil
	}
}

func (s *store) writeFrozen(db *pebble.DB, f *frozen) {
	start := time.Now()
	err := s.writeBatch(db, f)
	s.opts.metrics.flush.Observe(time.Since(start).Seconds())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.failLocked(err)
	} else {
		s.frozen, s.onDisk = nil, f.offset
		if s.filter != nil && s.filter.full() && s.next == nil && !s.closing.Load() {
			s.buildFilter(2 * s.filter.keys)
		}
	}
	s.thawed.Broadcast()
}

// writeBatch writes the rows in key order, with the offset that they reach, as
// one atomic batch. A sorted batch larger than half a memtable goes to disk as
// it is, without the memtable's inserts.
func (s *store) writeBatch(db *pebble.DB, f *frozen) error {
	names, rows := s.sortedRows(f)
	b := db.NewBatchWithSize(s.opts.writeBehind + s.opts.writeBehind/4)
	defer func() { _ = b.Close() }()
	if s.opts.weak.has(WithoutAtomicity) {
		if err := s.tear(db, &b, f); err != nil {
			return err
		}
	}
	for _, r := range rows {
		if err := b.Set(names[r.at+cachePrefix:r.to], r.value, nil); err != nil {
			return fmt.Errorf("table %s: writing the store: %w", s.where, err)
		}
	}
	if s.index != nil {
		if err := s.reindex(b, f); err != nil {
			return fmt.Errorf("table %s: writing the index: %w", s.where, err)
		}
	}
	if err := addMarks(b, f); err != nil {
		return fmt.Errorf("table %s: writing the store: %w", s.where, err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("table %s: writing the store: %w", s.where, err)
	}
	for _, r := range rows {
		s.opts.rows.set(names[r.at:r.to], r.value)
	}
	return nil
}

// tear commits the part of a batch without which the rest is lost: marks and
// offset, apart and durably.
func (s *store) tear(db *pebble.DB, b **pebble.Batch, f *frozen) error {
	if err := addMarks(*b, f); err != nil {
		return err
	}
	if err := (*b).Commit(pebble.NoSync); err != nil {
		return err
	}
	_ = (*b).Close()
	*b = db.NewBatch()
	return db.Flush()
}

// addMarks adds what is neither value nor derived row.
func addMarks(b *pebble.Batch, f *frozen) error {
	for key, stale := range f.marks {
		name := append([]byte{markName}, key...)
		err := b.Delete(name, nil)
		if stale {
			err = b.Set(name, nil, nil)
		}
		if err != nil {
			return err
		}
	}
	return b.Set(offsetName, binary.BigEndian.AppendUint64(nil, uint64(f.offset)), nil)
}

type namedRow struct {
	at, to int // the store's cache prefix and the name within the names' bytes
	value  []byte
}

func (s *store) sortedRows(f *frozen) ([]byte, []namedRow) {
	var names []byte
	rows := make([]namedRow, 0, len(f.values)+len(f.groups))
	for key, r := range f.values {
		at := len(names)
		names = append(append(append(names, s.opening[:]...), valueName), key...)
		rows = append(rows, namedRow{at, len(names), r.acked})
	}
	for group, items := range f.groups {
		for item, r := range items {
			at := len(names)
			names = appendRowName(append(names, s.opening[:]...), group, item)
			rows = append(rows, namedRow{at, len(names), r.acked})
		}
	}
	slices.SortFunc(rows, func(a, b namedRow) int {
		return bytes.Compare(names[a.at:a.to], names[b.at:b.to])
	})
	return names, rows
}

// closeFlush is how long a closing store may take to bring its rows to disk;
// what it has not brought there by then is read from the log again.
const closeFlush = 2 * time.Second

// flush brings every acked row to disk, durably.
func (s *store) flush() error {
	s.mu.Lock()
	err := s.freeze()
	for err == nil && s.frozen != nil && s.failed == nil {
		s.thawed.Wait()
	}
	if err == nil {
		err = s.usable()
	}
	db := s.db
	s.mu.Unlock()
	if err != nil {
		return err
	}
	flushed, err := db.AsyncFlush()
	if err != nil {
		return fmt.Errorf("table %s: flushing the store: %w", s.where, err)
	}
	select {
	case <-flushed:
		return nil
	case <-s.dead:
		s.mu.RLock()
		defer s.mu.RUnlock()
		return s.failed
	}
}

// close flushes what is acked and closes the store; a second call does
// nothing. Writes that are not acked are forgotten: the log decides. A damaged
// store is removed, so that the next opening reads the log.
func (s *store) close() error {
	s.closing.Store(true)
	var err error
	if s.healthy() {
		late := time.AfterFunc(closeFlush, func() {
			s.fail(fmt.Errorf("table %s: the store was not flushed within %v of closing", s.where, closeFlush))
		})
		err = s.flush()
		late.Stop()
	}
	s.mu.Lock()
	db := s.db
	s.db = nil
	s.thawed.Broadcast()
	s.mu.Unlock()
	s.tasks.Wait()
	if db == nil {
		return nil
	}
	if e := db.Close(); e != nil && err == nil {
		err = fmt.Errorf("table %s: closing the store: %w", s.where, e)
	}
	if s.damaged.Load() {
		err = errors.Join(err, s.discard())
	}
	return err
}

func (s *store) healthy() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.usable() == nil
}
