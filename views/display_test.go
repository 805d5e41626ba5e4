package views

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// G19 of the bug log: a view that recovers says so and never answers 0.
func TestG19AViewThatRecoversNeverAnswersZero(t *testing.T) {
	d, m := testDisplay(t)
	m.put("like:V1", snapshot(5, 1))
	m.set(fmt.Errorf("partition 1: %w", ErrRecovering))
	if c, err := d.Count(topology.Like, "V1"); !errors.Is(err, ErrRecovering) {
		t.Errorf("count %v, %v", c, err)
	}
	if p, err := d.Progress(); !errors.Is(err, ErrRecovering) {
		t.Errorf("progress %v, %v", p, err)
	}
	m.set(nil)
	if c := mustCount(t, d, "V1"); c.Counts.Raw != 5 {
		t.Errorf("count %v once it has recovered", c)
	}
	// Nor when it falls back into recovery with the answer in its cache, or
	// between the check and the read.
	m.set(ErrRecovering)
	if c, err := d.Count(topology.Like, "V1"); !errors.Is(err, ErrRecovering) {
		t.Errorf("count %v, %v", c, err)
	}
	m.set(nil)
	m.atGet(func(string) { m.set(ErrRecovering) })
	if c, err := d.Counts(topology.Like, []string{"V2", "V3"}); !errors.Is(err, ErrRecovering) {
		t.Errorf("counts %v, %v", c, err)
	}
}

func TestCountsKeepOrderAndTellWhatIsKnown(t *testing.T) {
	d, m := testDisplay(t)
	m.put("like:V1", snapshot(5, 3))
	m.put("follow:V1", snapshot(9, 1))
	m.sealAll(1, 7, 8)
	counts, err := d.Counts(topology.Like, []string{"V2", "V1", "V2", "a:b"})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		id     string
		active int64
		found  bool
	}{{"V2", 0, false}, {"V1", 5, true}, {"V2", 0, false}, {"a:b", 0, false}} {
		if c := counts[i]; c.Kind != topology.Like || c.Target != want.id || c.Counts.Raw != want.active || c.Found != want.found || asOfText(c.AsOf) != "0:7 1:8 " {
			t.Errorf("count %d is %+v, want %+v", i, c, want)
		}
	}
	want := Count{Kind: topology.Like, Target: "V1", Counts: topology.Counts{Raw: 5}, Found: true, GeneratedAt: time.UnixMicro(500_000_000).UTC(), CommittedAt: time.UnixMicro(400_000_000).UTC(),
		Generation: 1, ManifestID: 4, Partials: 1, Seq: 3, Staleness: testNow.Sub(time.UnixMicro(7000)),
		AsOf: []ShardAsOf{
			{Shard: 0, Seal: 7, PreviousCommitLSN: 70, LSN: 71, SealedAt: time.UnixMicro(7000).UTC()},
			{Shard: 1, Seal: 8, PreviousCommitLSN: 80, LSN: 81, SealedAt: time.UnixMicro(8000).UTC()},
		}}
	if !reflect.DeepEqual(counts[1], want) {
		t.Errorf("count %+v\nwant  %+v", counts[1], want)
	}
}

