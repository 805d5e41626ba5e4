package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/pagetoken"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

const (
	likersPath = "/v1/videos/V1/likers"
	myLikes    = "/v1/me/likes"
)

// listPaths has every list.
var listPaths = []string{myLikes, "/v1/me/favorites", "/v1/me/following", "/v1/users/u7/likes", "/v1/users/u7/favorites",
	"/v1/users/u7/following", likersPath, "/v1/videos/V1/favoriters", "/v1/users/u7/followers"}

// listPage is an answer of any list.
type listPage struct {
	Items []struct {
		UserID, VideoID                  string
		LikedAt, FavoritedAt, FollowedAt time.Time
	}
	NextPageToken *string
	AsOf          *time.Time
	Watermarks    []ListWatermark
}

func get(t testing.TB, path string) *http.Request {
	t.Helper()
	return request(t, http.MethodGet, path, "")
}

func pageOf(path string, size int, token *string) string {
	q := url.Values{"pageSize": {fmt.Sprint(size)}}
	if token != nil {
		q.Set("pageToken", *token)
	}
	return path + "?" + q.Encode()
}

// readAll walks a list to its end.
func (ta *testAPI) readAll(path string, size int, between func(page int)) (ids []string) {
	ta.t.Helper()
	var token *string
	for page := 0; ; page++ {
		var p listPage
		ta.do(get(ta.t, pageOf(path, size, token)), 200, &p)
		if len(p.Items) > size {
			ta.t.Fatalf("a page of %d has %d items", size, len(p.Items))
		}
		for _, item := range p.Items {
			ids = append(ids, item.UserID+item.VideoID)
		}
		if token = p.NextPageToken; token == nil {
			return ids
		}
		if between != nil {
			between(page)
		}
	}
}

func liker(user string, second int) views.Liker {
	return views.Liker{User: user, LikedAt: testTime.Add(time.Duration(second) * time.Second), Version: 1}
}

func likeFact(target string, second int) relations.Fact {
	return relations.Fact{Relation: topology.Relation{Kind: topology.Like, User: "u7", Target: target}, State: topology.Liked,
		Version: 1, StateChangedAt: testTime.Add(time.Duration(second) * time.Second)}
}

// TestListsTellEveryVisibleEntryOnce, in order, whatever the size of pages and
// whatever is hidden, also when pages end short (F2, F3).
func TestListsTellEveryVisibleEntryOnce(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	rapid.Check(t, func(r *rapid.T) {
		f := ta.lists
		f.hidden, f.likers, f.facts = map[string]bool{}, nil, nil
		var want []string
		for i := range rapid.IntRange(0, 60).Draw(r, "entries") {
			id := fmt.Sprintf("x%02d", 99-i) // descending, as facts of one time are told
			second := -i / rapid.IntRange(1, 3).Draw(r, "ties")
			if i > 0 {
				second = min(second, int(f.facts[i-1].StateChangedAt.Sub(testTime)/time.Second))
			}
			f.facts = append(f.facts, likeFact(id, second))
			f.likers = append(f.likers, liker(id, second))
			if rapid.Bool().Draw(r, "hidden") {
				f.hidden[id] = true
			} else {
				want = append(want, id)
			}
		}
		size := rapid.SampledFrom([]int{1, 2, 7, 100, 200}).Draw(r, "size")
		if got := ta.readAll(myLikes, size, nil); !slices.Equal(got, want) {
			r.Fatalf("likes %v, want %v", got, want)
		}
		got := ta.readAll(likersPath, size, nil)
		slices.Sort(got) // of one time they are told by user
		slices.Sort(want)
		if !slices.Equal(got, want) {
			r.Fatalf("likers %v, want %v", got, want)
		}
	})
}

