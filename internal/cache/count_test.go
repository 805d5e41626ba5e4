package cache

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
)

var counts3 = Generation{Family: Counts, ID: 3, Deployment: "d1", Manifest: 1}

func shown(target string, seq uint64, active int64) DisplayCount {
	return DisplayCount{Kind: topology.Like, Target: target, Order: Order{seq, 1, 1}, Counts: topology.Counts{Raw: active}, GeneratedAtUs: 5, CommittedAtUs: 4, Partials: 2}
}

func writeCounts(t *testing.T, c *Client, g Generation, want int, writes ...CountWrite) {
	t.Helper()
	n, err := NewCountWriter(c).Write(t.Context(), g, first, writes)
	if err != nil || n != want {
		t.Fatalf("wrote %d values (%v), want %d", n, err, want)
	}
}

func readDisplay(t *testing.T, c *Client, g Generation, target string) *DisplayCount {
	t.Helper()
	got, err := c.Displays(t.Context(), g, topology.Like, []string{target})
	if err != nil {
		t.Fatal(err)
	}
	return got[0]
}

func isShown(t *testing.T, c *Client, g Generation, want DisplayCount) {
	t.Helper()
	if got := readDisplay(t, c, g, want.Target); got == nil || *got != want {
		t.Errorf("read %+v, want %+v", got, want)
	}
}

