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

// ackedUnder reads acked values by the beginnings of their keys. What is in RAM is
// in no order and looked at whole, once for all prefixes.
func (s *store) ackedUnder(prefixes []string, most int) (map[string]map[string][]byte, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	sorted := slices.Sorted(slices.Values(prefixes))
	under := make(map[string]map[string][]byte, len(prefixes))
	for _, p := range sorted {
		under[p] = map[string][]byte{}
	}
	take := func(key string, r *row) {
		at, found := slices.BinarySearch(sorted, key)
		if !found {
			at-- // the last prefix that is not behind the key
		}
		if at >= 0 && r.acked != nil && strings.HasPrefix(key, sorted[at]) {
			under[sorted[at]][key] = r.acked
		}
	}
	if s.frozen != nil {
		for key, r := range s.frozen.values {
			take(key, r)
		}
	}
	for key, r := range s.values {
		take(key, r)
	}
	for prefix, rows := range under {
		if err := s.underOnDisk(prefix, most, rows); err != nil {
			return nil, err
		}
	}
	return under, nil
}

// underOnDisk adds to rows what is on disk and nowhere newer, until they are more
// than most.
func (s *store) underOnDisk(prefix string, most int, rows map[string][]byte) (err error) {
	lower := append([]byte{valueName}, prefix...)
	upper := slices.Clone(lower)
	upper[len(upper)-1]++ // keys are text: no byte of theirs is 255
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("table %s: reading the store: %w", s.where, err)
	}
	for it.First(); it.Valid() && len(rows) <= most; it.Next() {
		if key := string(it.Key()[1:]); rows[key] == nil {
			rows[key] = bytes.Clone(it.Value())
		}
	}
	return errors.Join(it.Error(), it.Close())
}

// scan visits every acked value in key order, from a snapshot of the store.
// Derived rows are never seen. A store that closes meanwhile ends it.
func (s *store) scan(visit func(key string, value []byte) error) (err error) {
	snap, err := s.snapshot()
	if err != nil {
		return err
	}
	defer s.tasks.Done()
	defer func() { err = errors.Join(err, snap.Close()) }()
	it, err := snap.NewIter(&pebble.IterOptions{LowerBound: []byte{valueName}, UpperBound: []byte{valueName + 1}})
	if err != nil {
		return fmt.Errorf("table %s: reading the store: %w", s.where, err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		if s.closing.Load() {
			return fmt.Errorf("table %s: %w", s.where, errClosed)
		}
		if err := visit(string(it.Key()[1:]), bytes.Clone(it.Value())); err != nil {
			return err
		}
	}
	return it.Error()
}

// snapshot brings acked rows to Pebble and takes a snapshot there. The caller
// must call tasks.Done when it has closed it.
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
	s.tasks.Add(1)
	return s.db.NewSnapshot(), nil
}
