package cache

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

var (
	heads3 = Generation{Family: Heads, ID: 3, Deployment: "d1"}
	part2  = HeadOf{Kind: topology.Like, Target: "V{1}", Reverse: 7, Partition: 2}
)

const headTime = int64(1_790_000_000_123_457) // needs all of a score's digits

func entry(user string, at int64) newest.Entry {
	return newest.Entry{User: user, LikedAtUs: headTime + at, Version: uint64(at + 1)}
}

func saying(epoch int64, write uint64) *tidemarkv1.HeadPart {
	return &tidemarkv1.HeadPart{Epoch: epoch, Write: write, Offset: int64(write) * 10, Whole: true, AsOf: []*tidemarkv1.SourceWatermark{{Shard: 1, Seal: write}}}
}

func change(from, to *tidemarkv1.HeadPart, remove, add []newest.Entry) HeadChange {
	return HeadChange{HeadOf: part2, From: from, To: to, Remove: remove, Add: add, Expire: time.Minute}
}

// put writes one change and wants an error, nil for none.
func put(t *testing.T, r rig, want error, c HeadChange) {
	t.Helper()
	if err := NewHeadWriter(r.client).Write(t.Context(), heads3, []HeadChange{c})[0]; !errors.Is(err, want) {
		t.Fatalf("writing a part: %v, want %v", err, want)
	}
}

func headOf(t *testing.T, r rig, from int64, limit int) HeadPart {
	t.Helper()
	return r.client.Heads(t.Context(), heads3, []HeadRead{{part2, from, limit}})[0]
}

func wantHead(t *testing.T, p HeadPart, says *tidemarkv1.HeadPart, more bool, entries ...newest.Entry) {
	t.Helper()
	if p.Err != nil || !proto.Equal(p.HeadPart, says) || p.More != more || !slices.Equal(p.Entries, entries) {
		t.Fatalf("read %v, more %v, %d entries, %.300v, %v; want %v, more %v, %d entries, %.300v", p.HeadPart, p.More, len(p.Entries), p.Entries, p.Err, says, more, len(entries), entries)
	}
}

