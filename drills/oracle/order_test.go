package oracle

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
)

func TestOrderNamesWhatASequenceDid(t *testing.T) {
	a, b := content{counts: topology.Counts{Raw: 2}}, content{counts: topology.Counts{Raw: 2, RiskHidden: 1}}
	for name, c := range map[string]struct {
		before []numbered
		seq    uint64
		c      content
		want   verdict
	}{
		"first":                             {nil, 5, a, risen},
		"higher":                            {[]numbered{{5, a}}, 7, b, risen},
		"again at once":                     {[]numbered{{5, a}}, 5, a, repeated},
		"again, other content":              {[]numbered{{5, a}}, 5, b, conflict},
		"a zombie's duplicate":              {[]numbered{{5, a}, {7, b}}, 5, a, repeated},
		"a zombie that disagrees":           {[]numbered{{5, a}, {7, b}}, 5, b, conflict},
		"lower, never seen":                 {[]numbered{{5, a}, {7, b}}, 6, a, neverSeen},
		"what was never seen, a third time": {[]numbered{{5, a}, {7, b}, {6, a}}, 6, b, conflict},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOrder()
			for _, n := range c.before {
				o.take("k", n.seq, n.content)
			}
			o.take("other", c.seq, b)
			if got := o.take("k", c.seq, c.c); got != c.want {
				t.Errorf("verdict %v, want %v", got, c.want)
			}
		})
	}
}

// Whatever the order in which numbers come, one content for each is never a
// conflict while it is remembered, and two contents always are.
func TestOrderAgreesWithAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o, seen := newOrder(), map[uint64]content{}
		for range rapid.IntRange(1, 200).Draw(t, "numbers") {
			seq := rapid.Uint64Range(1, 50).Draw(t, "seq")
			c := content{counts: topology.Counts{Raw: 1, PolicyHidden: rapid.Int64Range(0, 1).Draw(t, "content")}}
			have, known := seen[seq]
			if !known {
				seen[seq] = c
			}
			if got := o.take("k", seq, c); (got == conflict) != (known && have != c) || (got == repeated) != (known && have == c) {
				t.Fatalf("seq %d: verdict %v, known %v, the same %v", seq, got, known, have == c)
			}
		}
	})
}

func TestOrderForgetsTheOldest(t *testing.T) {
	o := newOrder()
	for seq := range uint64(3 * maxRecent) {
		o.take("k", seq+1, content{})
	}
	if got := o.take("k", 1, content{counts: topology.Counts{Raw: 9}}); got != forgotten || o.lost != 1 {
		t.Errorf("verdict %v", got)
	}
	if got := o.take("k", 3*maxRecent, content{counts: topology.Counts{Raw: 9}}); got != conflict {
		t.Errorf("verdict on the newest %v", got)
	}
}

// A producer that is interrupted and goes on is found; one that stops, hands
// over, or comes back after a handover is not.
func TestWriters(t *testing.T) {
	type step struct {
		producer int64
		times    int           // rounds of reading, 20 ms apart
		pause    time.Duration // before
	}
	for name, c := range map[string]struct {
		steps []step
		want  bool
	}{
		"one":                                    {[]step{{1, 100, 0}}, false},
		"a new owner":                            {[]step{{1, 50, 0}, {2, 50, 0}}, false},
		"a zombie's tail, and the owner stops":   {[]step{{1, 50, 0}, {2, 50, 0}, {1, 3, 0}, {2, 3, 0}, {3, 50, time.Second}}, false},
		"a zombie's tail, and the owner goes on": {[]step{{1, 50, 0}, {2, 50, 0}, {1, 1, 0}, {2, 70, 0}}, true},
		"the owner learns of it late":            {[]step{{1, 50, 0}, {2, 50, 0}, {1, 1, 0}, {2, 40, 0}, {3, 50, time.Second}}, false},
		"both go on":                             {[]step{{1, 50, 0}, {2, 1, 0}, {1, 20, 0}, {2, 20, 0}, {1, 20, 0}, {2, 20, 0}}, true},
		"there and back again":                   {[]step{{1, 50, 0}, {2, 50, time.Second}, {1, 50, time.Second}, {2, 50, time.Second}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w, now, round, found := newWriters(), time.Now(), 0, false
			for _, s := range c.steps {
				now = now.Add(s.pause)
				for range s.times {
					now = now.Add(20 * time.Millisecond)
					round++
					for range 3 { // records of one round
						found = w.take(s.producer, round, now) || found
					}
				}
			}
			if found != c.want {
				t.Errorf("unfenced: %v, want %v", found, c.want)
			}
		})
	}
}

// After an interruption of the broker hundreds of records are read at once.
// What counts is when their producers made them: owners that followed each
// other are fine, owners that took turns within a handover are not.
func TestWritersReadLate(t *testing.T) {
	topo, err := topology.New(topology.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		turn int64 // records, 20 ms apart
		want bool
	}{
		"one after the other": {100, false},
		"side by side":        {3, true},
	} {
		t.Run(name, func(t *testing.T) {
			v := newView(Config{Topology: topo, Findings: new(Findings)})
			r := kgo.Record{Topic: topo.Topic(topology.DisplayTable), Timestamp: time.Now()}
			for r.Offset = range 500 {
				r.Timestamp = r.Timestamp.Add(20 * time.Millisecond)
				r.ProducerID = r.Offset / c.turn % 2
				v.take(&r, int(r.Offset))
			}
			if got := v.findings.Counts()[Unfenced] > 0; got != c.want {
				t.Errorf("unfenced writers: %v, want %v: %v", got, c.want, v.findings.Lines())
			}
		})
	}
}
