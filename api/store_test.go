package api

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// realAPI serves commands and queries of a relations.Store on PostgreSQL.
func realAPI(t *testing.T) (*testAPI, *relations.Store) {
	t.Helper()
	ctx := context.Background()
	urls := []string{testenv.Postgres(t), testenv.Postgres(t)}
	for shard, url := range urls {
		if err := relations.Migrate(ctx, url, shard); err != nil {
			t.Fatal(err)
		}
	}
	store, err := relations.Open(ctx, relations.Config{URLs: urls, Map: topology.NewShardMap(1, len(urls))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	v, err := NewVerifier(AuthConfig{HS256Key: testKey})
	if err != nil {
		t.Fatal(err)
	}
	a, err := New(Config{Verifier: v})
	if err != nil {
		t.Fatal(err)
	}
	RegisterCommands(a, store)
	RegisterQueries(a, store, &fakeStore{})
	return &testAPI{t: t, api: a}, store
}

// The whole story against the real store (A1-A4, I2, I4).
func TestRealStore(t *testing.T) {
	ta, store := realAPI(t)
	const path = "/v1/videos/%E8%B5%9E%22%5C%27%3A%7C%25~%C2%85%E2%80%A8/like-relation"
	var a CommandAnswer
	ta.put(path, "op-1", `{"desiredState":"UNLIKED"}`, 200, &a) // I4
	if a.RelationVersion != 0 || a.OperationResult.Outcome != "UNCHANGED" || a.StateChangedAt != nil {
		t.Errorf("cancel of nothing: %+v", a)
	}
	ta.put(path, "op-101", `{"desiredState":"LIKED","baseVersion":0}`, 200, &a)
	ta.put(path, "op-102", `{"desiredState":"UNLIKED","baseVersion":1}`, 200, &a)
	ta.put(path, "op-101", `{"desiredState":"LIKED","baseVersion":0}`, 200, &a) // I2, A3
	if !a.Replayed || a.State != "UNLIKED" || a.RelationVersion != 2 || a.OperationResult.State != "LIKED" || a.OperationResult.RelationVersion != 1 {
		t.Errorf("late retry: %+v", a)
	}
	var p Problem
	ta.put(path, "op-103", `{"desiredState":"DISLIKED","baseVersion":9223372036854775807}`, 409, &p)
	ta.put(path, "op-103", `{"desiredState":"DISLIKED","baseVersion":9223372036854775807}`, 409, &p)
	if p.CurrentRelation == nil || p.CurrentRelation.RelationVersion != 2 {
		t.Errorf("stale base version: %+v", p)
	}
	for _, other := range []string{`{"desiredState":"DISLIKED"}`, `{"desiredState":"LIKED"}`, `{"desiredState":"LIKED","baseVersion":1}`} {
		ta.put(path, "op-101", other, 422, nil)
	}
	ta.put("/v1/users/u8/follow-relation", "op-101", `{"desiredState":"FOLLOWING"}`, 422, nil)
	var op OperationAnswer
	ta.do(request(t, http.MethodGet, "/v1/operations/op-101", ""), 200, &op)
	if op.TargetID != "赞\"\\':|%~\u0085\u2028" || op.DesiredState != "LIKED" || op.RelationVersion != 2 {
		t.Errorf("operation: %+v", op)
	}
	ta.do(request(t, http.MethodGet, "/v1/operations/never", ""), 404, nil)
	var items VideosAnswer
	ta.do(request(t, http.MethodPost, likeBatch, `{"videoIds":["none","赞\"\\':|%~\u0085\u2028"],"minRelationVersions":{"none":0}}`), 200, &items)
	if items.Items[0].MyState != "UNLIKED" || items.Items[1].RelationVersion != 2 || items.Items[0].BelowMinimum {
		t.Errorf("items: %+v", items)
	}
	const lastYear = "01941f29-7c00-7000-8000-000000000001"
	ta.put(path, lastYear, `{"desiredState":"LIKED"}`, 410, &p)
	if p.Type != kindOperationExpired.uri() || p.CurrentRelation == nil || p.CurrentRelation.RelationVersion != 2 {
		t.Errorf("an operation that may be forgotten: %+v", p)
	}
	ta.do(request(t, http.MethodGet, "/v1/operations/"+lastYear, ""), 410, nil)
	store.Close()
	ta.put(path, "op-104", `{"desiredState":"LIKED"}`, 503, nil)
}

// One key sent many times at once is one operation, and no answer is worse
// than 503 (I1, I2).
func TestRealStoreConcurrentRetries(t *testing.T) {
	ta, _ := realAPI(t)
	var wg sync.WaitGroup
	for i := range 64 {
		r := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`)
		r.Header.Set("Idempotency-Key", fmt.Sprint("op-", i%4))
		wg.Go(func() {
			if res := ta.serve(r); res.StatusCode != 200 {
				t.Errorf("status %d", res.StatusCode)
			}
		})
	}
	wg.Wait()
	var a CommandAnswer
	ta.put(likePath, "op-0", `{"desiredState":"LIKED"}`, 200, &a)
	if a.RelationVersion != 1 || !a.Replayed {
		t.Errorf("after 64 sends of 4 operations: %+v", a)
	}
}