// TestHiddenPagesGoOn: a page whose entries are all hidden is empty, and the
// next one begins behind them.
func TestHiddenPagesGoOn(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.lists.hidden = map[string]bool{}
	for i := range 100 {
		id := fmt.Sprintf("u%03d", i)
		ta.lists.likers = append(ta.lists.likers, liker(id, -i))
		ta.lists.hidden[id] = i < 99
	}
	var p listPage
	ta.do(get(t, pageOf(likersPath, 10, nil)), 200, &p)
	if len(p.Items) != 0 || p.Items == nil || p.NextPageToken == nil || len(ta.lists.asked) != scanRounds {
		t.Errorf("%d items, token %v after %d rounds", len(p.Items), p.NextPageToken, len(ta.lists.asked))
	}
	if got := ta.readAll(likersPath, 10, nil); !slices.Equal(got, []string{"u099"}) {
		t.Errorf("%v", got)
	}
}

// TestLateEntryIsTold: a page moves only the places of shards that it told
// from; an entry that comes late to another shard is told, though older than
// what was told before.
func TestLateEntryIsTold(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	byShard := map[uint32][]string{}
	for i := range 40 {
		id := fmt.Sprint("u", i)
		byShard[fakeShard(id)] = append(byShard[fakeShard(id)], id)
	}
	for i, id := range byShard[0][:6] {
		ta.lists.likers = append(ta.lists.likers, liker(id, -i))
	}
	late := byShard[1][0]
	got := ta.readAll(likersPath, 3, func(page int) {
		if page == 0 {
			ta.lists.likers = append(ta.lists.likers, liker(late, -1))
		}
	})
	if want := append(slices.Clone(byShard[0][:3]), append([]string{late}, byShard[0][3:6]...)...); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestListAnswers(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.lists.facts = []relations.Fact{likeFact("V2", 5), likeFact("V1", 0)}
	ta.lists.likers = []views.Liker{liker("u1", 3)}
	ta.lists.asOf = []views.ShardAsOf{{Shard: 0, Seal: 4, SealedAt: testTime.Add(9 * time.Second)}, {Shard: 1, Seal: 7, SealedAt: testTime.Add(8 * time.Second)}}
	for _, path := range listPaths {
		var p listPage
		ta.do(get(t, path), 200, &p)
		item := p.Items[0]
		at := []time.Time{item.LikedAt, item.FavoritedAt, item.FollowedAt}
		set := slices.DeleteFunc(at, time.Time.IsZero)
		if len(set) != 1 || (item.UserID == "") == (item.VideoID == "") || p.NextPageToken != nil {
			t.Errorf("%s: %+v", path, p)
		}
		reverse := len(p.Items) == 1
		switch {
		case reverse && (len(p.Watermarks) != 2 || p.AsOf == nil || !p.AsOf.Equal(testTime.Add(8*time.Second)) || !set[0].Equal(testTime.Add(3*time.Second))):
			t.Errorf("%s: as of %v, %+v, item at %v", path, p.AsOf, p.Watermarks, set)
		case !reverse && (!p.AsOf.Equal(testTime.Add(time.Minute)) || !reflect.DeepEqual(p.Watermarks, []ListWatermark{{2, 9, testTime}})):
			t.Errorf("%s: as of %v, %+v", path, p.AsOf, p.Watermarks)
		}
	}
	ta.lists.staleness = views.UnknownStaleness
	var p listPage
	ta.do(get(t, likersPath), 200, &p)
	if p.AsOf != nil {
		t.Errorf("as of %v while a shard is missing", p.AsOf)
	}
}

// TestAsOfIsTheLeastOfItsParts: a page put together from two answers includes
// what both do.
func TestAsOfIsTheLeastOfItsParts(t *testing.T) {
	at := func(shard int, seal uint64) views.ShardAsOf {
		return views.ShardAsOf{Shard: shard, Seal: seal, SealedAt: testTime.Add(time.Duration(seal) * time.Second)}
	}
	w := &likerWalk{}
	w.include(views.LikersPage{AsOf: []views.ShardAsOf{at(0, 5), at(1, 5), at(2, 5)}})
	w.include(views.LikersPage{AsOf: []views.ShardAsOf{at(0, 6), at(1, 4)}, Staleness: views.UnknownStaleness})
	w.include(views.LikersPage{AsOf: []views.ShardAsOf{at(0, 7), at(1, 7), at(2, 7)}})
	if end := w.end(); end.asOf != nil || len(end.watermarks) != 2 || end.watermarks[0].Seal != 5 || end.watermarks[1].Seal != 4 {
		t.Errorf("%+v", end)
	}
}

func TestBadListQueries(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.lists.likers = []views.Liker{liker("u1", 3), liker("u2", 2)}
	ta.lists.facts = []relations.Fact{likeFact("V2", 5), likeFact("V1", 0)}
	var p listPage
	ta.do(get(t, pageOf(likersPath, 1, nil)), 200, &p)
	good := *p.NextPageToken
	ta.do(get(t, pageOf(myLikes, 1, nil)), 200, &p)
	mine := *p.NextPageToken
	last := "A"
	if strings.HasSuffix(good, last) {
		last = "B"
	}
	for query, location := range map[string]string{
		"pageSize=0": "pageSize", "pageSize=-1": "pageSize", "pageSize=1000000000": "pageSize", "pageSize=201": "pageSize",
		"pageSize=": "pageSize", "pageSize=ten": "pageSize", "pageSize=%2B5": "pageSize", "pageSize=1.5": "pageSize", "pageSize=%205": "pageSize",
		"pageSize=99999999999999999999999": "pageSize", "pageSize=1e1": "pageSize", "pageSize=%zz": "pageSize", "pageSize=5&pageSize=5": "pageSize", "pageSize": "pageSize",
		"PageSize=5": "PageSize", "page=2": "page", "userId=u8": "userId", "": "", "&": "", "=": "", "pageSize=5&x=1": "x", "pageSize=5;x=1": "pageSize",
		"pageToken=": "pageToken", "pageToken=x": "pageToken", "pageToken=%00": "pageToken", "pageToken=" + good[1:]: "pageToken",
		"pageToken=" + good[:len(good)-1]: "pageToken", "pageToken=" + good[:len(good)-1] + last: "pageToken", "pageToken=" + good + "%0A": "pageToken",
		"pageToken=" + mine: "pageToken", "pageToken=" + strings.Repeat("A", 5000): "pageToken",
	} {
		if query == "" {
			continue
		}
		expectProblem(t, ta, get(t, likersPath+"?"+query), 400, "invalid-request", "query."+location)
	}
	ta.do(get(t, likersPath+"?pageToken="+good), 200, nil)
	ta.do(get(t, likersPath+"?pageSize=7&pageToken="+good), 200, nil) // not bound to the size
	for _, path := range []string{"/v1/videos/V2/likers", "/v1/videos/V1/favoriters", "/v1/users/u7/followers", "/v1/me/favorites"} {
		expectProblem(t, ta, get(t, path+"?pageToken="+good), 400, "invalid-request", "query.pageToken")
	}
	r := get(t, likersPath+"?pageToken="+good)
	r.Header.Set("Authorization", "Bearer "+mint(t, "u8"))
	expectProblem(t, ta, r, 400, "invalid-request", "query.pageToken")
	for _, path := range []string{"/v1/videos//likers", "/v1/videos/%00/likers", "/v1/users/%FF/followers", "/v1/users//likes", "/v1/videos/%0A/liker-summary"} {
		expectProblem(t, ta, get(t, path), 400, "invalid-request", "path.id")
	}
	expectProblem(t, ta, get(t, "/v1/videos/V1/liker-summary?pageSize=5"), 400, "invalid-request", "query.pageSize")
	expectProblem(t, ta, get(t, "/openapi.json?x"), 400, "invalid-request", "query.x")
	expectProblem(t, ta, request(t, http.MethodPost, likersPath, ""), 405, "method-not-allowed", "")
}

func TestPageTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ta := newTestAPI(t, &fakeStore{})
		ta.lists.likers = []views.Liker{liker("u1", 3), liker("u2", 2)}
		var p listPage
		ta.do(get(t, pageOf(likersPath, 1, nil)), 200, &p)
		time.Sleep(pagetoken.Lifetime - 2*time.Second)
		ta.do(get(t, pageOf(likersPath, 1, p.NextPageToken)), 200, nil)
		time.Sleep(2 * time.Second)
		expectProblem(t, ta, get(t, pageOf(likersPath, 1, p.NextPageToken)), 410, "page-token-expired", "")
		expectProblem(t, ta, get(t, pageOf("/v1/videos/V2/likers", 1, p.NextPageToken)), 400, "invalid-request", "query.pageToken")
	})
	if p := tokenProblem(pagetoken.ErrVersion); p.Status != 410 || p.Type != kindPageTokenExpired.uri() {
		t.Errorf("a token of an earlier version: %+v", p)
	}
}

