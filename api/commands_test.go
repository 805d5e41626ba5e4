package api

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/relations"
)

const likePath = "/v1/videos/V9001/like-relation"

// The seed's story: a like whose answer is lost, then a cancel, then the late
// retry of the like (S 2.2, 5.2).
func TestCommandLateRetry(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	var like, cancel, late CommandAnswer
	ta.put(likePath, "op-101", `{"desiredState":"LIKED","baseVersion":0,"deviceId":"device-a","clientSequence":81}`, 200, &like)
	if like.State != "LIKED" || like.RelationVersion != 1 || like.OperationID != "op-101" || like.CountConsistency != "EVENTUAL" ||
		like.Replayed || like.StateChangedAt == nil || like.OperationResult.Outcome != "APPLIED" {
		t.Errorf("first answer: %+v", like)
	}
	ta.put(likePath, "op-102", `{"desiredState":"UNLIKED","baseVersion":1}`, 200, &cancel)
	if cancel.State != "UNLIKED" || cancel.RelationVersion != 2 {
		t.Errorf("cancel: %+v", cancel)
	}
	ta.put(likePath, "op-101", `{"desiredState":"LIKED","baseVersion":0,"deviceId":"device-a","clientSequence":81}`, 200, &late)
	if late.OperationResult.State != "LIKED" || late.OperationResult.RelationVersion != 1 || !late.Replayed {
		t.Errorf("operationResult of the late retry: %+v, want LIKED v1 (A3)", late.OperationResult)
	}
	if late.CurrentRelation.State != "UNLIKED" || late.CurrentRelation.RelationVersion != 2 {
		t.Errorf("currentRelation of the late retry: %+v, want UNLIKED v2 (A3)", late.CurrentRelation)
	}
	if late.State != "UNLIKED" || late.RelationVersion != 2 {
		t.Errorf("a client that reads only state and relationVersion goes back to %s v%d", late.State, late.RelationVersion)
	}
}

func TestCommandUnchanged(t *testing.T) { // I4
	ta := newTestAPI(t, &fakeStore{})
	var a CommandAnswer
	ta.put(likePath, "op-1", `{"desiredState":"UNLIKED"}`, 200, &a)
	if a.State != "UNLIKED" || a.RelationVersion != 0 || a.StateChangedAt != nil || a.OperationResult.Outcome != "UNCHANGED" {
		t.Errorf("cancel of nothing: %+v", a)
	}
}

func TestCommandKinds(t *testing.T) {
	for _, c := range []struct{ path, state string }{
		{"/v1/videos/V1/like-relation", "DISLIKED"},
		{"/v1/videos/V1/favorite-relation", "FAVORITED"},
		{"/v1/users/u8/follow-relation", "FOLLOWING"},
		{"/v1/videos/" + strings.Repeat("%E8%B5%9E", 85) + "/like-relation", "LIKED"},
		{"/v1/videos/a%2Fb%20%3Fc%3Ad%7Ce/like-relation", "LIKED"},
		{"/v1/videos/%2E%2E/like-relation", "LIKED"},
		{"/v1/videos/./like-relation", "LIKED"},
		{"/v1/videos/%2F/like-relation", "LIKED"},
		{"/v1/%76ideos/V%31/like-relation", "LIKED"},
	} {
		ta := newTestAPI(t, &fakeStore{})
		var a CommandAnswer
		ta.put(c.path, "op-1", `{"desiredState":"`+c.state+`"}`, 200, &a)
		if string(a.State) != c.state || a.RelationVersion != 1 {
			t.Errorf("%s: %+v", c.path, a)
		}
	}
}

// The user is the token's (A7): what it stores shows it.
func TestCommandIdentity(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.put("/v1/videos/a%2Fb/like-relation", "op-1", `{"desiredState":"LIKED"}`, 200, nil)
	for r := range ta.store.facts {
		if r.User != "u7" || r.Target != "a/b" {
			t.Errorf("stored %+v", r)
		}
	}
}

