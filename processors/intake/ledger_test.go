package intake

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// source is a shard's outbox and what its change feed would bring, in commit
// order.
type source struct {
	next    int64
	seals   uint64
	last    int64 // id of the newest seal's row
	facts   map[int64]bool
	feed    []sighting
	pending []topology.SealProof
}

func newSource() *source { return &source{next: 1, facts: map[int64]bool{}} }

func hashOf(id int64) uint64 { return xxhash.Sum64String(fmt.Sprint("event-", id)) }

func (s *source) id() int64 { s.next++; return s.next - 1 }

// commit adds transactions that overlap: their ids are drawn together, some
// abort, and the rest commit in the order of a permutation.
func (s *source) commit(t *rapid.T) {
	n := rapid.IntRange(1, 12).Draw(t, "transactions")
	var ids []int64
	for range n {
		id := s.id()
		if rapid.IntRange(0, 5).Draw(t, "fate") > 0 {
			ids = append(ids, id)
		}
	}
	if len(ids) > 1 {
		ids = rapid.Permutation(ids).Draw(t, "order")
	}
	for _, id := range ids {
		s.facts[id] = true
		s.feed = append(s.feed, sighting{kind: sawRelation, id: id, hash: hashOf(id)})
	}
}

// seal settles everything so far. Its proof may come later, behind others'
// commits, but before the next seal's.
func (s *source) seal() {
	s.seals++
	id := s.id()
	proof := topology.SealProof{Seal: s.seals, FromID: s.last + 1, ToID: id}
	for f := s.last + 1; f < id; f++ {
		if s.facts[f] {
			proof.Rows++
			proof.XorSum ^= hashOf(f)
		}
	}
	s.last = id
	s.feed = append(s.feed, sighting{kind: sawSeal, id: id, seal: s.seals})
	s.pending = append(s.pending, proof)
}

func (s *source) prove() {
	if len(s.pending) == 0 {
		return
	}
	s.feed = append(s.feed, sighting{kind: sawProof, id: s.id(), proof: s.pending[0]})
	s.pending = s.pending[1:]
}

func drawSource(t *rapid.T) *source {
	s := newSource()
	for range rapid.IntRange(1, 30).Draw(t, "steps") {
		switch rapid.IntRange(0, 3).Draw(t, "step") {
		case 0, 1:
			s.commit(t)
		case 2:
			s.seal()
		case 3:
			s.prove()
		}
	}
	s.commit(t)
	s.seal()
	for len(s.pending) > 0 {
		s.prove()
	}
	return s
}

// missing is what an outbox look-up finds: facts among the ids in question.
func (s *source) missing(t *rapid.T, raised []*tidemarkv1.Suspicion) idset.Ranges {
	var ids []int64
	for _, one := range raised {
		if one.Unchecked {
			t.Fatalf("unchecked: %v", one)
		}
		var absent idset.Ranges
		if err := absent.UnmarshalBinary(one.Absent); err != nil {
			t.Fatal(err)
		}
		for id := one.FromId; id < one.ToId; id++ {
			if absent.Contains(id) && s.facts[id] {
				ids = append(ids, id)
			}
		}
	}
	return idset.Of(ids...)
}

// restarted is the ledger after a restart from its row: what the row does not
// include is read again.
func restarted(t *rapid.T, l *ledger, row []byte, log []sighting) *ledger {
	at := newLedger(l.shard)
	if row != nil {
		var err error
		if at, err = readLedger(l.shard, row); err != nil {
			t.Fatal(err)
		}
	}
	for o := at.offset + 1; o <= l.offset; o++ {
		at.take(o, o, log[o])
	}
	return at
}

// Whatever the feed loses, repeats and interrupts: every fact that did not
// come is named, exactly, and nothing that came is.
func TestEveryLossIsNamedExactlyAndNothingElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSource(t)
		lossy := rapid.IntRange(0, 3).Draw(t, "loss")
		lost, came := map[int64]bool{}, map[int64]bool{}
		var log []sighting // the topic
		for i := 0; i < len(s.feed); i++ {
			one := s.feed[i]
			last := i == len(s.feed)-1 // its proof tells; later ones would otherwise
			if !last && lossy > 0 && rapid.IntRange(0, 9).Draw(t, "lose") < lossy {
				if one.kind == sawRelation {
					lost[one.id] = true
				}
				continue
			}
			log = append(log, one)
			if one.kind == sawRelation {
				came[one.id] = true
			}
			if rapid.IntRange(0, 9).Draw(t, "again") == 0 { // the emitter starts again from an older position
				for j := rapid.IntRange(0, len(log)-1).Draw(t, "from"); j < len(log); j++ {
					if log = append(log, log[j]); len(log) > 3*len(s.feed) || log[len(log)-1] == one {
						break
					}
				}
			}
		}
		l, row := newLedger(0), []byte(nil)
		var raised []*tidemarkv1.Suspicion
		for o, one := range log {
			found := l.take(int64(o), int64(o), one)
			raised = append(raised, found...)
			if rapid.IntRange(0, 4).Draw(t, "row") == 0 || one.kind == sawProof {
				row, _ = l.row()
			}
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				l = restarted(t, l, row, log)
			}
		}
		got := s.missing(t, raised)
		for id := range s.facts {
			if got.Contains(id) == came[id] {
				t.Fatalf("fact %d: came %v, lost %v, called missing %v", id, came[id], lost[id], got.Contains(id))
			}
		}
		if len(lost) == 0 && lossy == 0 && len(raised) > 0 {
			t.Fatalf("nothing was lost, and yet: %v", raised)
		}
		if l.proven != s.seals || l.settled != s.last {
			t.Fatalf("proven up to seal %d, id %d; the source has seal %d, id %d", l.proven, l.settled, s.seals, s.last)
		}
	})
}