func TestListsNotServed(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.lists.likers = []views.Liker{liker("u1", 3), liker("u2", 2)}
	var p listPage
	ta.do(get(t, pageOf(likersPath, 1, nil)), 200, &p)
	ta.lists.generation = 2
	expectProblem(t, ta, get(t, pageOf(likersPath, 1, p.NextPageToken)), 410, "list-generation-gone", "")

	secret := errors.New("host 10.1.2.3 refused")
	ta.lists.likersErr = &views.NotReadyError{Partition: 3, RetryAfter: 3 * time.Second, Err: secret}
	for _, path := range []string{likersPath, "/v1/videos/V1/favoriters", "/v1/users/u7/followers", "/v1/videos/V1/liker-summary"} {
		res := expectProblem(t, ta, get(t, path), 503, "lists-unavailable", "")
		if res.Header.Get("Retry-After") != "3" {
			t.Errorf("%s: Retry-After %q", path, res.Header.Get("Retry-After"))
		}
	}
	ta.lists.likersErr = secret
	if res := ta.serve(get(t, likersPath)); res.StatusCode != 503 || strings.Contains(body(res), "10.1.2.3") || res.Header.Get("Retry-After") != "1" {
		t.Errorf("status %d, Retry-After %q", res.StatusCode, res.Header.Get("Retry-After"))
	}
	ta.lists.likersErr, ta.lists.privacyErr = nil, secret
	for _, path := range append([]string{"/v1/videos/V1/liker-summary"}, listPaths...) {
		expectProblem(t, ta, get(t, path), 503, "privacy-unavailable", "")
	}
	ta.lists.privacyErr, ta.store.countErr = nil, views.ErrRecovering
	expectProblem(t, ta, get(t, "/v1/videos/V1/liker-summary"), 503, "counts-unavailable", "")
}

