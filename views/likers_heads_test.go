package views

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// headsOf is a Redis that has heads of an index's lists, as they were when it was
// told last.
type headsOf struct {
	index  *index
	length int // of a part

	mu     sync.Mutex
	offset int64
	parts  map[int][]newest.Entry // by partition; nil for one that is missing
	cut    map[int]bool
	asked  int
	err    error
}

// follow brings every part to what the index has now.
func (h *headsOf) follow(kind topology.Kind, target string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.offset++
	h.parts, h.cut = map[int][]newest.Entry{}, map[int]bool{}
	for partition := range h.index.reverse.ShardsByPartition(kind, target) {
		h.parts[partition] = []newest.Entry{}
	}
	for _, e := range h.index.entries {
		p := h.index.reverse.Partition(kind, target, h.index.reverse.Shard(e.User))
		h.parts[p] = append(h.parts[p], e)
	}
	for p, entries := range h.parts {
		slices.SortFunc(entries, newest.Compare)
		if h.cut[p] = len(entries) > h.length; h.cut[p] {
			h.parts[p] = entries[:h.length]
		}
	}
}

func (h *headsOf) Heads(_ context.Context, _ cache.Generation, reads []cache.HeadRead) []cache.HeadPart {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	out := make([]cache.HeadPart, len(reads))
	for i, r := range reads {
		entries := h.parts[r.Partition]
		if h.err != nil || entries == nil {
			out[i].Err = errors.Join(h.err)
			if h.err == nil {
				out[i].Err = cache.ErrNoHead
			}
			continue
		}
		p := cache.HeadPart{HeadPart: &tidemarkv1.HeadPart{Offset: h.offset, Whole: !h.cut[r.Partition], AsOf: []*tidemarkv1.SourceWatermark{{Shard: 0, Seal: h.index.seals[r.Partition], SealedAtUs: 5}}}}
		for _, e := range entries {
			if (r.FromUs == 0 || e.LikedAtUs <= r.FromUs) && len(p.Entries) < r.Limit {
				p.Entries = append(p.Entries, e)
			}
		}
		p.More = h.cut[r.Partition] || len(p.Entries) == r.Limit
		out[i] = p
	}
	return out
}

// headView is a view of an index whose owners say that its one list is hot.
func headView(t testing.TB, length int) (*Likers, *index, *headsOf) {
	l := viewOf(t, everywhere{}, nil)
	x := newIndex(l.reverse)
	h := &headsOf{index: x, length: length}
	l.heads = newHeads(&LikersHeads{Cache: h, Active: func() (cache.Generation, bool) { return cache.Generation{}, true }})
	l.ask = serial(func(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
		resp, err := x.ask(ctx, address, req)
		h.mu.Lock()
		defer h.mu.Unlock()
		resp.Head, resp.Offset = true, h.offset
		return resp, err
	})
	return l, x, h
}

func pagesFrom(l *Likers, why string) int {
	var m dto.Metric
	if err := l.metrics.heads.WithLabelValues(why).Write(&m); err != nil {
		panic(err)
	}
	return int(m.GetCounter().GetValue())
}

// The union of all pages, of which the first come from the head and the others
// from the index, is every user who stayed, exactly once, whatever comes and goes,
// and whichever parts go missing between pages.
func TestPagesAcrossHeadAndIndexTellEveryStableUserOnce(t *testing.T) {
	used := map[string]int{}
	for _, limit := range []int{1, 7, 100, 200} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			stable := min(stableUsers, 60*limit)
			rapid.Check(t, func(rt *rapid.T) {
				l, x, h := headView(t, rapid.IntRange(1, 120).Draw(rt, "length"))
				for i := range stable {
					x.add(fmt.Sprintf("stable%d", i), rapid.Int64Range(1, 300).Draw(rt, "at"))
				}
				h.follow(topology.Like, "V1")
				if _, err := l.Page(t.Context(), LikersQuery{Kind: topology.Like, Target: "V1", Limit: 1}); err != nil {
					rt.Fatal(err) // the owners say that it is hot
				}
				churned := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})
				users, err := walk(l, limit, func() {
					user := churned.Draw(rt, "who")
					if _, in := x.entries[user]; in {
						delete(x.entries, user)
					} else {
						x.add(user, rapid.Int64Range(1, 400).Draw(rt, "when"))
					}
					switch rapid.IntRange(0, 9).Draw(rt, "redis") {
					case 0:
						h.mu.Lock()
						for p := range h.parts {
							delete(h.parts, p) // one of them
							break
						}
						h.mu.Unlock()
					case 1: // it falls behind
					default:
						h.follow(topology.Like, "V1")
					}
				}, nil)
				if err == nil {
					err = once(users, stable)
				}
				if err != nil {
					rt.Fatal(err)
				}
				for _, why := range headResults {
					used[why] += pagesFrom(l, why)
				}
			})
		})
	}
	for _, why := range []string{fromHead, headTurn, headMissing, headBelowCut} {
		if used[why] == 0 {
			t.Errorf("no page was %s: %v", why, used)
		}
	}
	t.Logf("pages: %v", used)
}

