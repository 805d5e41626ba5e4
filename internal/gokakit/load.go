package gokakit

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unsafe"

	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kgo"
)

// load reads the log into a store that was just opened, as far as the log went
// then, before goka reads what has come since. A record costs a fifth of what
// it costs through goka and replay: it is neither a message of a channel nor
// two maps' entries, and goes to disk once, as part of a sorted table that
// Pebble takes as it is.
//
// When ctx ends it returns nil, and what was read stays.
func (t *stores) load(ctx context.Context, c Client, partition int, s *store) error {
	if s.whole() {
		return nil
	}
	select { // few at a time: each has a run in RAM
	case t.loading <- struct{}{}:
		defer func() { <-t.loading }()
	case <-ctx.Done():
		return nil
	}
	l := newLoader(s)
	err := readLog(ctx, c, t.table, partition, s.from+1, s.goal, func(records []*kgo.Record) error { return l.takeAll(ctx, records) })
	if err != nil && ctx.Err() == nil {
		return err
	}
	return l.finish()
}

// loader turns records into sorted runs. A run holds the winners of its
// records: of each key the highest version, of each derived row the highest
// seq. It becomes one table of Pebble, together with the marks and with the
// offset that it reaches, and is taken as one step. What earlier runs hold is
// looked up on disk, unless the filter knows that there is nothing.
//
// Nobody may write to the store meanwhile.
type loader struct {
	s     *store
	bytes []byte // names and values
	rows  []loadedRow
	slots []uint64 // hash table: half of the hash, then the number of a row, plus 1
	// bases are the values on disk that this run's replace, by where the run's
	// row has its name; of a table with an index only.
	bases  map[uint32][]byte
	offset int64 // that was taken last
	failed error // of Derive's callback
	derive func(Derived)
	name   []byte
}

type loadedRow struct {
	hash            uint64
	number          uint64 // version of a value, seq of a derived row
	name, nameEnd   uint32 // in bytes
	value, valueEnd uint32
	capacity        uint32 // of the value's place
}

const (
	runSize        = 8       // times writeBehind: bytes of a run
	minSlots       = 1 << 10 // a power of two
	bytesPerRecord = 192     // of a run, about
)

// newLoader makes room for what is to be read, up to a run.
func newLoader(s *store) *loader {
	l := &loader{s: s, slots: make([]uint64, minSlots), offset: s.acked, bases: map[uint32][]byte{}}
	room := min(int64(runSize*s.opts.writeBehind), max(0, s.goal-s.acked)*bytesPerRecord)
	l.bytes = make([]byte, 0, room+room/16)
	l.rows = make([]loadedRow, 0, 2*room/bytesPerRecord)
	for len(l.slots) < 2*cap(l.rows) {
		l.slots = make([]uint64, 2*len(l.slots))
	}
	l.derive = func(d Derived) {
		if l.failed == nil {
			l.failed = l.deriveRow(d)
		}
	}
	return l
}

// takeAll takes records of the log, in order.
func (l *loader) takeAll(ctx context.Context, records []*kgo.Record) error {
	const lot = 16 // records for one hold of the lock
	for len(records) > 0 {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n := min(lot, len(records))
		if err := l.s.locked(func() error { return l.takeLot(records[:n]) }); err != nil {
			return err
		}
		records = records[n:]
	}
	return nil
}

func (l *loader) takeLot(records []*kgo.Record) error {
	if err := l.s.usable(); err != nil {
		return err
	}
	for _, r := range records {
		if err := l.take(textOf(r.Key), r.Value, r.Offset); err != nil {
			return err
		}
	}
	l.s.replayed.Store(l.offset)
	return nil
}

// textOf is bytes that nobody changes as a string.
func textOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// take takes one record: replay, for a store that is being loaded.
func (l *loader) take(key string, value []byte, offset int64) error {
	err := l.s.belongs(key)
	if err == nil {
		err = l.takeValue(key, value)
	}
	if err != nil {
		return fmt.Errorf("table %s: changelog record at offset %d: %w", l.s.where, offset, err)
	}
	l.offset = offset
	if len(l.bytes) >= runSize*l.s.opts.writeBehind {
		return l.ingest()
	}
	return nil
}

func (l *loader) takeValue(key string, value []byte) error {
	s := l.s
	l.name = append(append(l.name[:0], valueName), key...)
	hash := hashName(valueName, key, "")
	row, have, stored, err := l.find(hash, s.schema.Version)
	if err != nil {
		return err
	}
	known := row != nil || stored != nil
	if value == nil { // a foreign tombstone loses against any value
		if known {
			s.mark(string(l.name[1:]))
		}
		return nil
	}
	version, err := s.schema.Version(value)
	switch {
	case err != nil:
		return err
	case known && version < have && !s.opts.weak.has(WithoutVersion):
		s.mark(string(l.name[1:]))
	default:
		if len(s.stale) > 0 {
			s.unmark(string(l.name[1:]))
		}
		if row == nil {
			s.remember(hash)
			if stored != nil && s.index != nil {
				l.bases[uint32(len(l.bytes))] = stored
			}
		}
		l.set(row, hash, version, nil, value)
	}
	l.failed = nil
	return errors.Join(s.schema.Derive(key, value, l.derive), l.failed)
}