func body(res *http.Response) string {
	b, _ := io.ReadAll(res.Body)
	return string(b)
}

// TestPrivateLists: an answer does not tell a list that is private, empty or
// never was from another (J1).
func TestPrivateLists(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{counts: map[string]views.Count{topology.TargetKey(topology.Like, "private"): {Counts: topology.Counts{Raw: 7}, GeneratedAt: testTime}}})
	ta.lists.facts, ta.lists.likers = []relations.Fact{likeFact("V2", 5)}, []views.Liker{liker("u1", 3)}
	ta.lists.open = map[string]bool{"open": true}
	ta.lists.access = map[string]privacy.Access{"private": privacy.Unknown, "withheld": privacy.Withheld}
	for _, name := range []string{"likes", "favorites", "following", "followers"} {
		ta.do(get(t, "/v1/users/open/"+name), 200, nil)
		private := expectProblem(t, ta, get(t, "/v1/users/private/"+name), 403, "list-withheld", "")
		absent := expectProblem(t, ta, get(t, "/v1/users/absent/"+name), 403, "list-withheld", "")
		if a, b := body(ta.serve(get(t, "/v1/users/private/"+name))), body(ta.serve(get(t, "/v1/users/absent/"+name))); a != b || !reflect.DeepEqual(private.Header, absent.Header) {
			t.Errorf("private %s, absent %s", a, b)
		}
	}
	for _, name := range []string{"likers", "favoriters", "liker-summary"} {
		expectProblem(t, ta, get(t, "/v1/videos/withheld/"+name), 403, "list-withheld", "")
		ta.lists.likers = []views.Liker{liker("u1", 3), liker("u2", 2)}
		private := body(ta.serve(get(t, "/v1/videos/private/"+name)))
		ta.lists.likers = nil
		never := body(ta.serve(get(t, "/v1/videos/never/"+name)))
		if strings.ReplaceAll(never, "never", "private") != private {
			t.Errorf("%s: private %s, never %s", name, private, never)
		}
	}
}

