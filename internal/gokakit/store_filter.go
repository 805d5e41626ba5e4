package gokakit

import (
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// needFilter has the filter built, if it is not there. A log that is long beside
// what is on disk is read with it: its names are mostly new. Otherwise it waits
// for the end of the log, since it visits every name on disk, and whoever waits
// for the store to be ready would wait for that.
func (s *store) needFilter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.usable() == nil && s.filter == nil && s.next == nil {
		s.buildFilter(s.namesOnDisk() + s.expectedInLog())
	}
}

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
		err := eachName(snap, func(hashes []uint64) bool { return s.fill(next, hashes) })
		s.mu.Lock()
		defer s.mu.Unlock()
		s.next = nil
		switch {
		case err != nil || s.closing.Load(): // the next opening tries again
		case next.full():
			s.buildFilter(4 * next.built)
		default:
			s.filter = next
		}
	})
}

// fill adds names in small lots, so that neither RAM nor a wait for the lock
// grows with the store. It says whether to go on.
func (s *store) fill(next *filter, hashes []uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hashes {
		next.add(h)
	}
	return !next.full() && !s.closing.Load()
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

// eachName visits the hash of every name of a snapshot, which it closes, in
// lots of about 1000, until visit has enough.
func eachName(snap *pebble.Snapshot, visit func([]uint64) bool) (err error) {
	defer func() { err = errors.Join(err, snap.Close()) }()
	it, err := snap.NewIter(nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	lot := make([]uint64, 0, 1024)
	last := ""
	for it.First(); it.Valid(); it.Next() {
		if len(lot) > cap(lot)-2 {
			if !visit(lot) {
				return nil
			}
			lot = lot[:0]
		}
		name := it.Key()
		switch name[0] {
		case valueName:
			lot = append(lot, hashName(valueName, string(name[1:]), ""))
		case rowName:
			group, item, _ := strings.Cut(string(name[1:]), "\x00")
			if group != last {
				lot = append(lot, hashName(groupName, group, ""))
				last = group
			}
			lot = append(lot, hashName(rowName, group, item))
		}
	}
	visit(lot)
	return it.Error()
}