func TestCommandStaleBase(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.put(likePath, "op-1", `{"desiredState":"LIKED"}`, 200, nil)
	var p Problem
	for _, key := range []string{"op-2", "op-2"} { // the retry is refused alike
		ta.put(likePath, key, `{"desiredState":"UNLIKED","baseVersion":0}`, 409, &p)
		if p.Type != "urn:tidemark:problem:stale-base-version" || p.CurrentRelation == nil ||
			p.CurrentRelation.State != "LIKED" || p.CurrentRelation.RelationVersion != 1 || p.Errors[0].Location != "body.baseVersion" {
			t.Errorf("stale base version: %+v", p)
		}
	}
}

func TestCommandKeyReused(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.put(likePath, "op-1", `{"desiredState":"LIKED"}`, 200, nil)
	for _, c := range []struct{ path, body string }{
		{likePath, `{"desiredState":"DISLIKED"}`},
		{"/v1/videos/V2/like-relation", `{"desiredState":"LIKED"}`},
		{"/v1/videos/V9001/favorite-relation", `{"desiredState":"FAVORITED"}`},
	} {
		var p Problem
		ta.put(c.path, "op-1", c.body, 422, &p)
		if p.Type != "urn:tidemark:problem:idempotency-key-reused" || p.Errors[0].Location != "header.Idempotency-Key" {
			t.Errorf("%s %s: %+v", c.path, c.body, p)
		}
	}
}

func TestOperation(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ta.put(likePath, "op 1/a", `{"desiredState":"LIKED"}`, 200, nil)
	ta.put(likePath, "op-2", `{"desiredState":"DISLIKED"}`, 200, nil)
	ta.put(likePath, "op-3", `{"desiredState":"LIKED","baseVersion":1}`, 409, nil)
	get := func(id string, status int, into any) {
		t.Helper()
		ta.do(request(t, http.MethodGet, "/v1/operations/"+id, ""), status, into)
	}
	var a OperationAnswer
	get("op%201%2Fa", 200, &a)
	if a.OperationID != "op 1/a" || a.Kind != "like" || a.TargetID != "V9001" || a.DesiredState != "LIKED" ||
		a.OperationResult.RelationVersion != 1 || a.CurrentRelation.RelationVersion != 2 || a.State != "DISLIKED" || !a.Replayed {
		t.Errorf("operation: %+v", a)
	}
	get("op-3", 200, &a)
	if a.OperationResult.Outcome != "REJECTED" || a.RelationVersion != 2 {
		t.Errorf("refused operation: %+v", a)
	}
	var p Problem
	get("op-9", 404, &p)
	if p.Type != "urn:tidemark:problem:operation-unknown" {
		t.Errorf("unknown operation: %+v", p)
	}
	r := request(t, http.MethodGet, "/v1/operations/op-2", "")
	r.Header.Set("Authorization", "Bearer "+mint(t, "u8"))
	ta.do(r, 404, nil) // another user's operation
}

func TestStoreErrors(t *testing.T) {
	for name, err := range map[string]error{
		"unavailable": relations.ErrUnavailable, "closed": relations.ErrClosed, "unknown": errors.New("disk on fire, user u7"),
	} {
		t.Run(name, func(t *testing.T) {
			ta := newTestAPI(t, &fakeStore{err: err})
			for _, r := range []*http.Request{
				request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`),
				request(t, http.MethodGet, "/v1/operations/op-1", ""),
				request(t, http.MethodPost, "/v1/like-relations/batch-query", `{"videoIds":["V1"]}`),
			} {
				res := ta.serve(r)
				if res.StatusCode != 503 || res.Header.Get("Retry-After") != "1" || res.Header.Get("Content-Type") != "application/problem+json" {
					t.Errorf("%s %s: %d %v", r.Method, r.URL, res.StatusCode, res.Header)
				}
			}
			if n := strings.Count(ta.log.String(), "\n"); n != 1 {
				t.Errorf("%d lines logged in an outage, want 1: %s", n, ta.log)
			}
		})
	}
}
