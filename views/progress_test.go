package views

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// What no count partition has told is not made up.
func TestAsOfIsUnknownUntilEveryPartitionHasSpoken(t *testing.T) {
	d, m := testDisplay(t)
	m.put("like:V1", snapshot(5, 1))
	expect := func(asOf string, staleness time.Duration) {
		t.Helper()
		if c := mustCount(t, d, "V1"); asOfText(c.AsOf) != asOf || c.Staleness != staleness {
			t.Errorf("as of %q, stale by %v; want %q, %v", asOfText(c.AsOf), c.Staleness, asOf, staleness)
		}
	}
	at := mustPartition(t, "like:V1")
	expect("", UnknownStaleness)
	m.put(topology.ProgressKey(at, 0), progressRow(0, 1, 5, 6))
	m.put(topology.ProgressKey(at, 1), progressRow(1, 1, 5, 6))
	expect("", UnknownStaleness)
	m.put(topology.ProgressKey(at, 2), progressRow(2, 1, 4)) // knows shard 0 only
	expect("0:4 ", UnknownStaleness)
	m.put(topology.ProgressKey(at, 2), progressRow(2, 2, 4, 9))
	expect("0:4 1:6 ", testNow.Sub(time.UnixMicro(4000)))
	// Another display partition's progress says nothing here.
	m.put(topology.ProgressKey(1-at, 2), progressRow(2, 3, 1, 1))
	expect("0:4 1:6 ", testNow.Sub(time.UnixMicro(4000)))
	// Partitions that the topology does not have are not heard.
	m.put(topology.ProgressKey(7, 2), progressRow(2, 3, 1, 1))
	m.put(topology.ProgressKey(at, 9), progressRow(9, 3, 1, 1))
	expect("0:4 1:6 ", testNow.Sub(time.UnixMicro(4000)))
}

func mustPartition(t testing.TB, key string) int {
	t.Helper()
	at, err := topology.PartitionOf(key, 2)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// A clock behind the source's is no negative age.
func TestStalenessIsNeverNegative(t *testing.T) {
	d, m := testDisplay(t)
	m.sealAll(1, 2_000_000, 3_000_000)
	if c := mustCount(t, d, "V1"); c.Staleness != 0 {
		t.Errorf("stale by %v", c.Staleness)
	}
}

func TestProgressIsTheLeastOfAllPairs(t *testing.T) {
	d, m := testDisplay(t)
	expect := func(asOf string, complete bool, unheard int) {
		t.Helper()
		p, err := d.Progress()
		if err != nil || asOfText(p.AsOf) != asOf || p.Complete != complete || p.Unheard != unheard {
			t.Errorf("%q, complete %v, %d unheard, %v; want %q, %v, %d", asOfText(p.AsOf), p.Complete, p.Unheard, err, asOf, complete, unheard)
		}
	}
	expect("", false, 6)
	m.put(topology.ProgressKey(0, 0), progressRow(0, 1, 5, 6))
	expect("", false, 5)
	m.sealAll(2, 5, 6)
	expect("0:5 1:6 ", true, 0)
	m.put(topology.ProgressKey(1, 2), progressRow(2, 3, 4, 9))
	expect("0:4 1:6 ", true, 0)
}

// After an error nothing is forgotten: the marked rows are read again.
func TestProgressSurvivesAFailedRead(t *testing.T) {
	d, m := testDisplay(t)
	m.sealAll(1, 5, 6)
	m.atGet(func(key string) {
		if key == topology.ProgressKey(1, 1) {
			m.set(ErrRecovering)
		}
	})
	_, _ = d.Progress()
	if _, err := d.Progress(); !errors.Is(err, ErrRecovering) {
		t.Fatalf("got %v", err)
	}
	m.atGet(nil)
	m.set(nil)
	if p, err := d.Progress(); err != nil || asOfText(p.AsOf) != "0:5 1:6 " {
		t.Errorf("%+v, %v", p, err)
	}
	m.putRaw(topology.ProgressKey(0, 0), []byte{0xff})
	if p, err := d.Progress(); err == nil {
		t.Errorf("a damaged row gave %+v", p)
	}
}

// AsOf equals a plain computation over the rows, whatever order they come in.
func TestAsOfEqualsThePlainComputation(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d, m := testDisplay(t)
		rows := map[pair][2]uint64{}
		for i := range rapid.IntRange(0, 40).Draw(rt, "updates") {
			at := pair{rapid.IntRange(0, 1).Draw(rt, "display"), rapid.IntRange(0, 2).Draw(rt, "count")}
			seals := [2]uint64{rapid.Uint64Range(0, 9).Draw(rt, "shard 0"), rapid.Uint64Range(0, 9).Draw(rt, "shard 1")}
			rows[at] = seals
			m.put(topology.ProgressKey(at.display, at.count), progressRow(at.count, uint64(i), seals[:]...))
			if rapid.Bool().Draw(rt, "read") {
				compare(rt, d, rows)
			}
		}
		compare(rt, d, rows)
	})
}

func compare(rt *rapid.T, d *Display, rows map[pair][2]uint64) {
	id := rapid.SampledFrom([]string{"V1", "V2", "V3", "V4"}).Draw(rt, "target")
	at, _ := topology.PartitionOf(topology.TargetKey(topology.Like, id), 2)
	want := ""
	for shard := range 2 {
		least := uint64(99)
		for c := range 3 {
			least = min(least, rows[pair{at, c}][shard])
		}
		if least > 0 {
			want += fmt.Sprintf("%d:%d ", shard, least)
		}
	}
	c, err := d.Count(topology.Like, id)
	if err != nil || asOfText(c.AsOf) != want {
		rt.Fatalf("as of %q, want %q: %v", asOfText(c.AsOf), want, err)
	}
}

// Whatever the table holds, nothing panics and no answer is half one.
func FuzzUpdate(f *testing.F) {
	row := func(r *tidemarkv1.DisplayRow) []byte {
		b, err := r.MarshalVT()
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	f.Add("like:V1", row(snapshot(5, 1)))
	f.Add(topology.ProgressKey(1, 2), row(progressRow(2, 1, 4, 5)))
	f.Add("nonsense", []byte{1})
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		d, m := testDisplay(t)
		d.OnUpdate(func(Update) {})
		m.putRaw(key, value)
		kind, id, err := topology.ParseTargetKey(key)
		if err != nil {
			kind, id = topology.Like, "V1"
		}
		c, err := d.Count(kind, id)
		if err == nil && !c.Found && c.Counts.Raw != 0 {
			t.Fatalf("%+v", c)
		}
		if p, err := d.Progress(); err == nil && p.Complete {
			t.Fatalf("one row made progress complete: %+v", p)
		}
	})
}

// The lag is that of the oldest shard, and unknown while one is.
func TestLagIsThatOfTheOldestSeal(t *testing.T) {
	d, m := testDisplay(t)
	if lag, ok := d.Lag(); ok {
		t.Errorf("lag %v, although nothing is known", lag)
	}
	m.sealAll(1, 2, 3)
	oldest := mustCount(t, d, "V1").AsOf[0].SealedAt
	if lag, ok := d.Lag(); !ok || lag != testNow.Sub(oldest) {
		t.Errorf("lag %v, %v; the oldest seal is of %v, it is %v", lag, ok, oldest, testNow)
	}
}