// headConformance is what every sort of Redis must do for heads.
var headConformance = map[string]func(t *testing.T, r rig){
	"a part is its entries in the list's order, with what it says of itself": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		put(t, r, nil, change(nil, saying(100, 1), nil, []newest.Entry{entry("b", 5), entry("ab", 5), entry("a", 5), entry("用户", 9), entry("z", 1)}))
		wantHead(t, headOf(t, r, 0, 10), saying(100, 1), false, entry("用户", 9), entry("a", 5), entry("ab", 5), entry("b", 5), entry("z", 1))
		wantHead(t, headOf(t, r, 0, 2), saying(100, 1), true, entry("用户", 9), entry("a", 5))
		wantHead(t, headOf(t, r, headTime+5, 10), saying(100, 1), false, entry("a", 5), entry("ab", 5), entry("b", 5), entry("z", 1))
		wantHead(t, headOf(t, r, headTime, 10), saying(100, 1), false)
	},
	"a change goes from what stands to what is next": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		put(t, r, nil, change(nil, saying(100, 1), nil, []newest.Entry{entry("a", 1), entry("b", 2)}))
		put(t, r, nil, change(saying(100, 1), saying(100, 2), []newest.Entry{entry("a", 1)}, []newest.Entry{entry("a", 3)}))
		wantHead(t, headOf(t, r, 0, 10), saying(100, 2), false, entry("a", 3), entry("b", 2))
		put(t, r, ErrHeadGone, change(saying(100, 1), saying(100, 2), nil, []newest.Entry{entry("c", 4)})) // twice
		wantHead(t, headOf(t, r, 0, 10), saying(100, 2), false, entry("a", 3), entry("b", 2))
		put(t, r, nil, change(nil, saying(100, 3), nil, []newest.Entry{entry("d", 4)}))
		wantHead(t, headOf(t, r, 0, 10), saying(100, 3), false, entry("d", 4))
	},
	"an evicted part is not there, and takes no change": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		put(t, r, nil, change(nil, saying(100, 1), nil, []newest.Entry{entry("a", 1)}))
		if err := r.client.eachMaster(t.Context(), evict(heads3.HeadKey(part2))); err != nil {
			t.Fatal(err)
		}
		if p := headOf(t, r, 0, 10); !errors.Is(p.Err, ErrNoHead) {
			t.Fatalf("read %+v", p)
		}
		put(t, r, ErrHeadGone, change(saying(100, 1), saying(100, 2), nil, []newest.Entry{entry("b", 2)}))
		if p := headOf(t, r, 0, 10); !errors.Is(p.Err, ErrNoHead) {
			t.Fatalf("read %+v: a change has made a part of what is missing", p)
		}
	},
	"a flushed server has no head and takes none": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		put(t, r, nil, change(nil, saying(100, 1), nil, []newest.Entry{entry("a", 1)}))
		r.flush(t)
		put(t, r, ErrStamp, change(nil, saying(100, 2), nil, []newest.Entry{entry("a", 1)}))
		if p := headOf(t, r, 0, 10); !errors.Is(p.Err, ErrStamp) {
			t.Fatalf("read %+v", p)
		}
	},
	"a paused owner that wakes writes nothing, and what it left is not read": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		put(t, r, nil, change(nil, saying(100, 1), nil, []newest.Entry{entry("a", 1)}))
		other := change(nil, saying(101, 1), nil, []newest.Entry{entry("b", 2)})
		other.Target = "V{1}|r7|p2}" // another list; its key must not be this one's
		if !r.client.cluster {       // a slot knows its own owner only
			put(t, r, nil, other)
			if p := headOf(t, r, 0, 10); !errors.Is(p.Err, ErrNoHead) {
				t.Fatalf("read %+v of an owner after whom another one has written", p)
			}
		}
		put(t, r, nil, change(nil, saying(101, 2), nil, []newest.Entry{entry("b", 2)}))
		put(t, r, ErrFenced, change(saying(100, 1), saying(100, 2), nil, []newest.Entry{entry("c", 3)}))
		put(t, r, ErrFenced, change(nil, saying(100, 2), nil, []newest.Entry{entry("c", 3)}))
		wantHead(t, headOf(t, r, 0, 10), saying(101, 2), false, entry("b", 2))
		if err := r.client.eachMaster(t.Context(), evict(heads3.HeadKey(part2))); err != nil {
			t.Fatal(err)
		}
		put(t, r, ErrFenced, change(nil, saying(100, 3), nil, []newest.Entry{entry("c", 3)})) // evicted or not
		if err := NewHeadWriter(r.client).Remove(t.Context(), heads3, 100, []HeadOf{part2}); !errors.Is(err, ErrFenced) {
			t.Errorf("removing: %v", err)
		}
	},
	"a list that has cooled has no key": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		put(t, r, nil, change(nil, saying(100, 1), nil, []newest.Entry{entry("a", 1)}))
		if err := NewHeadWriter(r.client).Remove(t.Context(), heads3, 100, []HeadOf{part2}); err != nil {
			t.Fatal(err)
		}
		if p := headOf(t, r, 0, 10); !errors.Is(p.Err, ErrNoHead) {
			t.Fatalf("read %+v", p)
		}
		if keys, err := r.client.Drop(t.Context(), heads3, goOn); err != nil || keys != 0 {
			t.Errorf("%d keys were left: %v", keys, err)
		}
	},
	"a part that nobody writes any more expires": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		c := change(nil, saying(100, 1), nil, []newest.Entry{entry("a", 1)})
		put(t, r, nil, c)
		ttl := func() any {
			return r.client.Read(t.Context(), []Read{{heads3.HeadKey(part2), []any{"pttl", heads3.HeadKey(part2).name}}})[0].Value
		}
		if ms, _ := ttl().(int64); ms <= 0 || ms > time.Minute.Milliseconds() {
			t.Errorf("the part lives %v ms", ttl())
		}
	},
	"an ended generation's heads are removed": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		put(t, r, nil, change(nil, saying(100, 1), nil, []newest.Entry{entry("a", 1)}))
		if keys, err := r.client.Drop(t.Context(), heads3, goOn); err != nil || keys != 1 {
			t.Errorf("dropped %d keys: %v", keys, err)
		}
		put(t, r, ErrStamp, change(nil, saying(100, 2), nil, nil))
	},
	"an empty part says that nobody is in the list": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		put(t, r, nil, change(nil, saying(100, 1), nil, nil))
		wantHead(t, headOf(t, r, 0, 10), saying(100, 1), false)
	},
	"thousands of entries, several parts at once": func(t *testing.T, r rig) {
		stamped(t, r, heads3)
		var all []newest.Entry
		for i := range 1500 {
			all = append(all, entry(fmt.Sprintf("u%04d", i), int64(5000-i)))
		}
		a, b := change(nil, saying(100, 1), nil, all), change(nil, saying(100, 1), nil, all[:3])
		b.Partition = 3
		for _, err := range NewHeadWriter(r.client).Write(t.Context(), heads3, []HeadChange{a, b}) {
			if err != nil {
				t.Fatal(err)
			}
		}
		got := r.client.Heads(t.Context(), heads3, []HeadRead{{a.HeadOf, 0, 2000}, {b.HeadOf, 0, 2000}})
		wantHead(t, got[0], saying(100, 1), false, all...)
		wantHead(t, got[1], saying(100, 1), false, all[:3]...)
	},
}

func init() {
	for name, check := range headConformance {
		conformance["heads: "+name] = check
	}
}

// The set's order is the list's, whatever the ids are.
func TestMembersAreOrderedAsTheList(t *testing.T) {
	id := rapid.StringMatching(`[!-~é用]{1,4}`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := newest.Entry{User: id.Draw(t, "a"), Version: rapid.Uint64().Draw(t, "av")}, newest.Entry{User: id.Draw(t, "b"), Version: rapid.Uint64().Draw(t, "bv")}
		if a.User != b.User && a.Before(b) != (memberOf(a) < memberOf(b)) {
			t.Fatalf("%q and %q are ordered otherwise than %q and %q", memberOf(a), memberOf(b), a.User, b.User)
		}
	})
}
