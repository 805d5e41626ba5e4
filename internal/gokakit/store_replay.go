package gokakit

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/tidemark/tidemark/topology"
)

// replay takes a record read from the log (recovery, hot standby, views). It
// says whether reads have changed: a record that is known already or that
// lost against a newer one changes nothing.
func (s *store) replay(key string, value []byte, offset int64) (changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return false, err
	}
	if offset <= s.acked {
		return false, nil
	}
	if changed, err = s.replayValue(key, value); err != nil {
		return false, fmt.Errorf("table %s: changelog record at offset %d: %w", s.where, offset, err)
	}
	s.acked = offset
	s.replayed.Store(offset)
	return changed, s.freezeIfFull()
}

func (s *store) replayValue(key string, value []byte) (changed bool, err error) {
	if err := s.belongs(key); err != nil {
		return false, err
	}
	keep, err := s.supersedes(key, value)
	if err != nil || value == nil {
		return false, err
	}
	if keep {
		r, err := s.valueRow(key)
		if err != nil {
			return false, err
		}
		s.replayRow(r, value, len(key))
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
	return keep, errors.Join(err, rowErr)
}

// belongs refuses a key of another partition: whoever wrote it has another
// partitioner, and half of its records would be found and half not (G13 of the
// bug log).
func (s *store) belongs(key string) error {
	if s.opts.weak.has(WithoutPlacement) {
		return nil
	}
	p, err := topology.PartitionOf(key, s.opts.partitions)
	if err != nil {
		return err
	}
	if p != s.opts.partition {
		return fmt.Errorf("its key belongs to partition %d: it was written with another partitioner", p)
	}
	return nil
}

// supersedes compares a record of the log with what earlier ones said, and
// remembers keys whose newest record is not the winner (I3). A table knows no
// tombstones: a foreign one loses against any value.
func (s *store) supersedes(key string, value []byte) (bool, error) {
	cur, err := s.valueLocked(key)
	if err != nil {
		return false, err
	}
	if value == nil {
		if cur != nil {
			s.mark(key)
		}
		return false, nil
	}
	v, err := s.schema.Version(value)
	if err != nil || cur == nil || s.opts.weak.has(WithoutVersion) {
		return err == nil, err
	}
	have, err := s.schema.Version(cur)
	if err != nil {
		return false, err
	}
	if v < have {
		s.mark(key)
		return false, nil
	}
	s.unmark(key)
	return true, nil
}

func (s *store) replayRow(r *row, value []byte, name int) {
	r.latest = value
	s.settleRow(r, value, name)
}

// whole says whether the log is read as far as it went at the opening.
func (s *store) whole() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.acked >= s.goal
}

// progress is how much of the log was read since the opening, and how much
// there was to read. It waits for nothing.
func (s *store) progress() (done, all int64) {
	return max(0, min(s.replayed.Load(), s.goal)-s.from), s.goal - s.from
}

// mark notes that a key's newest changelog record is not its winner. Marks
// stand in the store beside the rows: an owner that stops before it has
// repaired leaves them to the next one, which may not read those records
// again.
func (s *store) mark(key string) {
	if _, known := s.stale[key]; !known {
		s.stale[key] = struct{}{}
		s.noteMark(key, true)
	}
}

func (s *store) unmark(key string) {
	if _, known := s.stale[key]; known {
		delete(s.stale, key)
		s.noteMark(key, false)
	}
}

func (s *store) noteMark(key string, stale bool) {
	s.marks[key] = stale
	s.bytes += len(key) + rowOverhead
}

// staleKeys are the keys to write again, in order.
func (s *store) staleKeys() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Sorted(maps.Keys(s.stale))
}
