package cdc

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
)

// window bounds what is on its way to Kafka, in records and bytes, and keeps
// the tracker. The reader waits in Reserve while it is full, which in turn
// stops PostgreSQL from sending (back-pressure); acknowledgements make room.
//
// A record that is larger than the whole byte budget passes alone.
type window struct {
	maxRecords int
	maxBytes   int

	mu       sync.Mutex
	tracker  tracker
	bytes    int           // of unacked records
	records  int           // unacked records
	waiting  bool          // the reader waits for room
	room     chan struct{} // one token: there may be room
	since    time.Time     // when the reader began to wait; zero: it does not
	blocked  time.Duration // how long it waited before that
	progress time.Time     // last ack, or first record after an empty window
}

func newWindow(confirmed pglogrepl.LSN, maxRecords, maxBytes int) *window {
	return &window{
		maxRecords: maxRecords, maxBytes: maxBytes,
		tracker: newTracker(confirmed), room: make(chan struct{}, 1),
	}
}

// Reserve takes room for a record of size bytes and hands out its number. It
// waits until there is room or ctx ends.
func (w *window) Reserve(ctx context.Context, size int) (uint64, error) {
	w.mu.Lock()
	for !w.fits(size) {
		if w.since.IsZero() {
			w.since = time.Now()
		}
		w.waiting = true
		w.mu.Unlock()
		select {
		case <-w.room:
		case <-ctx.Done():
			w.mu.Lock()
			w.stopWaiting()
			w.mu.Unlock()
			return 0, context.Cause(ctx)
		}
		w.mu.Lock()
	}
	w.stopWaiting()
	if w.records == 0 {
		w.progress = time.Now()
	}
	w.records++
	w.bytes += size
	number := w.tracker.Emit()
	w.mu.Unlock()
	return number, nil
}

func (w *window) fits(size int) bool {
	return w.records == 0 || w.records < w.maxRecords && w.bytes+size <= w.maxBytes
}

func (w *window) stopWaiting() {
	w.waiting = false
	if !w.since.IsZero() {
		w.blocked += time.Since(w.since)
		w.since = time.Time{}
	}
}

// Ack gives the room of a record back.
func (w *window) Ack(number uint64, size int, now time.Time) {
	w.mu.Lock()
	w.tracker.Ack(number)
	w.records--
	w.bytes -= size
	w.progress = now
	// Waking the reader only when a quarter is free saves a switch per record.
	wake := w.waiting && w.records <= w.maxRecords*3/4 && w.bytes <= w.maxBytes*3/4
	w.mu.Unlock()
	if wake {
		select {
		case w.room <- struct{}{}:
		default:
		}
	}
}

// Mark puts a mark into the tracker; it reports false when the position is not
// above the newest mark.
func (w *window) Mark(position pglogrepl.LSN) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	above := position > w.tracker.Marked()
	w.tracker.Mark(position)
	return above
}

// Confirmed is the position that PostgreSQL may be told.
func (w *window) Confirmed() pglogrepl.LSN {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tracker.Confirmed()
}

// load is a snapshot of a window.
type load struct {
	confirmed pglogrepl.LSN
	records   int
	bytes     int
	waiting   bool
	blocked   time.Duration // in all, so far
	progress  time.Time     // last ack; zero: nothing is unacked
}

func (w *window) Load() load {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := load{
		confirmed: w.tracker.Confirmed(), records: w.records, bytes: w.bytes,
		waiting: w.waiting, blocked: w.blocked,
	}
	if !w.since.IsZero() {
		l.blocked += time.Since(w.since)
	}
	if w.records > 0 {
		l.progress = w.progress
	}
	return l
}