func TestCountsRefuseWhatCannotBeATarget(t *testing.T) {
	d, _ := testDisplay(t)
	for name, call := range map[string]func() error{
		"an unknown kind":     func() error { _, err := d.Count(9, "V1"); return err },
		"an empty id":         func() error { _, err := d.Count(topology.Like, ""); return err },
		"a control character": func() error { _, err := d.Counts(topology.Like, []string{"V1", "a\nb"}); return err },
	} {
		if err := call(); err == nil || errors.Is(err, ErrRecovering) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestADamagedRowIsAnErrorNotZero(t *testing.T) {
	d, m := testDisplay(t)
	m.putRaw("like:V1", []byte{0xff})
	m.put("like:V2", progressRow(1, 1))
	for _, id := range []string{"V1", "V2"} {
		if c, err := d.Count(topology.Like, id); err == nil {
			t.Errorf("%s: %+v", id, c)
		}
	}
	m.put("like:V1", snapshot(3, 1))
	if c := mustCount(t, d, "V1"); c.Counts.Raw != 3 {
		t.Errorf("%+v after it was written again", c)
	}
}

func TestAnUpdateIsSeenAtOnce(t *testing.T) {
	d, m := testDisplay(t)
	var told []Update
	d.OnUpdate(func(u Update) {
		if c := mustCount(t, d, u.Target); c.Counts.Raw != u.Counts.Raw {
			t.Errorf("told of %d while the count is %d", u.Counts.Raw, c.Counts.Raw)
		}
		told = append(told, u)
	})
	if c := mustCount(t, d, "V1"); c.Found {
		t.Fatalf("found %+v", c)
	}
	for i := range 5 {
		m.put("like:V1", snapshot(int64(i), uint64(i+1)))
		if c := mustCount(t, d, "V1"); c.Counts.Raw != int64(i) || !c.Found {
			t.Fatalf("count %+v after update %d", c, i)
		}
	}
	m.set(ErrRecovering)
	m.put("like:V1", snapshot(100, 100)) // history is not told
	if len(told) != 5 || told[4] != (Update{Kind: topology.Like, Target: "V1", Counts: topology.Counts{Raw: 4}, Seq: 5, GeneratedAt: time.UnixMicro(500_000_000).UTC(), CommittedAt: time.UnixMicro(400_000_000).UTC()}) {
		t.Errorf("told %+v", told)
	}
}

// G14 of the bug log: a table that was made anew has lost rows that no update
// tells of; nothing of them is answered.
func TestG14NothingIsKeptOfATableThatReadsItselfAgain(t *testing.T) {
	for name, refill := range map[string]func(*Display, *memoryTable){
		"other rows come": func(_ *Display, m *memoryTable) { m.put("like:V2", snapshot(1, 1)) },
		"somebody asks":   func(d *Display, _ *memoryTable) { _, _ = d.Progress() },
	} {
		d, m := testDisplay(t)
		m.put("like:V1", snapshot(5, 1))
		m.sealAll(1, 7, 8)
		if c := mustCount(t, d, "V1"); c.Counts.Raw != 5 || len(c.AsOf) != 2 {
			t.Fatalf("%s: %+v", name, c)
		}
		m.set(ErrRecovering)
		m.mu.Lock()
		clear(m.rows)
		m.mu.Unlock()
		refill(d, m)
		m.set(nil)
		if c := mustCount(t, d, "V1"); c.Found || len(c.AsOf) != 0 {
			t.Errorf("%s: %+v is still answered", name, c)
		}
	}
}

// The race of the package comment: an update lands after a load has read the
// old row and before the load enters the cache. The old value must not stay.
func TestALoadThatAnUpdateOvertakesLeavesNoOldValue(t *testing.T) {
	d, m := testDisplay(t)
	m.put("like:V1", snapshot(1, 1))
	var once sync.Once
	m.atGet(func(key string) {
		if key == "like:V1" {
			once.Do(func() { m.put("like:V1", snapshot(2, 2)) })
		}
	})
	if c := mustCount(t, d, "V1"); c.Counts.Raw != 2 {
		t.Errorf("the overtaken load answered %d", c.Counts.Raw)
	}
	if c := mustCount(t, d, "V1"); c.Counts.Raw != 2 {
		t.Errorf("%d stayed in the cache", c.Counts.Raw)
	}
}

// Whatever readers and the writer do at once, a count holds at least what its
// AsOf says: with each new count the writer seals it.
func TestACountIncludesWhatItsAsOfSays(t *testing.T) {
	d, m := testDisplay(t)
	const last = 2000
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			seen := int64(0)
			for {
				c := mustCount(t, d, "V1")
				if len(c.AsOf) > 0 && c.Counts.Raw < int64(c.AsOf[0].Seal) {
					t.Errorf("count %d as of seal %d", c.Counts.Raw, c.AsOf[0].Seal)
				}
				if c.Counts.Raw < seen {
					t.Errorf("a count went from %d back to %d", seen, c.Counts.Raw)
				}
				seen = c.Counts.Raw
				select {
				case <-done:
					if c := mustCount(t, d, "V1"); c.Counts.Raw != last || c.AsOf[0].Seal != last {
						t.Errorf("in the end count %d as of %d", c.Counts.Raw, c.AsOf[0].Seal)
					}
					return
				default:
				}
			}
		})
	}
	for n := uint64(1); n <= last; n++ {
		m.put("like:V1", snapshot(int64(n), n))
		m.sealAll(n, n, n)
	}
	close(done)
	readers.Wait()
}

// A batch of 50 from the cache takes one allocation, the answer.
func TestCountsFromTheCacheAreCheap(t *testing.T) {
	d, ids := warm(t)
	if n := testing.AllocsPerRun(200, func() {
		if _, err := d.Counts(topology.Like, ids); err != nil {
			t.Error(err)
		}
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func warm(t testing.TB) (*Display, []string) {
	d, m := testDisplay(t)
	m.sealAll(1, 7, 8)
	ids := make([]string, 50)
	for i := range ids {
		ids[i] = fmt.Sprintf("V%d", i)
		m.put("like:"+ids[i], snapshot(int64(i), 1))
	}
	if _, err := d.Counts(topology.Like, ids); err != nil {
		t.Fatal(err)
	}
	return d, ids
}

func BenchmarkCounts50(b *testing.B) {
	d, ids := warm(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Counts(topology.Like, ids); err != nil {
			b.Fatal(err)
		}
	}
}
