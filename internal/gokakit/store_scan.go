package gokakit

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// buildFilter builds the negative filter beside the running store; until it is
// ready every name may be on disk. The caller holds the lock.
func (s *store) buildFilter(names int) {
	next := newFilter(names)
	next.addAll(s.values, s.groups)
	if s.frozen != nil { // may be in the snapshot or not
		next.addAll(s.frozen.values, s.frozen.groups)
	}
	s.next = next
	snap := s.db.NewSnapshot()
	s.tasks.Go(func() {
		hashes, err := hashesOnDisk(snap)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.next = nil
		if err != nil || s.db == nil {
			return // the next opening tries again
		}
		if n := next.keys + len(hashes); n > next.built {
			s.buildFilter(2 * n)
			return
		}
		for _, h := range hashes {
			next.add(h)
		}
		s.filter = next
	})
}

func (f *filter) addAll(values map[string]*row, groups map[string]map[string]*row) {
	for key := range values {
		f.add(hashName(valueName, key, ""))
	}
	for group, items := range groups {
		f.add(hashName(groupName, group, ""))
		for item := range items {
			f.add(hashName(rowName, group, item))
		}
	}
}

// hashesOnDisk reads every name of a snapshot, which it closes.
func hashesOnDisk(snap *pebble.Snapshot) (hashes []uint64, err error) {
	defer func() { err = errors.Join(err, snap.Close()) }()
	it, err := snap.NewIter(nil)
	if err != nil {
		return nil, err
	}
	defer it.Close()
	last := ""
	for it.First(); it.Valid(); it.Next() {
		name := it.Key()
		switch name[0] {
		case valueName:
			hashes = append(hashes, hashName(valueName, string(name[1:]), ""))
		case rowName:
			group, item, _ := strings.Cut(string(name[1:]), "\x00")
			if group != last {
				hashes = append(hashes, hashName(groupName, group, ""))
				last = group
			}
			hashes = append(hashes, hashName(rowName, group, item))
		}
	}
	return hashes, it.Error()
}

// scanGroup visits the acked rows of a group in item order and returns the
// changelog offset that they reach.
func (s *store) scanGroup(group string, visit func(item string, value []byte) error) (int64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return 0, err
	}
	rows := map[string][]byte{}
	if s.filter == nil || s.filter.may(hashName(groupName, group, "")) {
		if err := s.groupOnDisk(group, rows); err != nil {
			return 0, err
		}
	}
	if s.frozen != nil {
		for item, r := range s.frozen.groups[group] {
			rows[item] = r.acked
		}
	}
	for item, r := range s.groups[group] {
		if r.acked != nil {
			rows[item] = r.acked
		}
	}
	for _, item := range slices.Sorted(maps.Keys(rows)) {
		if err := visit(item, rows[item][8:]); err != nil {
			return 0, err
		}
	}
	return s.acked, nil
}

func (s *store) groupOnDisk(group string, rows map[string][]byte) error {
	lower := appendRowName(nil, group, "")
	upper := slices.Clone(lower)
	upper[len(upper)-1] = 1
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("table %s: reading the store: %w", s.where, err)
	}
	for it.First(); it.Valid(); it.Next() {
		rows[string(it.Key()[len(lower):])] = bytes.Clone(it.Value())
	}
	return errors.Join(it.Error(), it.Close())
}

// scan visits every acked value in key order, from a snapshot of the store.
// Derived rows are never seen.
func (s *store) scan(visit func(key string, value []byte) error) (err error) {
	snap, err := s.snapshot()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, snap.Close()) }()
	it, err := snap.NewIter(&pebble.IterOptions{LowerBound: []byte{valueName}, UpperBound: []byte{valueName + 1}})
	if err != nil {
		return fmt.Errorf("table %s: reading the store: %w", s.where, err)
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if err := visit(string(it.Key()[1:]), bytes.Clone(it.Value())); err != nil {
			return err
		}
	}
	return it.Error()
}

// snapshot brings acked rows to Pebble and takes a snapshot there.
func (s *store) snapshot() (*pebble.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.freeze(); err != nil {
		return nil, err
	}
	for s.frozen != nil && s.failed == nil && s.db != nil {
		s.thawed.Wait()
	}
	if err := s.usable(); err != nil {
		return nil, err
	}
	return s.db.NewSnapshot(), nil
}
