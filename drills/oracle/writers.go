package oracle

import "time"

// writers watches who writes to one partition of a changelog. Ownership passes
// on: a new owner has a new producer. A paused owner that comes back may append
// what it had under way; whoever finds a foreign record between its own must
// stop, and go on, if at all, as a new producer.
//
// So a producer that was interrupted by another may write the little that was
// under way, and not go on. How long "little" is, is measured in rounds of
// reading: each holds at least one batch, and a producer with one request in
// flight has few on the way.
type writers struct {
	last    int64 // producer of the last record
	seen    map[int64]*writer
	foreign int64 // records of producers that had been followed by another
}

type writer struct {
	at          time.Time // of its last record
	followed    bool      // another has written since
	interrupted bool      // and it went on without a break
	rounds      int       // of reading since then
	round       int       // the last of these
}

const (
	// handover is a pause after which a producer that comes back owns the
	// partition again: a rebalance takes a heartbeat interval at the least.
	handover = 500 * time.Millisecond
	// maxRounds bounds what was under way.
	maxRounds = 10
)

func newWriters() *writers { return &writers{last: -1, seen: map[int64]*writer{}} }

// take notes a record read in a round at a time, and is true once for a
// producer that goes on although it was interrupted.
func (w *writers) take(producer int64, round int, now time.Time) (unfenced bool) {
	p := w.seen[producer]
	if p == nil {
		p = new(writer)
		w.seen[producer] = p
	}
	if w.last != producer {
		if before := w.seen[w.last]; before != nil {
			before.followed = true
		}
		w.last = producer
	}
	switch {
	case p.followed && now.Sub(p.at) < handover:
		p.interrupted = true
		w.foreign++
	case p.followed:
		p.interrupted, p.rounds = false, 0
		w.foreign++
	case now.Sub(p.at) >= handover:
		p.interrupted, p.rounds = false, 0
	}
	p.followed, p.at = false, now
	if p.interrupted && p.round != round {
		p.round = round
		p.rounds++
		return p.rounds == maxRounds+1
	}
	return false
}
