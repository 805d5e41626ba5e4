package cdc

import (
	"testing"

	"github.com/jackc/pglogrepl"
	"pgregory.net/rapid"
)

func TestTrackerConfirmsOnlyCompleteTransactions(t *testing.T) {
	tr := newTracker(100)
	expect := func(want pglogrepl.LSN) {
		t.Helper()
		if got := tr.Confirmed(); got != want {
			t.Fatalf("confirmed %d, want %d", got, want)
		}
	}
	a, b := tr.Emit(), tr.Emit()
	tr.Ack(a)
	expect(100)
	tr.Ack(b)
	expect(100) // acked, but the transaction has not ended
	tr.Mark(200)
	expect(200)

	c := tr.Emit()
	tr.Mark(300)
	d, e := tr.Emit(), tr.Emit()
	tr.Mark(400)
	tr.Ack(e)
	tr.Ack(d)
	expect(200) // c is the gap
	if got := tr.Unacked(); got != 3 {
		t.Errorf("%d unacked, want 3", got)
	}
	tr.Ack(c)
	expect(400)
	tr.Ack(c) // again
	tr.Ack(99)
	expect(400)

	tr.Mark(450) // keepalive with nothing unacked
	expect(450)
	tr.Mark(430) // an older one
	expect(450)
	f := tr.Emit()
	tr.Mark(500)
	tr.Mark(600) // keepalive behind an unacked commit
	expect(450)
	tr.Ack(f)
	expect(600)
}

// TestTrackerModel holds the tracker (I17) against a model that remembers
// everything: the confirmed position is the highest mark below which every
// record is acked, and it never goes back (C01, C03, C06).
func TestTrackerModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := pglogrepl.LSN(rapid.Uint64Range(100, 1000).Draw(t, "start"))
		tr := newTracker(start)
		newest := start
		var acked []bool
		type at struct {
			records  int
			position pglogrepl.LSN
		}
		marks := []at{{0, start}}
		last := start
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				if got := tr.Emit(); got != uint64(len(acked)) {
					t.Fatalf("number %d, want %d", got, len(acked))
				}
				acked = append(acked, false)
			case 2:
				position := newest + pglogrepl.LSN(rapid.IntRange(-20, 50).Draw(t, "by"))
				tr.Mark(position)
				if position > newest { // else ignored
					newest = position
					marks = append(marks, at{len(acked), position})
				}
			case 3:
				if len(acked) > 0 {
					n := rapid.IntRange(0, len(acked)-1).Draw(t, "ack")
					acked[n] = true
					tr.Ack(uint64(n))
				}
			}
			prefix := 0
			for prefix < len(acked) && acked[prefix] {
				prefix++
			}
			want := start
			for _, m := range marks {
				if m.records <= prefix {
					want = max(want, m.position)
				}
			}
			got := tr.Confirmed()
			if got < last {
				t.Fatalf("confirmed went back from %d to %d", last, got)
			}
			last = got
			if got != want {
				t.Fatalf("confirmed %d, want %d", got, want)
			}
			if tr.Unacked() != len(acked)-prefix {
				t.Fatalf("%d unacked, want %d", tr.Unacked(), len(acked)-prefix)
			}
		}
	})
}

// A long backlog must not let the queue of marks or the set of early acks grow.
func TestTrackerMemoryIsBounded(t *testing.T) {
	tr := newTracker(0)
	const window = 100
	for i := range 100_000 {
		n := tr.Emit()
		tr.Mark(pglogrepl.LSN(i + 1))
		tr.Mark(pglogrepl.LSN(i + 1))
		if n >= window {
			tr.Ack(n - window)
		}
	}
	if cap(tr.marks) > 8192 || len(tr.early) > 0 {
		t.Errorf("%d marks and %d early acks are kept for %d unacked records", cap(tr.marks), len(tr.early), tr.Unacked())
	}
}