// countConformance is what every sort of Redis must do with counts (I3, I8).
var countConformance = map[string]func(t *testing.T, r rig){
	"a late lower seq changes nothing": func(t *testing.T, r rig) {
		stamped(t, r, counts3)
		writeCounts(t, r.client, counts3, 1, counts3.WriteDisplay(shown("V1", 12, 7)))
		writeCounts(t, r.client, counts3, 0, counts3.WriteDisplay(shown("V1", 11, 6)))
		writeCounts(t, r.client, counts3, 1, counts3.WriteDisplay(shown("V1", 12, 7))) // a duplicate
		isShown(t, r.client, counts3, shown("V1", 12, 7))
	},
	"an older projection changes nothing, a newer one begins its seq anew": func(t *testing.T, r rig) {
		stamped(t, r, counts3)
		d := shown("V1", 12, 7)
		d.Projection = 2
		writeCounts(t, r.client, counts3, 1, counts3.WriteDisplay(d))
		old := shown("V1", 99, 6)
		writeCounts(t, r.client, counts3, 0, counts3.WriteDisplay(old))
		d.Projection, d.Seq = 3, 1
		writeCounts(t, r.client, counts3, 1, counts3.WriteDisplay(d))
		isShown(t, r.client, counts3, d)
	},
	"another manifest is refused, before Redis and in it": func(t *testing.T, r rig) {
		stamped(t, r, counts3)
		writeCounts(t, r.client, counts3, 1, counts3.WriteDisplay(shown("V1", 12, 7)))
		d := shown("V1", 13, 8)
		d.Manifest = 2
		if _, err := NewCountWriter(r.client).Write(t.Context(), counts3, first, []CountWrite{counts3.WriteDisplay(d)}); !errors.Is(err, ErrManifest) {
			t.Errorf("it was answered %v", err)
		}
		other := counts3
		other.Manifest = 2 // whoever takes the generation for one of manifest 2
		writeCounts(t, r.client, other, 0, other.WriteDisplay(d))
		isShown(t, r.client, counts3, shown("V1", 12, 7))
		if _, err := r.client.Displays(t.Context(), other, topology.Like, []string{"V1"}); err == nil {
			t.Error("a count of manifest 1 was read as one of manifest 2")
		}
	},
	"an older generation's writer writes nothing after activation": func(t *testing.T, r rig) {
		stamped(t, r, counts3)
		writeCounts(t, r.client, counts3, 1, counts3.WriteDisplay(shown("V1", 12, 7)))
		next := counts3
		next.ID = 4
		stamped(t, r, next)
		writeCounts(t, r.client, next, 2, next.WriteDisplay(shown("V1", 14, 9)), next.WriteBucket(BucketCount{topology.Like, "V1", 3, Order{5, 1, 1}, topology.Counts{Raw: 9}}))
		if keys, err := r.client.Drop(t.Context(), counts3, goOn); err != nil || keys != 1 {
			t.Errorf("dropped %d keys: %v", keys, err)
		}
		if _, err := NewCountWriter(r.client).Write(t.Context(), counts3, first, []CountWrite{counts3.WriteDisplay(shown("V1", 15, 1))}); !errors.Is(err, ErrStamp) {
			t.Errorf("the late writer was answered %v", err)
		}
		isShown(t, r.client, next, shown("V1", 14, 9))
	},
	"a paused writer that wakes brings nothing back, evicted or not": func(t *testing.T, r rig) {
		stamped(t, r, counts3)
		w, later := NewCountWriter(r.client), Owner{first.Name, first.Epoch + 1}
		writeCounts(t, r.client, counts3, 1, counts3.WriteDisplay(shown("V1", 11, 6)))
		if _, err := w.Write(t.Context(), counts3, later, []CountWrite{counts3.WriteDisplay(shown("V1", 12, 7))}); err != nil {
			t.Fatal(err)
		}
		if err := r.client.eachMaster(t.Context(), evict(counts3.DisplayKey(topology.Like, "V1"))); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(t.Context(), counts3, first, []CountWrite{counts3.WriteDisplay(shown("V1", 11, 6))}); !errors.Is(err, ErrFenced) {
			t.Errorf("the paused writer was answered %v", err)
		}
		if got := readDisplay(t, r.client, counts3, "V1"); got != nil {
			t.Errorf("read %+v", got)
		}
	},
	"nothing is believed of a flushed server": func(t *testing.T, r rig) {
		stamped(t, r, counts3)
		writeCounts(t, r.client, counts3, 1, counts3.WriteDisplay(shown("V1", 12, 7)))
		r.flush(t)
		if _, err := NewCountWriter(r.client).Write(t.Context(), counts3, first, []CountWrite{counts3.WriteDisplay(shown("V1", 11, 6))}); !errors.Is(err, ErrStamp) {
			t.Errorf("a late count was answered %v", err)
		}
		if _, err := r.client.Displays(t.Context(), counts3, topology.Like, []string{"V1"}); !errors.Is(err, ErrStamp) {
			t.Errorf("reading: %v", err)
		}
		if _, err := r.client.CountProgress(t.Context(), counts3, []int{0}); !errors.Is(err, ErrStamp) {
			t.Errorf("reading progress: %v", err)
		}
	},
	"buckets, displays and progress of one target stand beside each other": func(t *testing.T, r rig) {
		stamped(t, r, counts3)
		p := CountProgress{Manifest: 1, Offset: 8, Whole: true, Read: 3, AsOf: []ShardSeal{{1, 7, 1<<63 + 5, 1<<63 + 6, 99}}}
		progress, err := counts3.WriteProgress(2, p)
		if err != nil {
			t.Fatal(err)
		}
		var writes []CountWrite
		odd := []string{"{", "{}", "a{b}c", "u|vb-7", "u:7", "视频", "%", "*"}
		for i, id := range odd {
			writes = append(writes, counts3.WriteDisplay(shown(id, 1, int64(i))))
			for b := range 2 {
				writes = append(writes, counts3.WriteBucket(BucketCount{topology.Like, id, b, Order{uint64(b + 1), 1, 1}, topology.Counts{Raw: int64(10*i + b), Disliked: 1}}))
			}
		}
		writeCounts(t, r.client, counts3, len(writes)+1, append(writes, progress)...)
		displays, buckets := map[string]int64{}, map[string]int64{}
		if err := r.client.EachCount(t.Context(), counts3, func(d *DisplayCount, b *BucketCount) error {
			if d != nil {
				displays[d.Target] = d.Counts.Raw
			} else {
				buckets[fmt.Sprint(b.Target, " ", b.Number)] = b.Counts.Raw
			}
			return nil
		}); err != nil || len(displays) != len(odd) || len(buckets) != 2*len(odd) || displays["a{b}c"] != 2 || buckets["u|vb-7 1"] != 31 {
			t.Errorf("came upon %v and %v: %v", displays, buckets, err)
		}
		if n, err := r.client.CountDisplays(t.Context(), counts3); err != nil || n != int64(len(odd)) {
			t.Errorf("counted %d: %v", n, err)
		}
		got, err := r.client.CountProgress(t.Context(), counts3, []int{1, 2})
		if err != nil || got[0] != nil || !reflect.DeepEqual(*got[1], p) {
			t.Errorf("read progress %+v: %v", got, err)
		}
		if keys, err := r.client.Drop(t.Context(), counts3, goOn); err != nil || keys != len(writes)+1 {
			t.Errorf("dropped %d keys: %v", keys, err)
		}
	},
	"a seq that Lua cannot hold is not cached": func(t *testing.T, r rig) {
		stamped(t, r, counts3)
		writeCounts(t, r.client, counts3, 1, counts3.WriteDisplay(shown("V1", maxVersion, 1)), counts3.WriteDisplay(shown("V2", maxVersion+1, 1)))
	},
}

