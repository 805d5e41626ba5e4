package intake

import (
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// A ledger keeps which outbox ids of a shard came since its last proven seal,
// and compares them at the next proof. It is a function of the records that it
// was given: no clock, no look-up.
//
// What it rests on (DESIGN: seals): rows below a seal's own id are committed
// or aborted when the seal commits, and rows above it commit later. So in the
// first copies of the change feed, which stand in commit order, interval n
// lies between seal n-1 and seal n. Later copies repeat ids that the ledger
// has, and change nothing.
//
//	settled         seal n           seal n+1
//	   │ interval n ... │ interval n+1 ... │ open
//	                         proof n: compare interval n, then forget it
//
// A proof that does not agree, or that does not follow on the last one, raises
// a Suspicion: the ids in question that did not come. Which of them are facts
// is for whoever can look into the outbox, since ids of aborted transactions
// never come either. So no loss passes unnoticed, and nothing that came is
// ever called missing.
type ledger struct {
	shard    int
	revision uint64 // of the row in the table
	offset   int64  // highest offset included; -1 for none
	timeUs   int64  // the broker's time of that record
	proven   uint64 // last seal whose interval was compared
	settled  int64  // ids up to this are settled: the id of that seal's row
	anchored bool   // false until a seal shows where complete reading began

	intervals []received // not proven; the last one is open
	ids       *idset.Set // above settled
	unkept    int64      // highest id for which ids had no room; 0 for none
	holes     []hole     // since the last proven seal
}

// received is what came between two seals, each row once.
type received struct {
	seal    uint64 // 0: open
	to      int64  // id of the seal's row; the interval's ids are below it
	rows    int64
	xor     uint64
	highest int64 // id among rows
	blind   bool  // xor says nothing: some event id could not be read
	mixed   bool  // rows and xor are not of exactly this interval
}

// hole is a run of offsets that the log had lost.
type hole struct{ from, to int64 }

// Bounds of a ledger.
const (
	maxIDBytes   = 32 << 20 // of RAM for ids, per shard
	maxIntervals = 1024     // that wait for their proof
	maxHoles     = 16
)

// newLedger is the ledger of a shard whose feed is read from its beginning.
func newLedger(shard int) *ledger {
	l := &ledger{shard: shard, offset: -1}
	l.anchor(0, 0)
	return l
}

// A sighting is what a record tells the ledger. Its zero value is a record
// whose outbox row cannot be told.
type sighting struct {
	kind  sightingKind
	id    int64  // of the outbox row
	hash  uint64 // xxh64 of a relation row's event id
	blind bool   // the event id could not be read
	seal  uint64 // of a seal
	proof topology.SealProof
}

type sightingKind uint8

const (
	sawNothing  sightingKind = iota
	sawRelation              // counted by proofs, whether or not it can be used
	sawSeal
	sawProof
	sawOther
)

// take includes the record at an offset, and returns what its proof raises, in
// parts.
func (l *ledger) take(offset, timeUs int64, s sighting) []*tidemarkv1.Suspicion {
	l.advance(offset, timeUs)
	switch s.kind {
	case sawRelation:
		l.relation(s)
	case sawSeal:
		if l.contradicts(s) {
			return l.wentBack(s.seal, s.id)
		}
		l.seal(s)
	case sawProof:
		raised := l.prove(s.proof)
		l.mark(s.id)
		return raised
	case sawOther:
		l.mark(s.id)
	}
	return nil
}

// advance notes an offset, and what the log no longer has before it. An offset
// that is not above the last one is a record seen again, or of a log that was
// made anew.
func (l *ledger) advance(offset, timeUs int64) {
	if offset <= l.offset {
		return
	}
	if offset > l.offset+1 {
		l.lost(hole{l.offset + 1, offset - 1})
	}
	l.offset, l.timeUs = offset, timeUs
}

func (l *ledger) lost(h hole) {
	if n := len(l.holes); n == maxHoles {
		l.holes[n-1].to = h.to
		return
	}
	l.holes = append(l.holes, h)
}

// mark takes an id and tells whether it is new. One for which there is no room
// counts as new: its interval's counts will not be believed.
func (l *ledger) mark(id int64) bool {
	if !l.anchored || id <= l.settled {
		return false
	}
	added, fits := l.ids.Add(id)
	if !fits {
		l.unkept = max(l.unkept, id)
	}
	return added || !fits
}

func (l *ledger) relation(s sighting) {
	if !l.mark(s.id) {
		return
	}
	r := l.intervalOf(s.id)
	r.rows++
	r.xor ^= s.hash
	r.highest = max(r.highest, s.id)
	r.blind = r.blind || s.blind
}

// intervalOf finds the interval of an id; first copies are of the open one.
func (l *ledger) intervalOf(id int64) *received {
	n := len(l.intervals)
	for n > 1 && l.intervals[n-2].to > id {
		n--
	}
	return &l.intervals[n-1]
}

// seal closes the open interval. The first seal anchors a ledger that began in
// the middle: everything above its id is still to come.
func (l *ledger) seal(s sighting) {
	if !l.anchored {
		l.anchor(s.seal, s.id)
		return
	}
	if !l.mark(s.id) {
		return
	}
	n := len(l.intervals)
	if n > 1 && l.intervals[n-2].to > s.id {
		l.intervalOf(s.id).mixed = true // out of order: what it parts cannot be told
		return
	}
	open := &l.intervals[n-1]
	open.seal, open.to, open.mixed = s.seal, s.id, open.mixed || open.highest > s.id
	l.intervals = append(l.intervals, received{})
	if len(l.intervals) > maxIntervals {
		l.intervals = l.intervals[1:]
		l.intervals[0].mixed = true
	}
}

func (l *ledger) anchor(seal uint64, id int64) {
	l.anchored, l.proven, l.settled = true, seal, id
	l.ids, l.unkept = idset.NewSet(maxIDBytes), 0
	l.intervals, l.holes = []received{{}}, nil
}

// prove compares an interval with its proof and forgets it. Proofs come in the
// order of their seals: one that is skipped is lost, and its interval is in
// question together with this one.
func (l *ledger) prove(p topology.SealProof) []*tidemarkv1.Suspicion {
	if !l.anchored || p.Seal <= l.proven {
		return nil
	}
	if p.ToID <= l.settled {
		return l.wentBack(p.Seal, p.ToID)
	}
	r, counted := l.counted(p)
	agrees := counted && r.rows == p.Rows && (r.blind || r.xor == p.XorSum)
	var raised []*tidemarkv1.Suspicion
	if !agrees {
		raised = l.suspect(p, r, counted)
	}
	l.settle(p)
	return raised
}

// counted finds what was received of exactly the proof's interval.
func (l *ledger) counted(p topology.SealProof) (received, bool) {
	r := l.intervals[0]
	ok := p.Seal == l.proven+1 && p.FromID == l.settled+1 && r.seal == p.Seal && r.to == p.ToID && !r.mixed && l.unkept <= l.settled
	return r, ok
}

// contradicts tells that a seal cannot be of the history that the ledger has
// read: its number was another row's, or it takes an old number for a new row.
// A seal that is read again has the row that it had.
func (l *ledger) contradicts(s sighting) bool {
	switch {
	case !l.anchored || s.seal == 0 || l.proven == 0:
		return false
	case s.seal == l.proven:
		return s.id != l.settled
	case s.seal < l.proven:
		return s.id > l.settled
	case s.id <= l.settled:
		return true
	}
	for _, r := range l.intervals {
		if r.seal == s.seal {
			return r.to != s.id
		}
	}
	return false
}

// wentBack: the source lost what it had, in a failover or by a restore. Numbers
// of seals and ids of rows may come a second time, and what was received says
// nothing of the new rows up to this seal's; complete reading begins behind it.
func (l *ledger) wentBack(seal uint64, id int64) []*tidemarkv1.Suspicion {
	raised := l.describe(topology.SealProof{Seal: seal, FromID: min(l.settled+1, id), ToID: id})
	raised.Unchecked, raised.WentBack = true, true
	l.anchor(seal, id)
	return []*tidemarkv1.Suspicion{raised}
}

// settle forgets everything up to the end of the proof's interval.
func (l *ledger) settle(p topology.SealProof) {
	parted := false // by the seal itself
	for len(l.intervals) > 1 && l.intervals[0].to <= p.ToID {
		parted = l.intervals[0].to == p.ToID
		l.intervals = l.intervals[1:]
	}
	if !parted {
		l.intervals[0].mixed = true
	}
	l.proven, l.settled, l.holes = p.Seal, p.ToID, nil
	l.ids.DropTo(p.ToID)
}

// maxAbsentRuns is how many runs of ids one part of a suspicion lists.
const maxAbsentRuns = 50_000

// suspect describes what a proof raises, in parts that each fit a record.
func (l *ledger) suspect(p topology.SealProof, r received, counted bool) []*tidemarkv1.Suspicion {
	var absent idset.Ranges
	unchecked := l.unkept > l.settled
	if !unchecked {
		absent = l.ids.Absent(l.settled+1, p.ToID-1)
	}
	parts := max(1, (len(absent)+maxAbsentRuns-1)/maxAbsentRuns)
	raised := make([]*tidemarkv1.Suspicion, parts)
	for i := range raised {
		part := l.describe(p)
		part.FirstSeal, part.FromId, part.Unchecked = l.proven+1, l.settled+1, unchecked
		if counted {
			part.Counted, part.ReceivedRows, part.ReceivedXor, part.Blind = true, r.rows, r.xor, r.blind
		}
		run := absent[i*maxAbsentRuns : min((i+1)*maxAbsentRuns, len(absent))]
		part.Part, part.Parts, part.Absent = uint32(i), uint32(parts), encodeRanges(run)
		if i > 0 {
			part.FromId = run[0].From
		}
		if i < parts-1 {
			part.ToId = absent[(i+1)*maxAbsentRuns].From
		}
		raised[i] = part
	}
	return raised
}

// describe is the part of a suspicion that every one has.
func (l *ledger) describe(p topology.SealProof) *tidemarkv1.Suspicion {
	s := &tidemarkv1.Suspicion{
		Shard: uint32(l.shard), Seal: p.Seal, FirstSeal: p.Seal, FromId: p.FromID, ToId: p.ToID,
		ProvenRows: p.Rows, ProvenXor: p.XorSum, CdcOffset: l.offset, DetectedAtUs: l.timeUs, Parts: 1,
	}
	for _, h := range l.holes {
		s.Holes = append(s.Holes, &tidemarkv1.OffsetHole{From: h.from, To: h.to})
	}
	return s
}

// encodeRanges cannot fail.
func encodeRanges(r idset.Ranges) []byte {
	b, _ := r.MarshalBinary()
	return b
}
