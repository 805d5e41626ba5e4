package gokakit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

type pebbleFS = vfs.FS

// Names of a store's own rows.
var (
	offsetName = []byte("o") // changelog offset, big endian
	topicName  = []byte("t") // id of the changelog topic
)

func newStore(where string, schema Schema, opts storeOptions) *store {
	s := &store{where: where, schema: schema, opts: opts, acked: -1, onDisk: -1,
		values: map[string]*row{}, groups: map[string]map[string]*row{}, stale: map[string]struct{}{}}
	s.thawed = sync.NewCond(&s.mu)
	return s
}

// open opens the store on disk and compares it with the log it belongs to: a
// store of another topic, or one ahead of the log, is thrown away and read
// anew (G14, G16 of the bug log).
func (s *store) open(log *slog.Logger, b logBounds) error {
	if err := s.openDB(log); err != nil {
		return err
	}
	reason, err := s.foreign(b)
	if err != nil {
		return errors.Join(err, s.db.Close())
	}
	if reason != "" {
		log.Warn("local state is not of this log, reading the log from its start", "table", s.where, "reason", reason)
		if err := s.recreate(log); err != nil {
			return err
		}
	}
	if err := s.db.Set(topicName, b.topicID[:], pebble.NoSync); err != nil {
		return fmt.Errorf("table %s: writing the store: %w", s.where, err)
	}
	if b.start == b.end {
		s.acked = max(s.acked, b.end-1) // an emptied log goes on where it ended
	}
	s.buildFilter(0)
	return nil
}

func (s *store) foreign(b logBounds) (string, error) {
	stored, err := s.fromDisk(offsetName)
	if err != nil || stored == nil {
		return "", err
	}
	s.acked = int64(binary.BigEndian.Uint64(stored))
	s.onDisk = s.acked
	id, err := s.fromDisk(topicName)
	switch {
	case err != nil:
		return "", err
	case string(id) != string(b.topicID[:]):
		return "the changelog topic was made anew", nil
	case s.acked >= b.end:
		return fmt.Sprintf("local offset %d is not below the log's end %d", s.acked, b.end), nil
	case s.acked+1 < b.start:
		return fmt.Sprintf("the log starts at %d, after the local offset %d: what lies between is gone", b.start, s.acked), nil
	}
	return "", nil
}

func (s *store) recreate(log *slog.Logger) error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("table %s: closing the old store: %w", s.where, err)
	}
	s.db = nil
	if err := s.opts.fs.RemoveAll(s.opts.dir); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("table %s: removing the old store: %w", s.where, err)
	}
	s.acked, s.onDisk = -1, -1
	return s.openDB(log)
}

func (s *store) openDB(log *slog.Logger) error {
	if err := s.opts.fs.MkdirAll(s.opts.dir, 0o755); err != nil {
		return fmt.Errorf("table %s: making the state directory: %w", s.where, err)
	}
	o := &pebble.Options{
		FS:         s.opts.fs,
		Cache:      s.opts.cache,
		DisableWAL: true,
		// A batch of half a memtable skips it; see writeBatch.
		MemTableSize:          uint64(s.opts.writeBehind),
		L0CompactionThreshold: 4,
		MaxOpenFiles:          500,
		Logger:                pebbleLog{log.With("table", s.where)},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
		o.Levels[i].BlockSize = 4 << 10
	}
	db, err := pebble.Open(s.opts.dir, o)
	if err != nil {
		return fmt.Errorf("table %s: opening the store in %s: %w", s.where, s.opts.dir, err)
	}
	s.db = db
	return nil
}

// pebbleLog carries Pebble's lines to slog; Fatalf is a store that must not be
// used any more, and Pebble relies on it not to return.
type pebbleLog struct{ log *slog.Logger }

func (l pebbleLog) Infof(f string, a ...any)  { l.log.Debug(fmt.Sprintf(f, a...)) }
func (l pebbleLog) Errorf(f string, a ...any) { l.log.Error(fmt.Sprintf(f, a...)) }
func (l pebbleLog) Fatalf(f string, a ...any) { panic("state store: " + fmt.Sprintf(f, a...)) }

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
	f := &frozen{values: s.values, groups: s.groups, offset: s.acked}
	s.values, s.groups = make(map[string]*row, len(f.values)), make(map[string]map[string]*row, len(f.groups))
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
		all[name] = &row{latest: r.acked, acked: r.acked}
		r.acked = nil
	}
}

func (s *store) writeFrozen(db *pebble.DB, f *frozen) {
	start := time.Now()
	err := s.writeBatch(db, f)
	s.opts.metrics.flush.Observe(time.Since(start).Seconds())
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.failed == nil {
		s.failed = err
	}
	if err == nil {
		s.frozen, s.onDisk = nil, f.offset
		if s.filter != nil && s.filter.full() && s.next == nil {
			s.buildFilter(2 * s.filter.keys)
		}
	}
	s.thawed.Broadcast()
}

// writeBatch writes the rows in key order, with the offset that they reach, as
// one atomic batch. A sorted batch larger than half a memtable goes to disk as
// it is, without the memtable's inserts.
func (s *store) writeBatch(db *pebble.DB, f *frozen) error {
	names, rows := sortedRows(f)
	b := db.NewBatchWithSize(s.opts.writeBehind + s.opts.writeBehind/4)
	defer b.Close()
	for _, i := range rows {
		if err := b.Set(names[i.at:i.to], i.value, nil); err != nil {
			return fmt.Errorf("table %s: writing the store: %w", s.where, err)
		}
	}
	if err := b.Set(offsetName, binary.BigEndian.AppendUint64(nil, uint64(f.offset)), nil); err != nil {
		return fmt.Errorf("table %s: writing the store: %w", s.where, err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("table %s: writing the store: %w", s.where, err)
	}
	return nil
}

type namedRow struct {
	at, to int // the name within the names' bytes
	value  []byte
}

func sortedRows(f *frozen) ([]byte, []namedRow) {
	var names []byte
	rows := make([]namedRow, 0, len(f.values)+len(f.groups))
	for key, r := range f.values {
		at := len(names)
		names = append(append(names, valueName), key...)
		rows = append(rows, namedRow{at, len(names), r.acked})
	}
	for group, items := range f.groups {
		for item, r := range items {
			at := len(names)
			names = appendRowName(names, group, item)
			rows = append(rows, namedRow{at, len(names), r.acked})
		}
	}
	slices.SortFunc(rows, func(a, b namedRow) int {
		return slices.Compare(names[a.at:a.to], names[b.at:b.to])
	})
	return names, rows
}

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
	if err := db.Flush(); err != nil {
		return fmt.Errorf("table %s: flushing the store: %w", s.where, err)
	}
	return nil
}

// close flushes what is acked and closes the store; a second call does
// nothing. Writes that are not acked are forgotten: the log decides.
func (s *store) close() error {
	var err error
	if s.healthy() {
		err = s.flush()
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
	return err
}

func (s *store) healthy() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.usable() == nil
}