// A hot target's buckets lie in several slots, its display in one of its own.
func TestBucketsOfOneTargetAreSpread(t *testing.T) {
	slots := map[uint16]bool{}
	for b := range 64 {
		k := counts3.CountKey(topology.Like, "V9001", b)
		if want := fmt.Sprintf("like:count:g3:{V9001|vb-%d}", b); k.String() != want {
			t.Fatalf("key %s, want %s", k, want)
		}
		slots[k.slot] = true
	}
	if len(slots) < 60 {
		t.Errorf("64 buckets lie in %d slots", len(slots))
	}
	if k := counts3.DisplayKey(topology.Like, "V9001"); k.String() != "like:count:view:g3:{V9001}" {
		t.Errorf("key %s", k)
	}
}

func TestCountsComeBackAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := Order{rapid.Uint64().Draw(t, "seq"), counts3.Manifest, rapid.Uint64().Draw(t, "projection")}
		n := rapid.Int64()
		counts := topology.Counts{Raw: n.Draw(t, "raw"), RiskHidden: n.Draw(t, "risk"), PolicyHidden: n.Draw(t, "policy"), Disliked: n.Draw(t, "disliked")}
		d := DisplayCount{topology.Like, "V1", order, counts, n.Draw(t, "generated"), n.Draw(t, "committed"), rapid.IntRange(0, 1<<20).Draw(t, "partials")}
		got, err := counts3.parseDisplay(topology.Like, "V1", counts3.WriteDisplay(d).value)
		if err != nil || *got != d {
			t.Fatalf("%+v came back as %+v: %v", d, got, err)
		}
		b := BucketCount{topology.Like, "V1", 7, order, counts}
		err = counts3.visitCount(counts3.CountKey(topology.Like, "V1", 7).String(), counts3.WriteBucket(b).value, func(_ *DisplayCount, got *BucketCount) error {
			if got == nil || *got != b {
				t.Fatalf("%+v came back as %+v", b, got)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestWhatIsNoCountIsRefused(t *testing.T) {
	good := counts3.WriteDisplay(shown("V1", 12, 7)).value
	// What nobody hides is as it was written before relations could be hidden.
	if good != "12|1|1|3|7|0|5|4|2" {
		t.Fatalf("wrote %q", good)
	}
	for _, text := range []string{"", "12", "12|1|1|3|", "x" + good, good + "|1", good + "|1|", good + "|1|2|3", good + "||", good[:len(good)-2], strings.Replace(good, "|3|", "|4|", 1), strings.Replace(good, "12|1|", "12|2|", 1)} {
		if d, err := counts3.parseDisplay(topology.Like, "V1", text); err == nil {
			t.Errorf("%q was read as %+v", text, d)
		}
	}
}