// A page from the head is the page from the index, its watermarks and its frontier
// included.
func TestPageFromHeadIsThePageFromTheIndex(t *testing.T) {
	l, x, h := headView(t, 40)
	plain := viewOf(t, everywhere{}, serial(x.ask))
	for i := range 300 {
		x.add(fmt.Sprintf("u%d", i), int64(1000-i/3))
	}
	for p := range l.reverse.ShardsByPartition(topology.Like, "V1") {
		x.seals[p] = uint64(10 + p)
	}
	h.follow(topology.Like, "V1")
	for _, limit := range []int{1, 7, 20, 100} {
		q := LikersQuery{Kind: topology.Like, Target: "V1", Limit: limit}
		for done := false; !done; {
			a, err := l.Page(t.Context(), q)
			b, err2 := plain.Page(t.Context(), q)
			if err != nil || err2 != nil {
				t.Fatal(err, err2)
			}
			if !slices.Equal(a.Entries, b.Entries) || !slices.Equal(a.Frontier, b.Frontier) || a.Done != b.Done || !slices.Equal(a.AsOf, b.AsOf) || a.Staleness != b.Staleness || a.Generation != b.Generation || a.Standby {
				t.Fatalf("limit %d, behind %v: with heads %+v, without %+v", limit, q.Frontier, a, b)
			}
			q.Frontier, q.Generation, done = a.Frontier, a.Generation, a.Done
		}
	}
	if pagesFrom(l, fromHead) < 100 {
		t.Errorf("only %d pages came from the head", pagesFrom(l, fromHead))
	}
}

// What the head cannot answer the index does, and the metric says why.
func TestPageWithoutHead(t *testing.T) {
	l, x, h := headView(t, 40)
	for i := range 300 {
		x.add(fmt.Sprintf("u%d", i), int64(1000-i))
	}
	q := LikersQuery{Kind: topology.Like, Target: "V1", Limit: 20}
	page := func(why string) {
		t.Helper()
		before, pages := 0, pagesFrom(l, why)
		for p := range x.asked {
			before += x.asked[p]
		}
		p, err := l.Page(t.Context(), q)
		if err != nil || len(p.Entries) != 20 || p.Entries[0].User != "u0" {
			t.Fatalf("%+v, %v", p, err)
		}
		after := 0
		for p := range x.asked {
			after += x.asked[p]
		}
		if pagesFrom(l, why) != pages+1 {
			t.Errorf("the page is not counted as %s", why)
		}
		if (after == before) != (why == fromHead) {
			t.Errorf("%s: the owners were asked %d times", why, after-before)
		}
	}
	h.follow(topology.Like, "V1")
	page(headCold)
	if h.asked != 0 {
		t.Error("Redis was asked for a list of which nobody said that it is hot")
	}
	page(fromHead)
	for p := range h.parts {
		delete(h.parts, p)
		break
	}
	page(headMissing)
	h.follow(topology.Like, "V1")
	page(fromHead)
	h.mu.Lock()
	h.offset = 0 // the owner has answered with a higher one
	h.mu.Unlock()
	least := l.heads.known[topology.TargetKey(topology.Like, "V1")].least
	page(headOlder)
	if now := l.heads.known[topology.TargetKey(topology.Like, "V1")].least; !slices.Equal(now, least) {
		t.Errorf("a list may go back: parts need offsets %v, needed %v", now, least)
	}
	h.mu.Lock()
	h.offset = 10
	h.mu.Unlock()
	page(fromHead)
	h.err = errors.New("connection refused")
	page(headUnavailable)
	asked := h.asked
	page(headUnavailable)
	if h.asked != asked {
		t.Error("Redis was asked again at once")
	}
	h.err = nil
	l.heads.restUntil.Store(0)
	h.mu.Lock()
	for p := range h.parts {
		slices.Reverse(h.parts[p])
	}
	h.mu.Unlock()
	page(headInvalid)
	h.follow(topology.Like, "V1")
	l.heads.Active = func() (cache.Generation, bool) { return cache.Generation{}, false }
	page(headNoGen)
}

// The owners see every page, also those that they did not answer.
func TestOwnersLearnOfPagesFromTheHead(t *testing.T) {
	l, x, h := headView(t, 40)
	for i := range 100 {
		x.add(fmt.Sprintf("u%d", i), int64(1000-i))
	}
	h.follow(topology.Like, "V1")
	told := map[uint32]int{}
	inner := l.ask
	l.ask = func(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
		h.mu.Lock()
		told[req.Partition] += 1 + int(req.HeadReads)
		h.mu.Unlock()
		return inner(ctx, address, req)
	}
	const pages = 10*(headReads+1) + 1
	for range pages {
		if _, err := l.Page(t.Context(), LikersQuery{Kind: topology.Like, Target: "V1", Limit: 20}); err != nil {
			t.Fatal(err)
		}
	}
	for p, n := range told {
		if n != pages {
			t.Errorf("partition %d was told of %d of %d pages", p, n, pages)
		}
	}
	if n := pagesFrom(l, fromHead); n != 10*headReads {
		t.Errorf("%d of %d pages came from the head", n, pages)
	}
	// A list that has cooled is asked for no more.
	l.ask = serial(x.ask)
	l.heads.known[topology.TargetKey(topology.Like, "V1")].askedAt = time.Time{}
	for _, why := range []string{headTurn, headCold} {
		before := pagesFrom(l, why)
		if _, err := l.Page(t.Context(), LikersQuery{Kind: topology.Like, Target: "V1", Limit: 20}); err != nil || pagesFrom(l, why) != before+1 {
			t.Errorf("the page is not %s: %v", why, err)
		}
	}
}

func TestKnownHeadsAreBounded(t *testing.T) {
	l, _, _ := headView(t, 40)
	hot := []*tidemarkv1.ListLikersResponse{{Head: true, Offset: 5}}
	now := time.Now()
	for i := range maxKnownHeads + 10 {
		l.heads.learn(fmt.Sprint(i), hot, now)
	}
	if n := len(l.heads.known); n != maxKnownHeads {
		t.Errorf("%d lists are remembered", n)
	}
	l.heads.learn("later", hot, now.Add(2*headKnown))
	if n := len(l.heads.known); n != 1 {
		t.Errorf("%d lists are remembered after all but one were forgotten", n)
	}
}