func (l *loader) deriveRow(d Derived) error {
	l.name = appendRowName(l.name[:0], d.Group, d.Item)
	hash := hashName(rowName, d.Group, d.Item)
	row, have, stored, err := l.find(hash, func(stored []byte) (uint64, error) { return rowSeq(stored), nil })
	if err != nil || (row != nil || stored != nil) && d.Seq <= have {
		return err
	}
	if row == nil {
		l.s.remember(hashName(groupName, d.Group, ""))
		l.s.remember(hash)
	}
	var seq [8]byte
	binary.BigEndian.PutUint64(seq[:], d.Seq)
	l.set(row, hash, d.Seq, seq[:], d.Value)
	return nil
}

// find looks l.name up: the row of this run, else what is on disk, and the
// number of it.
func (l *loader) find(hash uint64, number func(stored []byte) (uint64, error)) (row *loadedRow, have uint64, stored []byte, err error) {
	if row = l.inRun(hash); row != nil {
		return row, row.number, nil, nil
	}
	if f := l.s.filter; f != nil && !f.may(hash) {
		return nil, 0, nil, nil
	}
	// Not through the row cache, which a run's table does not reach.
	if stored, err = l.s.fromDisk(l.name); err != nil || stored == nil {
		return nil, 0, nil, err
	}
	have, err = number(stored)
	return nil, have, stored, err
}

func (l *loader) inRun(hash uint64) *loadedRow {
	mask := uint64(len(l.slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		slot := l.slots[i]
		if slot == 0 {
			return nil
		}
		if slot>>32 != hash>>32 {
			continue
		}
		if r := &l.rows[uint32(slot)-1]; r.hash == hash && bytes.Equal(l.bytes[r.name:r.nameEnd], l.name) {
			return r
		}
	}
}

// set gives a row its newest value, or adds the row of l.name.
func (l *loader) set(row *loadedRow, hash, number uint64, prefix, value []byte) {
	if row == nil {
		row = l.add(hash)
	}
	row.number = number
	size := uint32(len(prefix) + len(value))
	if size > row.capacity {
		row.value, row.capacity = uint32(len(l.bytes)), size
		l.bytes = append(append(l.bytes, prefix...), value...)
	} else {
		n := copy(l.bytes[row.value:], prefix)
		copy(l.bytes[int(row.value)+n:], value)
	}
	row.valueEnd = row.value + size
}

func (l *loader) add(hash uint64) *loadedRow {
	if 2*len(l.rows) >= len(l.slots) {
		l.slots = make([]uint64, 2*len(l.slots))
		for n := range l.rows {
			l.place(n)
		}
	}
	at := uint32(len(l.bytes))
	l.bytes = append(l.bytes, l.name...)
	l.rows = append(l.rows, loadedRow{hash: hash, name: at, nameEnd: uint32(len(l.bytes))})
	l.place(len(l.rows) - 1)
	return &l.rows[len(l.rows)-1]
}

func (l *loader) place(n int) {
	mask := uint64(len(l.slots) - 1)
	hash := l.rows[n].hash
	i := hash & mask
	for l.slots[i] != 0 {
		i = (i + 1) & mask
	}
	l.slots[i] = hash>>32<<32 | uint64(n+1)
}

// finish brings the rest to disk.
func (l *loader) finish() error {
	return l.s.locked(func() error {
		if err := l.s.usable(); err != nil {
			return err
		}
		return l.ingest()
	})
}

// ingest brings the run to disk and begins the next. The caller holds the
// store's lock.
func (l *loader) ingest() (err error) {
	s := l.s
	if l.offset == s.acked {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("table %s: writing the store: %w", s.where, err)
			s.failLocked(err)
		}
	}()
	rows := l.sorted()
	index, err := l.indexChanges(rows)
	if err != nil {
		return err
	}
	if s.opts.weak.has(WithoutAtomicity) {
		if err := l.ingestTable(nil, nil); err != nil {
			return err
		}
	}
	if err := l.ingestTable(rows, index); err != nil {
		return err
	}
	s.acked, s.onDisk = l.offset, l.offset
	s.bytes = 0
	clear(s.marks)
	s.opening = newOpening() // whatever was read meanwhile is not cached any more
	l.bytes, l.rows = l.bytes[:0], l.rows[:0]
	clear(l.slots)
	clear(l.bases)
	if s.filter != nil && s.filter.full() && s.next == nil {
		s.buildFilter(2 * s.filter.keys)
	}
	return nil
}

