package cdc

import "github.com/jackc/pglogrepl"

// tracker turns acknowledgements of records, which may come in any order,
// into the one position that PostgreSQL may be told (I17).
//
//	Emit  hands out the numbers of records in stream order: 0, 1, 2, ...
//	Mark  says: what the stream holds up to this position has been emitted
//	Ack   says: Kafka has the record of this number
//
// A position is confirmed when a mark stands at it and every record emitted
// before the mark is acked. Marks stand at the end of a commit and at a
// keepalive between two transactions, never inside a transaction: the LSN of a
// change is neither monotone nor unique in the stream, so it says nothing about
// what is complete. The confirmed position never goes back.
//
// It is a plain value without a lock; memory is bounded by the unacked records.
type tracker struct {
	confirmed pglogrepl.LSN
	marked    pglogrepl.LSN       // position of the newest mark
	emitted   uint64              // numbers handed out
	acked     uint64              // every number below is acked
	early     map[uint64]struct{} // acked numbers above the prefix
	marks     []mark              // marks[head:] wait, both fields ascending
	head      int
}

// mark: position may be confirmed when every record below next is acked.
type mark struct {
	next     uint64
	position pglogrepl.LSN
}

func newTracker(confirmed pglogrepl.LSN) tracker {
	return tracker{confirmed: confirmed, marked: confirmed, early: map[uint64]struct{}{}}
}

// Emit hands out the next record's number.
func (t *tracker) Emit() uint64 {
	t.emitted++
	return t.emitted - 1
}

// Mark puts a mark at position. A position that is not above the newest mark
// adds nothing and is ignored.
func (t *tracker) Mark(position pglogrepl.LSN) {
	if position <= t.marked {
		return
	}
	t.marked = position
	if n := len(t.marks); n > t.head && t.marks[n-1].next == t.emitted {
		t.marks[n-1].position = position
	} else {
		t.marks = append(t.marks, mark{next: t.emitted, position: position})
	}
	t.settle()
}

// Ack takes an acknowledgement. A number that was acked before, or was never
// emitted, changes nothing.
func (t *tracker) Ack(number uint64) {
	switch {
	case number < t.acked || number >= t.emitted:
		return
	case number > t.acked:
		t.early[number] = struct{}{}
		return
	}
	t.acked++
	for len(t.early) > 0 {
		if _, ok := t.early[t.acked]; !ok {
			break
		}
		delete(t.early, t.acked)
		t.acked++
	}
	t.settle()
}

// settle confirms the marks that the acked prefix has reached.
func (t *tracker) settle() {
	for t.head < len(t.marks) && t.marks[t.head].next <= t.acked {
		t.confirmed = t.marks[t.head].position
		t.head++
	}
	if t.head == len(t.marks) {
		t.marks, t.head = t.marks[:0], 0
	} else if t.head >= 1024 && t.head*2 >= len(t.marks) {
		t.marks, t.head = t.marks[:copy(t.marks, t.marks[t.head:])], 0
	}
}

// Confirmed is the position that PostgreSQL may be told.
func (t *tracker) Confirmed() pglogrepl.LSN { return t.confirmed }

// Marked is the position of the newest mark.
func (t *tracker) Marked() pglogrepl.LSN { return t.marked }

// Unacked counts the records from the first gap on. Records acked behind the
// gap count too: they would be sent again after a restart.
func (t *tracker) Unacked() int { return int(t.emitted - t.acked) }
