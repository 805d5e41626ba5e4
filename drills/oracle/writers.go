package oracle

import "time"

// writers watches who writes to one partition of a changelog. Ownership passes
// on: a new owner has a new producer. A paused owner that comes back may append
// what it had under way; whoever finds a foreign record between its own must
// stop, and go on, if at all, as a new producer.
//
// So a producer that was interrupted by another may write the little that was
// under way, and not go on. How long "little" is, is measured in rounds of
// reading and in time: a round holds at least one batch, of which a producer
// with one request in flight has few on the way, but on a machine that has no
// time for it, the owner learns of the foreign record some batches late.
//
// Time is that at which the producers made the records, never that of reading:
// after an interruption of the broker the reader sees at once what took
// seconds, and owners who followed each other would look like two at a time.
type writers struct {
	last    int64 // producer of the last record
	seen    map[int64]*writer
	foreign int64 // records of producers that had been followed by another
}

type writer struct {
	at          time.Time // at which it made its last record
	followed    bool      // another has written since
	interrupted time.Time // when it went on without a break; else zero
	rounds      int       // of reading since then
	round       int       // the last of these
	told        bool      // that it goes on
}

const (
	// handover is a pause after which a producer that comes back owns the
	// partition again: a rebalance takes a heartbeat interval at the least.
	handover = 500 * time.Millisecond
	// maxRounds and maxTail bound what was under way.
	maxRounds = 10
	maxTail   = time.Second
)

func newWriters() *writers { return &writers{last: -1, seen: map[int64]*writer{}} }

// take notes a record, by when it was made and in which round it was read, and
// is true once for a producer that goes on although it was interrupted.
func (w *writers) take(producer int64, round int, made time.Time) (unfenced bool) {
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
	case p.followed && made.Sub(p.at) < handover:
		if p.interrupted.IsZero() {
			p.interrupted = made
		}
		w.foreign++
	case p.followed:
		p.interrupted, p.rounds, p.told = time.Time{}, 0, false
		w.foreign++
	case made.Sub(p.at) >= handover:
		p.interrupted, p.rounds, p.told = time.Time{}, 0, false
	}
	p.followed, p.at = false, made
	if p.interrupted.IsZero() || p.told || p.round == round {
		return false
	}
	p.round = round
	p.rounds++
	p.told = p.rounds > maxRounds && made.Sub(p.interrupted) > maxTail
	return p.told
}
