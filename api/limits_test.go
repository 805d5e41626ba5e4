package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/client"
	"github.com/tidemark/tidemark/internal/limits"
)

func limited(t *testing.T, c limits.Config) *testAPI {
	t.Helper()
	ta := newTestAPI(t, &fakeStore{})
	l, err := limits.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ta.api.limiter = l
	return ta
}

// sendCommand sets a like of u7 and gives the whole answer.
func sendCommand(t *testing.T, ta *testAPI, key, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodPut, likePath, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+mint(t, "u7"))
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	ta.api.ServeHTTP(w, r)
	return w
}

func TestRateLimited(t *testing.T) {
	perMinute := func(burst int) limits.Limit { return limits.Limit{PerMinute: 1, Burst: burst} }
	for limit, c := range map[string]limits.CallerLimits{
		"account": {Account: perMinute(2)}, "device": {Device: perMinute(2)}, "address": {Address: perMinute(2)},
	} {
		t.Run(limit, func(t *testing.T) {
			ta := limited(t, limits.Config{Commands: c, Queries: limits.CallerLimits{Account: perMinute(1)}})
			for i, key := range []string{"op-1", "op-2"} {
				w := sendCommand(t, ta, key, `{"desiredState":"LIKED","deviceId":"d1"}`)
				if w.Code != 200 || w.Header().Get("RateLimit-Policy") != `"`+limit+`";q=2;w=120` {
					t.Fatalf("command %d: %d %v", i, w.Code, w.Header())
				}
			}
			w := sendCommand(t, ta, "op-3", `{"desiredState":"LIKED","deviceId":"d1"}`)
			if w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "urn:tidemark:problem:rate-limited") ||
				w.Header().Get("Retry-After") != "60" || w.Header().Get("RateLimit") != `"`+limit+`";r=0;t=120` {
				t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
			}
			// Queries have a limit of their own, and a decided operation is a query.
			var a OperationAnswer
			ta.do(request(t, http.MethodGet, "/v1/operations/op-2", ""), 200, &a)
			ta.do(request(t, http.MethodGet, "/v1/operations/op-2", ""), 429, &Problem{})
		})
	}
}

// The relation's limit: not made, told as it is, not remembered; what was
// decided before is answered as ever (A8, A3).
func TestTransitionsOfARelationAreLimited(t *testing.T) {
	ta := limited(t, limits.Config{Transitions: limits.Limit{PerMinute: 1, Burst: 2}})
	var a CommandAnswer
	ta.put(likePath, "op-1", `{"desiredState":"LIKED"}`, 200, &a)
	for range 5 { // no transitions
		ta.put(likePath, "op-1", `{"desiredState":"LIKED"}`, 200, &a)
		ta.put(likePath, "op-same", `{"desiredState":"LIKED"}`, 200, &a)
		ta.put(likePath, "op-stale", `{"desiredState":"UNLIKED","baseVersion":7}`, 409, &Problem{})
	}
	ta.put(likePath, "op-2", `{"desiredState":"UNLIKED"}`, 200, &a)
	if a.RelationVersion != 2 || a.OperationResult.Outcome != "APPLIED" {
		t.Fatalf("%+v", a)
	}
	w := sendCommand(t, ta, "op-3", `{"desiredState":"LIKED"}`)
	if w.Code != 200 || w.Header().Get("Retry-After") != "60" || !strings.HasPrefix(w.Header().Get("RateLimit"), `"relation";r=0`) {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	ta.put(likePath, "op-3", `{"desiredState":"LIKED"}`, 200, &a)
	if a.State != "UNLIKED" || a.RelationVersion != 2 || a.OperationResult.Outcome != "LIMITED" || a.OperationID != "op-3" || a.Replayed {
		t.Errorf("%+v", a)
	}
	ta.do(request(t, http.MethodGet, "/v1/operations/op-3", ""), 404, &Problem{})
	ta.put(likePath, "op-1", `{"desiredState":"LIKED"}`, 200, &a)
	if !a.Replayed || a.OperationResult.RelationVersion != 1 || a.State != "UNLIKED" || a.RelationVersion != 2 {
		t.Errorf("a late retry: %+v", a)
	}
	ta.put("/v1/videos/V2/like-relation", "op-9", `{"desiredState":"LIKED"}`, 200, &a)
	if a.OperationResult.Outcome != "APPLIED" {
		t.Errorf("another relation: %+v", a)
	}
}

// For the client library a limited command is no error: it settles on what is.
func TestTheClientSettlesOnALimitedRelation(t *testing.T) {
	ta := limited(t, limits.Config{Transitions: limits.Limit{PerMinute: 1, Burst: 2}})
	server := httptest.NewServer(ta.api)
	defer server.Close()
	c, err := client.Open(client.Config{
		URL: server.URL, User: "u7", Journal: filepath.Join(t.TempDir(), "journal"), DeviceID: "device-a",
		Token: func(context.Context) (string, error) { return mint(t, "u7"), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for _, s := range []client.State{client.Liked, client.Unliked, client.Liked} {
		if err := c.Set(client.Like("V1"), s); err != nil {
			t.Fatal(err)
		}
		if err := c.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	v := c.View(client.Like("V1"))
	if v.State != client.Unliked || v.Confirmed.Version != 2 || v.Pending || v.Err != nil {
		t.Errorf("%+v", v)
	}
}
