package gokakit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/cockroachdb/pebble/v2"
)

// Names of a store's own rows.
var (
	offsetName = []byte("o") // changelog offset, big endian
	topicName  = []byte("t") // id of the changelog topic
)

// markName begins the name of a mark: the key follows, the value is empty.
const markName = 's'

// open opens the store on disk and compares it with the log it belongs to: a
// store that is damaged, of another topic, ahead of the log, or so old that
// the log does not reach back to it, is thrown away and read anew (G14, G15,
// G16 of the bug log).
func (s *store) open(log *slog.Logger, b logBounds) error {
	log = log.With("table", s.where)
	reason, err := s.openDB(log, b)
	if err == nil && reason != "" {
		log.Warn("local state cannot be used, reading the log from its start", "reason", reason)
		if err = s.discard(); err == nil {
			reason, err = s.openDB(log, b)
		}
		if err == nil && reason != "" {
			err = errors.Join(fmt.Errorf("table %s: opening an empty store: %s", s.where, reason), s.db.Close())
		}
	}
	if err != nil {
		return err
	}
	if b.start == b.end {
		s.acked = max(s.acked, b.end-1) // an emptied log goes on where it ended
	}
	s.from, s.goal = max(s.acked, b.start-1), b.end-1
	s.replayed.Store(s.from)
	s.opened.Store(true)
	if s.expectedInLog() >= s.namesOnDisk() {
		s.needFilter()
	}
	return nil
}

// Sizes that a filter is chosen by.
const (
	bytesPerName   = 64      // on disk, about
	namesPerRecord = 3       // of the log: a value, a row, its group
	maxExpected    = 1 << 21 // names: an offset may be gone from the log, or a key come often
)

// namesOnDisk is about how many names the store has.
func (s *store) namesOnDisk() int {
	m := s.db.Metrics()
	total := m.Total()
	return int(total.TablesSize) / bytesPerName
}

// expectedInLog is about how many names are to be read from the log.
func (s *store) expectedInLog() int {
	return min(maxExpected, namesPerRecord*int(s.goal-s.from))
}

// openDB opens Pebble and reads what the store says of itself. The reason why
// it cannot be used is no error; the store is then open or, if it is too
// damaged for that, not.
func (s *store) openDB(log *slog.Logger, b logBounds) (reason string, err error) {
	if reason, err = s.openPebble(log); err != nil || reason != "" {
		return reason, err
	}
	reason, err = s.compare(b)
	if s.damaged.Swap(false) {
		return damage(err), nil
	}
	if err == nil && reason == "" {
		err = s.db.Set(topicName, b.topicID[:], pebble.NoSync)
		s.topicID = b.topicID
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("table %s: opening the store: %w", s.where, err), s.db.Close())
	}
	return reason, nil
}

// compare reads what the store says of itself and gives the reason why it does
// not fit the log; "" when it does.
func (s *store) compare(b logBounds) (string, error) {
	if err := s.loadMarks(); err != nil {
		return "", err
	}
	stored, err := s.fromDisk(offsetName)
	if err != nil || stored == nil {
		return "", err
	}
	id, err := s.fromDisk(topicName)
	if err != nil {
		return "", err
	}
	if len(stored) != 8 || copy(s.topicID[:], id) != len(s.topicID) {
		return "what it says of itself cannot be read", nil
	}
	s.acked = int64(binary.BigEndian.Uint64(stored))
	s.onDisk = s.acked
	return s.mismatch(b), nil
}

// mismatch says why the state does not fit the log; "" when it does.
func (s *store) mismatch(b logBounds) string {
	switch {
	case s.opts.weak.has(WithoutLogCheck):
	case s.topicID != b.topicID:
		return "the changelog topic was made anew"
	case s.acked >= b.end:
		return fmt.Sprintf("local offset %d is not below the log's end %d", s.acked, b.end)
	case s.acked+1 < b.start:
		return fmt.Sprintf("the log starts at %d, after the local offset %d: what lies between is gone", b.start, s.acked)
	}
	return ""
}

// recheck compares an open store with its log, as of now.
func (s *store) recheck(b logBounds) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.acked < 0 {
		return nil
	}
	if reason := s.mismatch(b); reason != "" {
		return fmt.Errorf("table %s: %s", s.where, reason)
	}
	return nil
}

func (s *store) loadMarks() (err error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{markName}, UpperBound: []byte{markName + 1}})
	if err != nil {
		return fmt.Errorf("table %s: reading the store: %w", s.where, err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for it.First(); it.Valid(); it.Next() {
		s.stale[string(it.Key()[1:])] = struct{}{}
	}
	return it.Error()
}

// discard removes the store. The folder goes by its name first, so that a
// crash in between cannot leave half a store behind.
func (s *store) discard() error {
	if s.db != nil {
		db := s.db
		s.db = nil
		if err := db.Close(); err != nil {
			return fmt.Errorf("table %s: closing the old store: %w", s.where, err)
		}
	}
	s.acked, s.onDisk = -1, -1
	clear(s.stale)
	s.damaged.Store(false)
	if err := s.opts.fs.Rename(s.opts.dir, s.discarded()); err != nil {
		return fmt.Errorf("table %s: removing the old store: %w", s.where, err)
	}
	return s.removeDiscarded()
}

func (s *store) discarded() string { return s.opts.dir + ".discarded" }

func (s *store) removeDiscarded() error {
	if err := s.opts.fs.RemoveAll(s.discarded()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("table %s: removing the old store: %w", s.where, err)
	}
	return nil
}

// openPebble opens Pebble, or gives the reason why what is there is no store.
func (s *store) openPebble(log *slog.Logger) (reason string, err error) {
	s.opening = newOpening()
	if err := s.removeDiscarded(); err != nil {
		return "", err
	}
	if err := s.opts.fs.MkdirAll(s.opts.dir, 0o755); err != nil {
		return "", fmt.Errorf("table %s: making the state directory: %w", s.where, err)
	}
	db, err := pebble.Open(s.opts.dir, s.pebbleOptions(log))
	switch {
	case err == nil:
		s.db = db
		return "", nil
	case pebble.IsCorruptionError(err), errors.Is(err, os.ErrNotExist):
		return damage(err), nil
	}
	return "", fmt.Errorf("table %s: opening the store in %s: %w", s.where, s.opts.dir, err)
}

func damage(err error) string {
	if err == nil {
		return "it is damaged"
	}
	return "it is damaged: " + oneLine(err).Error()
}