// The same ledger after a restart says the same of every later proof.
func TestALedgersRowIsTheLedger(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawSource(t)
		l := newLedger(3)
		for o, one := range s.feed {
			if rapid.IntRange(0, 3).Draw(t, "lose") == 0 {
				l.advance(int64(o), 0)
				continue
			}
			value, ok := l.row()
			if !ok {
				t.Fatal("the row does not fit")
			}
			again, err := readLedger(3, value)
			if err != nil {
				t.Fatal(err)
			}
			a, b := l.take(int64(o), 7, one), again.take(int64(o), 7, one)
			if fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("%v, after a restart %v", a, b)
			}
			l = again
		}
	})
}

func prove(l *ledger, from, to int64, seal uint64, rows int64, ids ...int64) []*tidemarkv1.Suspicion {
	p := topology.SealProof{Seal: seal, FromID: from, ToID: to, Rows: rows}
	for _, id := range ids {
		p.XorSum ^= hashOf(id)
	}
	return l.take(l.offset+1, 0, sighting{kind: sawProof, id: to + 1, proof: p})
}

func see(l *ledger, ids ...int64) {
	for _, id := range ids {
		l.take(l.offset+1, 0, sighting{kind: sawRelation, id: id, hash: hashOf(id)})
	}
}

func sealAt(l *ledger, seal uint64, id int64) {
	l.take(l.offset+1, 0, sighting{kind: sawSeal, id: id, seal: seal})
}

func TestALedgerThatBeganInTheMiddleWaitsForASeal(t *testing.T) {
	l := newLedger(0)
	l.anchored = false
	see(l, 7, 9)
	if raised := prove(l, 1, 5, 3, 4); raised != nil {
		t.Fatalf("a proof from before the first seal raises %v", raised)
	}
	sealAt(l, 4, 10)
	see(l, 12, 14)
	sealAt(l, 5, 15)
	if raised := prove(l, 6, 10, 4, 2, 7, 9); raised != nil {
		t.Fatalf("the proof of the first seal raises %v", raised)
	}
	raised := prove(l, 11, 15, 5, 3, 12, 13, 14)
	if len(raised) != 1 || raised[0].FromId != 11 || raised[0].ToId != 15 || !slices.Equal(raised[0].Absent, encodeRanges(idset.Of(13))) {
		t.Fatalf("raised %v", raised)
	}
}

// The source went back behind a seal, as after a failover that lost commits:
// numbers of seals, and perhaps ids, come a second time.
func TestASourceThatWentBackIsNoticed(t *testing.T) {
	begin := func() *ledger {
		l := newLedger(0)
		see(l, 1, 2, 3)
		sealAt(l, 1, 4)
		see(l, 5, 6)
		sealAt(l, 2, 7)
		if raised := prove(l, 1, 4, 1, 3, 1, 2, 3); raised != nil {
			t.Fatal(raised)
		}
		see(l, 9, 10)
		sealAt(l, 3, 11)
		if raised := prove(l, 5, 7, 2, 2, 5, 6); raised != nil {
			t.Fatal(raised)
		}
		return l
	}
	take := func(l *ledger, seal uint64, id int64) []*tidemarkv1.Suspicion {
		return l.take(l.offset+1, 0, sighting{kind: sawSeal, id: id, seal: seal})
	}
	for name, c := range map[string]struct {
		seal uint64
		id   int64
		want bool
	}{
		"read again":                    {1, 4, false},
		"the proven one again":          {2, 7, false},
		"one that waits, again":         {3, 11, false},
		"the next":                      {4, 15, false},
		"an old number for a new row":   {1, 40, true},
		"the proven number, lower row":  {2, 6, true},
		"the proven number, higher row": {2, 8, true},
		"a number that waits":           {3, 12, true},
		"a new number for an old row":   {4, 6, true},
	} {
		l := begin()
		raised := take(l, c.seal, c.id)
		if (len(raised) == 1) != c.want {
			t.Errorf("%s: raised %v", name, raised)
			continue
		}
		if !c.want {
			continue
		}
		if r := raised[0]; !r.WentBack || !r.Unchecked || r.Seal != c.seal || r.ToId != c.id || r.FromId > c.id {
			t.Errorf("%s: raised %v", name, r)
		}
		if raised := prove(l, 1, c.id, c.seal, 3); raised != nil {
			t.Errorf("%s: the proof of that seal raises %v", name, raised)
		}
		see(l, c.id+2)
		take(l, c.seal+1, c.id+3)
		if raised := prove(l, c.id+1, c.id+3, c.seal+1, 1, c.id+2); raised != nil {
			t.Errorf("%s: reading is complete again, and yet: %v", name, raised)
		}
	}
	l := begin()
	if raised := prove(l, 1, 3, 4, 1); len(raised) != 1 || !raised[0].WentBack || l.proven != 4 || l.settled != 3 {
		t.Fatalf("a proof of an old row: raised %v, proven %d", raised, l.proven)
	}
}