// sorted gives the rows by name. What names differ in is copied beside them
// first, as far as it decides most comparisons: a look at each name costs a
// cache miss.
func (l *loader) sorted() []loadedRow {
	type entry struct {
		a, b uint64
		row  uint32
	}
	alike := map[byte]int{valueName: l.alike(valueName), rowName: l.alike(rowName)}
	name := func(n uint32) []byte { return l.bytes[l.rows[n].name:l.rows[n].nameEnd] }
	entries := make([]entry, len(l.rows))
	for n := range entries {
		full := name(uint32(n))
		var window [16]byte
		window[0] = full[0]
		copy(window[1:], full[alike[full[0]]:])
		entries[n] = entry{binary.BigEndian.Uint64(window[:]), binary.BigEndian.Uint64(window[8:]), uint32(n)}
	}
	slices.SortFunc(entries, func(x, y entry) int {
		switch {
		case x.a != y.a:
			return cmp.Compare(x.a, y.a)
		case x.b != y.b:
			return cmp.Compare(x.b, y.b)
		}
		return bytes.Compare(name(x.row), name(y.row))
	})
	rows := make([]loadedRow, len(entries))
	for i, e := range entries {
		rows[i] = l.rows[e.row]
	}
	return rows
}

// alike is how many bytes the names of a kind begin with alike.
func (l *loader) alike(kind byte) int {
	var first []byte
	for _, r := range l.rows {
		name := l.bytes[r.name:r.nameEnd]
		if name[0] != kind {
			continue
		}
		if first == nil {
			first = name
		}
		n := 0
		for n < len(first) && n < len(name) && first[n] == name[n] {
			n++
		}
		first = first[:n]
	}
	return len(first)
}

// indexChanges are the changes of the index that the run's values imply, by
// name.
func (l *loader) indexChanges(rows []loadedRow) (changes []indexWrite, err error) {
	if l.s.index == nil {
		return nil, nil
	}
	for _, r := range rows {
		if name := l.bytes[r.name:r.nameEnd]; name[0] == valueName {
			if changes, err = l.s.indexChanges(changes, string(name[1:]), l.bases[r.name], l.bytes[r.value:r.valueEnd]); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(changes, func(a, b indexWrite) int { return cmp.Compare(a.name, b.name) })
	return changes, nil
}

// ingestTable writes rows, the index and what the store says of itself as a
// table, and has Pebble take it.
func (l *loader) ingestTable(rows []loadedRow, index []indexWrite) error {
	s := l.s
	path := s.opts.dir + ".load.sst"
	f, err := s.opts.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	w := sstable.NewWriter(objstorageprovider.NewFileWritable(f), sstable.WriterOptions{
		TableFormat: s.db.TableFormat(), FilterPolicy: bloom.FilterPolicy(filterBitsOnDisk), BlockSize: blockSize, Compression: sstable.NoCompression,
	})
	if err := errors.Join(l.writeTable(w, rows, index), w.Close()); err != nil {
		return err
	}
	return s.db.Ingest(context.Background(), []string{path})
}

// writeTable writes in the order of names: derived rows (d), index (i), values
// (k), then the store's own rows.
func (l *loader) writeTable(w *sstable.Writer, rows []loadedRow, index []indexWrite) error {
	values, _ := slices.BinarySearchFunc(rows, byte(valueName), func(r loadedRow, first byte) int { return cmp.Compare(l.bytes[r.name], first) })
	if err := l.writeRows(w, rows[:values]); err != nil {
		return err
	}
	for _, c := range index {
		if err := setOrDelete(w, []byte(c.name), c.value, c.gone); err != nil {
			return err
		}
	}
	if err := l.writeRows(w, rows[values:]); err != nil {
		return err
	}
	if err := w.Set(offsetName, binary.BigEndian.AppendUint64(nil, uint64(l.offset))); err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(l.s.marks)) {
		if err := setOrDelete(w, append([]byte{markName}, key...), nil, !l.s.marks[key]); err != nil {
			return err
		}
	}
	return w.Set(topicName, l.s.topicID[:])
}

func (l *loader) writeRows(w *sstable.Writer, rows []loadedRow) error {
	for _, r := range rows {
		if err := w.Set(l.bytes[r.name:r.nameEnd], l.bytes[r.value:r.valueEnd]); err != nil {
			return err
		}
	}
	return nil
}

func setOrDelete(w *sstable.Writer, name, value []byte, gone bool) error {
	if gone {
		return w.Delete(name)
	}
	return w.Set(name, value)
}
