package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

const likeBatch = "/v1/like-relations/batch-query"

func batchStore() *fakeStore {
	s := &fakeStore{facts: map[topology.Relation]relations.Fact{}, counts: map[string]views.Count{}}
	for i, id := range []string{"V1", "V2", `V"3\`} {
		r := topology.Relation{Kind: topology.Like, User: "u7", Target: id}
		s.facts[r] = relations.Fact{Relation: r, State: topology.Liked, Version: uint64(i + 11), StateChangedAt: testTime}
		s.counts[topology.TargetKey(topology.Like, id)] = views.Count{Target: id, Counts: topology.Counts{Raw: int64(i + 103), RiskHidden: 1, PolicyHidden: 2}, Found: true, GeneratedAt: testTime}
	}
	return s
}

func TestBatch(t *testing.T) {
	ta := newTestAPI(t, batchStore())
	var a VideosAnswer
	ta.do(request(t, http.MethodPost, likeBatch, `{"videoIds":["V2","V1","none","V2","V\"3\\"],"minRelationVersions":{"V1":12,"V2":12}}`), 200, &a)
	at := testTime
	want := []VideoItem{
		{"V2", BatchItem{MyState: "LIKED", RelationVersion: 12, DisplayCount: 101, CountSnapshotAt: &at}},
		{"V1", BatchItem{MyState: "LIKED", RelationVersion: 11, DisplayCount: 100, CountSnapshotAt: &at, BelowMinimum: true}},
		{"none", BatchItem{MyState: "UNLIKED"}},
		{"V2", BatchItem{MyState: "LIKED", RelationVersion: 12, DisplayCount: 101, CountSnapshotAt: &at}},
		{`V"3\`, BatchItem{MyState: "LIKED", RelationVersion: 13, DisplayCount: 102, CountSnapshotAt: &at}},
	}
	if !reflect.DeepEqual(a.Items, want) {
		t.Errorf("items:\n%+v\nwant\n%+v", a.Items, want)
	}
	if got := ta.store.asked; len(got) != 1 || !reflect.DeepEqual(got[0], []string{"V2", "V1", "none", `V"3\`}) {
		t.Errorf("looked up %q, want each id once", got)
	}
}

func TestBatchKinds(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	var videos VideosAnswer
	ta.do(request(t, http.MethodPost, "/v1/favorite-relations/batch-query", `{"videoIds":["V1"]}`), 200, &videos)
	if len(videos.Items) != 1 || videos.Items[0].MyState != "UNFAVORITED" || videos.Items[0].VideoID != "V1" {
		t.Errorf("favorite: %+v", videos)
	}
	var users UsersAnswer
	ta.do(request(t, http.MethodPost, "/v1/follow-relations/batch-query", `{"userIds":["u8"]}`), 200, &users)
	if len(users.Items) != 1 || users.Items[0].MyState != "UNFOLLOWED" || users.Items[0].UserID != "u8" {
		t.Errorf("follow: %+v", users)
	}
}

func TestBatchEmptyAndFull(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	var a VideosAnswer
	ta.do(request(t, http.MethodPost, likeBatch, ` { "videoIds" : [ ] } `), 200, &a)
	if a.Items == nil || len(a.Items) != 0 {
		t.Errorf("empty query: %+v", a)
	}
	ids := make([]string, MaxBatch)
	for i := range ids {
		ids[i] = fmt.Sprint("V", i)
	}
	body, _ := json.Marshal(map[string]any{"videoIds": ids})
	ta.do(request(t, http.MethodPost, likeBatch, string(body)), 200, &a)
	for i, item := range a.Items {
		if item.VideoID != ids[i] {
			t.Fatalf("item %d is %s", i, item.VideoID)
		}
	}
}

// The answer written by hand is the one that the document describes.
func TestBatchAnswer(t *testing.T) {
	ta := newTestAPI(t, batchStore())
	res := ta.serve(request(t, http.MethodPost, likeBatch, `{"videoIds":["V1","none","V\"3\\","<&>\u2028"],"minRelationVersions":{"V1":99}}`))
	got, _ := io.ReadAll(res.Body)
	var a VideosAnswer
	dec := json.NewDecoder(bytes.NewReader(got))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	var want bytes.Buffer
	enc := json.NewEncoder(&want)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(a); err != nil {
		t.Fatal(err)
	}
	if w := strings.ReplaceAll(want.String(), `\u2028`, "\u2028"); w != string(got) {
		t.Errorf("answer\n%s\nencoding/json writes\n%s", got, w)
	}
}

// G19: while the view recovers there is no count, and never a count of 0.
func TestCountsNotReady(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{countErr: errors.New("recovering, 40 %")})
	for _, r := range []*http.Request{
		request(t, http.MethodPost, likeBatch, `{"videoIds":["V1"]}`),
		request(t, http.MethodGet, "/v1/targets/like/V1/count", ""),
	} {
		res := ta.serve(r)
		var p Problem
		if err := json.NewDecoder(res.Body).Decode(&p); err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" || p.Type != "urn:tidemark:problem:counts-unavailable" {
			t.Errorf("%s %s: %d %+v", r.Method, r.URL, res.StatusCode, p)
		}
	}
	if len(ta.store.asked) != 0 {
		t.Error("relations were looked up for an answer that cannot be given")
	}
}

func TestCount(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{counts: map[string]views.Count{"like:V1": {
		Target: "V1", Counts: topology.Counts{Raw: 8800, RiskHidden: 70, PolicyHidden: 9, Disliked: 12}, Found: true, GeneratedAt: testTime, Generation: 2, ManifestID: 3, Partials: 8,
		AsOf:      []views.ShardAsOf{{Shard: 2, Seal: 4711, PreviousCommitLSN: 0x16B3748, LSN: 0x1_0000_00FF, SealedAt: testTime}},
		Staleness: 1500 * time.Millisecond,
	}}})
	at := testTime
	var a CountAnswer
	ta.do(request(t, http.MethodGet, "/v1/targets/like/V1/count", ""), 200, &a)
	want := CountAnswer{
		Kind: "like", TargetID: "V1", Active: 8721, Disliked: 12, DisplayCount: 8721, Found: true, GeneratedAt: &at,
		Generation: 2, ManifestID: 3, Partials: 8, StalenessSeconds: ptr(1.5),
		AsOf: []CountAsOf{{Shard: 2, Seal: 4711, PreviousCommitLSN: "0/16B3748", LSN: "1/FF", SealedAt: testTime}},
	}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("count\n%+v\nwant\n%+v", a, want)
	}
	// What is hidden is told to operators only (C5).
	want.Raw, want.RiskHidden, want.PolicyHidden = ptr[int64](8800), ptr[int64](70), ptr[int64](9)
	var told CountAnswer
	ta.do(as(t, "root", OperatorRole, http.MethodGet, "/v1/targets/like/V1/count", ""), 200, &told)
	if !reflect.DeepEqual(told, want) {
		t.Errorf("to an operator\n%+v\nwant\n%+v", told, want)
	}
	res := ta.serve(as(t, "ann", AnalystRole, http.MethodGet, "/v1/targets/like/V1/count", ""))
	if text, err := io.ReadAll(res.Body); err != nil || strings.Contains(string(text), "idden") || strings.Contains(string(text), "8800") {
		t.Errorf("to an analyst: %s, %v", text, err)
	}
	var none CountAnswer
	ta.do(request(t, http.MethodGet, "/v1/targets/follow/u8/count", ""), 200, &none)
	if none.Found || none.DisplayCount != 0 || none.GeneratedAt != nil || none.AsOf == nil {
		t.Errorf("count of nothing: %+v", none)
	}
}