func TestHolesOfTheLogTravelWithTheSuspicion(t *testing.T) {
	l := newLedger(0)
	see(l, 1)
	l.take(20, 0, sighting{kind: sawSeal, id: 9, seal: 1})
	raised := prove(l, 1, 9, 1, 3, 1, 2, 3)
	if len(raised) != 1 || len(raised[0].Holes) != 1 || raised[0].Holes[0].From != 1 || raised[0].Holes[0].To != 19 {
		t.Fatalf("raised %v", raised)
	}
	if len(l.holes) != 0 {
		t.Error("holes stay after the proof")
	}
}

// A foreign id far ahead disturbs one interval's counts and no other's.
func TestAForeignIDFarAhead(t *testing.T) {
	l := newLedger(0)
	see(l, 1, 2, 1<<50)
	sealAt(l, 1, 3)
	if raised := prove(l, 1, 3, 1, 2, 1, 2); len(raised) != 1 || len(raised[0].Absent) != 0 {
		t.Fatalf("raised %v", raised)
	}
	for seal := uint64(2); seal < 6; seal++ {
		from := l.settled + 1
		see(l, from+1)
		sealAt(l, seal, from+2)
		if raised := prove(l, from, from+2, seal, 1, from+1); raised != nil {
			t.Fatalf("seal %d raises %v", seal, raised)
		}
	}
	if value, ok := l.row(); !ok || len(value) > 200 {
		t.Errorf("the row has %d bytes", len(value))
	}
}

// More ids than there is room for: the interval says that it was not checked,
// and the next one is checked again.
func TestIDsWithoutRoom(t *testing.T) {
	l := newLedger(0)
	l.ids = idset.NewSet(8192) // one bitmap
	see(l, 1, 2, 70_000, 140_000)
	sealAt(l, 1, 140_001)
	raised := prove(l, 1, 140_001, 1, 4, 1, 2, 70_000, 140_000)
	if len(raised) != 1 || !raised[0].Unchecked || raised[0].FromId != 1 || raised[0].ToId != 140_001 {
		t.Fatalf("raised %v", raised)
	}
	see(l, 140_003)
	sealAt(l, 2, 140_004)
	if raised := prove(l, 140_002, 140_004, 2, 1, 140_003); raised != nil {
		t.Fatalf("the next seal raises %v", raised)
	}
}

// A long list of absent ids comes in parts that together are the whole.
func TestALongListComesInParts(t *testing.T) {
	l := newLedger(0)
	want := idset.Ranges{}
	const last = 2*2*maxAbsentRuns + 10
	for id := int64(1); id < last; id++ {
		if id%2 == 0 {
			see(l, id)
		} else {
			want = want.Append(id)
		}
	}
	if _, ok := l.row(); ok {
		t.Error("such a row must wait")
	}
	sealAt(l, 1, last)
	raised := prove(l, 1, last, 1, last-1)
	var got idset.Ranges
	at := int64(1)
	for i, part := range raised {
		var absent idset.Ranges
		if err := absent.UnmarshalBinary(part.Absent); err != nil {
			t.Fatal(err)
		}
		if int(part.Part) != i || int(part.Parts) != len(raised) || part.FromId < at || len(absent.Within(part.FromId, part.ToId-1)) != len(absent) {
			t.Fatalf("part %d of %d: ids %d..%d", part.Part, part.Parts, part.FromId, part.ToId)
		}
		got, at = got.Union(absent), part.ToId
	}
	if len(raised) != 3 || at != last || !slices.Equal(got, want) {
		t.Fatalf("%d parts with %d ids up to %d, want %d ids", len(raised), got.Count(), at, want.Count())
	}
}