// TestOwnFollowingIsWhole: whom one follows is shown whatever became of them.
func TestOwnFollowingIsWhole(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.lists.facts = []relations.Fact{likeFact("u2", 5), likeFact("u1", 0)}
	ta.lists.hidden, ta.lists.open = map[string]bool{"u2": true}, map[string]bool{"open": true}
	if got := ta.readAll("/v1/me/following", 5, nil); !slices.Equal(got, []string{"u2", "u1"}) {
		t.Errorf("my own: %v", got)
	}
	for _, path := range []string{"/v1/users/open/following", "/v1/me/likes"} {
		if got := ta.readAll(path, 5, nil); !slices.Equal(got, []string{"u1"}) {
			t.Errorf("%s: %v", path, got)
		}
	}
}

func TestSummary(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{counts: map[string]views.Count{topology.TargetKey(topology.Like, "V1"): {Counts: topology.Counts{Raw: 93, RiskHidden: 2, PolicyHidden: 1}, GeneratedAt: testTime}}})
	ta.lists.hidden = map[string]bool{"u01": true}
	for i := range 90 {
		ta.lists.likers = append(ta.lists.likers, liker(fmt.Sprintf("u%02d", i), -i))
	}
	var s LikerSummaryAnswer
	ta.do(get(t, "/v1/videos/V1/liker-summary"), 200, &s)
	if !slices.Equal(s.UserIDs, []string{"u00", "u02", "u03", "u04", "u05"}) || s.DisplayCount != 90 || !s.CountSnapshotAt.Equal(testTime) {
		t.Errorf("%+v", s)
	}
	for i := range summaryScan {
		ta.lists.hidden[fmt.Sprintf("u%02d", i)] = true
	}
	ta.do(get(t, "/v1/videos/V1/liker-summary"), 200, &s)
	if len(s.UserIDs) != 0 || len(ta.lists.asked) != 2 {
		t.Errorf("%v after %d reads: the set is not bounded", s.UserIDs, len(ta.lists.asked))
	}
}

// TestLongPlacesFit: the place of the most reverse shards and the longest ids
// becomes a token, by the last entry alone, and loses none that was there.
func TestLongPlacesFit(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	l := &lists{ListSources: ta.lists.sources(t, ta.store), api: ta.api}
	q := pagetoken.Query{List: "likers", Subject: "V1", Viewer: "u7"}
	p := pagetoken.Place{Generation: 3}
	for shard := range uint32(1024) {
		p.Positions = append(p.Positions, pagetoken.Position{Shard: shard, AtUs: 5_000 - int64(shard)/2, ID: fmt.Sprintf("%0256d", shard)})
	}
	token, err := l.seal(q, p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := l.Tokens.Open(q, token)
	if err != nil || got.Generation != 3 || len(got.Positions) != 1024 {
		t.Fatalf("%d positions, %v", len(got.Positions), err)
	}
	last := p.Positions[1023]
	for i, at := range got.Positions {
		if int(at.Shard) != i || at.AtUs != last.AtUs || at.ID != last.ID {
			t.Fatalf("shard %d stands at %d, %s", at.Shard, at.AtUs, at.ID)
		}
	}
}

// No query of a list is worse than the client's fault, and what is accepted is
// within bounds.
func FuzzListQuery(f *testing.F) {
	for _, q := range []string{"", "pageSize=20", "pageSize=0", "pageSize=-1&pageToken=x", "pageToken=AAAA", "&&", "%", "pageSize=%32%30", "a=b;c=d"} {
		f.Add(q)
	}
	ta := newTestAPI(f, &fakeStore{})
	ta.lists.likers = []views.Liker{liker("u1", 3), liker("u2", 2)}
	f.Fuzz(func(t *testing.T, query string) {
		ta.lists.asked = nil
		ta.log.Reset()
		for _, path := range []string{likersPath, myLikes, "/v1/videos/V1/liker-summary"} {
			r := get(t, path)
			r.URL.RawQuery = query
			neverWorse(t, ta, r)
		}
		for _, q := range ta.lists.asked {
			if q.Limit < 1 || q.Limit > MaxPageSize {
				t.Fatalf("query %q asks for %d", query, q.Limit)
			}
		}
	})
}
