package gokakit

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// indexWrite is a change of one row of the index.
type indexWrite struct {
	name  string
	value []byte
	gone  bool
}

// reindex adds to a batch what its values change in the index. Several writes
// of one value that go to disk together are one change here.
func (s *store) reindex(b *pebble.Batch, f *frozen) error {
	changes := make([]indexWrite, 0, len(f.values))
	for key, r := range f.values {
		var err error
		if changes, err = s.indexChanges(changes, key, r.base, r.acked); err != nil {
			return err
		}
	}
	slices.SortFunc(changes, func(a, b indexWrite) int { return cmp.Compare(a.name, b.name) })
	for _, c := range changes {
		err := b.Set([]byte(c.name), c.value, nil)
		if c.gone {
			err = b.Delete([]byte(c.name), nil)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// indexChanges appends what a value changes that replaces base on disk; base is
// nil when there is none.
func (s *store) indexChanges(changes []indexWrite, key string, base, value []byte) ([]indexWrite, error) {
	if bytes.Equal(base, value) {
		return changes, nil
	}
	old, had, err := s.indexRow(key, base)
	if err != nil {
		return nil, err
	}
	row, has, err := s.indexRow(key, value)
	if err != nil {
		return nil, err
	}
	if had && (!has || row.name != old.name) {
		changes = append(changes, indexWrite{name: old.name, gone: true})
	}
	if has {
		changes = append(changes, row)
	}
	return changes, nil
}

func (s *store) indexRow(key string, value []byte) (indexWrite, bool, error) {
	if value == nil {
		return indexWrite{}, false, nil
	}
	row, ok, err := s.index.Index(key, value)
	if err != nil || !ok {
		return indexWrite{}, false, err
	}
	return indexWrite{name: string(appendIndexName(nil, row.Group, row.Item)), value: row.Value}, true, nil
}

func appendIndexName(b []byte, group, item string) []byte {
	b = append(append(b, indexName), group...)
	return append(append(b, 0), item...)
}

// show begins to bring acked rows to disk and says whether all are there.
func (s *store) show() (all bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return false, err
	}
	if s.acked == s.onDisk || s.frozen != nil {
		return s.acked == s.onDisk, nil
	}
	return false, s.freeze()
}

// read lets f see what is on disk.
func (s *store) read(f func(*Snapshot) error) (err error) {
	s.mu.RLock()
	if err := s.usable(); err != nil {
		s.mu.RUnlock()
		return err
	}
	s.tasks.Add(1) // close waits
	snap := s.db.NewSnapshot()
	s.mu.RUnlock()
	defer s.tasks.Done()
	defer func() { err = errors.Join(err, snap.Close()) }()
	return f(&Snapshot{where: s.where, snap: snap})
}

// Snapshot is a partition of a table as it stands on disk at one moment.
type Snapshot struct {
	where string
	snap  *pebble.Snapshot
}

// Get reads a key's value; nil when there is none.
func (s *Snapshot) Get(key string) ([]byte, error) { return s.get(append([]byte{valueName}, key...)) }

// Offset is the changelog offset that the snapshot reaches; -1 for none.
func (s *Snapshot) Offset() (int64, error) {
	v, err := s.get(offsetName)
	if err != nil || v == nil {
		return -1, err
	}
	return int64(binary.BigEndian.Uint64(v)), nil
}

func (s *Snapshot) get(name []byte) ([]byte, error) {
	v, closer, err := s.snap.Get(name)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, s.reading(err)
	}
	return bytes.Clone(v), closer.Close()
}

func (s *Snapshot) reading(err error) error {
	return fmt.Errorf("table %s: reading the store: %w", s.where, err)
}

// Values visits the values whose keys stand behind after, in order of keys, until
// visit returns false. visit must not keep value.
func (s *Snapshot) Values(after string, visit func(key string, value []byte) bool) (err error) {
	lower := append([]byte{valueName}, after...)
	if after != "" {
		lower = append(lower, 0) // the least name behind after
	}
	it, err := s.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: []byte{valueName + 1}})
	if err != nil {
		return s.reading(err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid() && visit(string(it.Key()[1:]), it.Value()); it.Next() {
	}
	if err := it.Error(); err != nil {
		return s.reading(err)
	}
	return nil
}

// Ascend visits the index rows of a group whose items stand behind after, in
// order, until visit returns false. It seeks: what lies before costs nothing.
// visit must not keep value.
func (s *Snapshot) Ascend(group, after string, visit func(item string, value []byte) bool) (err error) {
	lower := appendIndexName(nil, group, "")
	start := len(lower)
	upper := bytes.Clone(lower)
	upper[start-1] = 1
	if after != "" {
		lower = append(append(lower, after...), 0) // the least name behind after
	}
	it, err := s.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return s.reading(err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid() && visit(string(it.Key()[start:]), it.Value()); it.Next() {
	}
	if err := it.Error(); err != nil {
		return s.reading(err)
	}
	return nil
}
