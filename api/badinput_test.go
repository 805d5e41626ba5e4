package api

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// badBodies are refused with 400 and the field's place.
var badBodies = []struct{ name, path, body, location string }{
	{"empty", likePath, ``, "body"},
	{"blank", likePath, " \n", "body"},
	{"null", likePath, `null`, "body"},
	{"array", likePath, `[]`, "body"},
	{"string", likePath, `"LIKED"`, "body"},
	{"cut short", likePath, `{"desiredState":"LIKED"`, "body"},
	{"cut in a string", likePath, `{"desiredState":"LIK`, "body.desiredState"},
	{"trailing garbage", likePath, `{"desiredState":"LIKED"} x`, "body"},
	{"two objects", likePath, `{"desiredState":"LIKED"}{}`, "body"},
	{"trailing comma", likePath, `{"desiredState":"LIKED",}`, "body"},
	{"no comma", likePath, `{"desiredState":"LIKED" "baseVersion":1}`, "body"},
	{"no colon", likePath, `{"desiredState" "LIKED"}`, "body"},
	{"single quotes", likePath, `{'desiredState':'LIKED'}`, "body"},
	{"byte order mark", likePath, "\ufeff{}", "body"},
	{"deep nesting", likePath, strings.Repeat("[", 30000), "body"},
	{"deep nesting in a field", likePath, `{"desiredState":` + strings.Repeat(`{"a":`, 10000), "body.desiredState"},
	{"no desiredState", likePath, `{}`, "body.desiredState"},
	{"desiredState null", likePath, `{"desiredState":null}`, "body.desiredState"},
	{"desiredState number", likePath, `{"desiredState":1}`, "body.desiredState"},
	{"desiredState unknown", likePath, `{"desiredState":"LOVED"}`, "body.desiredState"},
	{"desiredState lower case", likePath, `{"desiredState":"liked"}`, "body.desiredState"},
	{"desiredState of another kind", likePath, `{"desiredState":"FAVORITED"}`, "body.desiredState"},
	{"desiredState of a like", "/v1/users/u8/follow-relation", `{"desiredState":"LIKED"}`, "body.desiredState"},
	{"desiredState twice", likePath, `{"desiredState":"LIKED","desiredState":"UNLIKED"}`, "body.desiredState"},
	{"other case twice", likePath, `{"desiredState":"LIKED","DesiredState":"UNLIKED"}`, "body.DesiredState"},
	{"baseVersion twice", likePath, `{"baseVersion":1,"desiredState":"LIKED","baseVersion":1}`, "body.baseVersion"},
	{"baseVersion negative", likePath, `{"desiredState":"LIKED","baseVersion":-1}`, "body.baseVersion"},
	{"baseVersion fraction", likePath, `{"desiredState":"LIKED","baseVersion":1.5}`, "body.baseVersion"},
	{"baseVersion exponent", likePath, `{"desiredState":"LIKED","baseVersion":1e3}`, "body.baseVersion"},
	{"baseVersion huge", likePath, `{"desiredState":"LIKED","baseVersion":9223372036854775808}`, "body.baseVersion"},
	{"baseVersion very long", likePath, `{"desiredState":"LIKED","baseVersion":1` + strings.Repeat("0", 5000) + `}`, "body.baseVersion"},
	{"baseVersion beyond doubles", likePath, `{"desiredState":"LIKED","baseVersion":1e999}`, "body.baseVersion"},
	{"baseVersion leading zero", likePath, `{"desiredState":"LIKED","baseVersion":01}`, "body.baseVersion"},
	{"baseVersion string", likePath, `{"desiredState":"LIKED","baseVersion":"1"}`, "body.baseVersion"},
	{"baseVersion null", likePath, `{"desiredState":"LIKED","baseVersion":null}`, "body.baseVersion"},
	{"clientSequence negative", likePath, `{"desiredState":"LIKED","clientSequence":-1}`, "body.clientSequence"},
	{"clientSequence NaN", likePath, `{"desiredState":"LIKED","clientSequence":NaN}`, "body.clientSequence"},
	{"deviceId empty", likePath, `{"desiredState":"LIKED","deviceId":""}`, "body.deviceId"},
	{"deviceId long", likePath, `{"desiredState":"LIKED","deviceId":"` + strings.Repeat("d", 129) + `"}`, "body.deviceId"},
	{"deviceId control character", likePath, `{"desiredState":"LIKED","deviceId":"a\u0000"}`, "body.deviceId"},
	{"deviceId not UTF-8", likePath, "{\"desiredState\":\"LIKED\",\"deviceId\":\"\xff\"}", "body.deviceId"},
	{"deviceId object", likePath, `{"desiredState":"LIKED","deviceId":{}}`, "body.deviceId"},
	{"foreign user", likePath, `{"desiredState":"LIKED","userId":"u8"}`, "body.userId"},
	{"foreign user, other case", likePath, `{"USERID":"u8","desiredState":"LIKED"}`, "body.USERID"},
	{"unknown field", likePath, `{"desiredState":"LIKED","delta":1}`, "body.delta"},
	{"field without a name", likePath, `{"":1}`, "body."},

	{"batch without ids", likeBatch, `{}`, "body.videoIds"},
	{"batch ids null", likeBatch, `{"videoIds":null}`, "body.videoIds"},
	{"batch ids string", likeBatch, `{"videoIds":"V1"}`, "body.videoIds"},
	{"batch too large", likeBatch, `{"videoIds":["a"` + strings.Repeat(`,"a"`, MaxBatch) + `]}`, "body.videoIds"},
	{"batch id number", likeBatch, `{"videoIds":["V1",2]}`, "body.videoIds[1]"},
	{"batch id null", likeBatch, `{"videoIds":[null]}`, "body.videoIds[0]"},
	{"batch id empty", likeBatch, `{"videoIds":["V1","V2",""]}`, "body.videoIds[2]"},
	{"batch id long", likeBatch, `{"videoIds":["` + strings.Repeat("赞", 86) + `"]}`, "body.videoIds[0]"},
	{"batch id control character", likeBatch, `{"videoIds":["a\tb"]}`, "body.videoIds[0]"},
	{"batch id raw control character", likeBatch, "{\"videoIds\":[\"a\tb\"]}", "body.videoIds[0]"},
	{"batch id not UTF-8", likeBatch, "{\"videoIds\":[\"\xc0\xaf\"]}", "body.videoIds[0]"},
	{"batch id lone surrogate", likeBatch, `{"videoIds":["\ud800"]}`, "body.videoIds[0]"},
	{"batch id low surrogate first", likeBatch, `{"videoIds":["\udc00\ud800"]}`, "body.videoIds[0]"},
	{"batch id bad escape", likeBatch, `{"videoIds":["\x41"]}`, "body.videoIds[0]"},
	{"batch trailing comma", likeBatch, `{"videoIds":["V1",]}`, "body.videoIds[1]"},
	{"batch nested array", likeBatch, `{"videoIds":[["V1"]]}`, "body.videoIds[0]"},
	{"batch ids twice", likeBatch, `{"videoIds":["V1"],"videoIds":["V2"]}`, "body.videoIds"},
	{"batch of the other kind", likeBatch, `{"userIds":["u8"]}`, "body.userIds"},
	{"batch foreign user", likeBatch, `{"videoIds":["V1"],"userId":"u8"}`, "body.userId"},
	{"minimum array", likeBatch, `{"videoIds":["V1"],"minRelationVersions":[1]}`, "body.minRelationVersions"},
	{"minimum null", likeBatch, `{"videoIds":["V1"],"minRelationVersions":null}`, "body.minRelationVersions"},
	{"minimum negative", likeBatch, `{"videoIds":["V1"],"minRelationVersions":{"V1":-1}}`, `body.minRelationVersions["V1"]`},
	{"minimum of no id", likeBatch, `{"minRelationVersions":{"V2":1},"videoIds":["V1"]}`, `body.minRelationVersions["V2"]`},
	{"minimum twice", likeBatch, `{"videoIds":["V1"],"minRelationVersions":{"V1":1,"V1":2}}`, `body.minRelationVersions["V1"]`},
	{"minima too many", likeBatch, `{"videoIds":["V1"],"minRelationVersions":{"V1":1` + strings.Repeat(`,"V1":1`, MaxBatch) + `}}`, "body.minRelationVersions"},
}

func TestBadBodies(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	for _, c := range badBodies {
		t.Run(c.name, func(t *testing.T) {
			method := http.MethodPut
			if strings.HasSuffix(c.path, "batch-query") {
				method = http.MethodPost
			}
			expectProblem(t, ta, request(t, method, c.path, c.body), 400, "invalid-request", c.location)
		})
	}
	if len(ta.store.commands)+len(ta.store.asked) != 0 {
		t.Error("a refused request reached the store")
	}
}

// expectProblem sends r and checks that it is refused, by field.
func expectProblem(t *testing.T, ta *testAPI, r *http.Request, status int, kind, location string) *http.Response {
	t.Helper()
	res := ta.serve(r)
	body, _ := io.ReadAll(res.Body)
	var p Problem
	if err := json.Unmarshal(body, &p); err != nil {
		t.Fatalf("status %d, not a problem: %s", res.StatusCode, body)
	}
	if res.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("content type %q", res.Header.Get("Content-Type"))
	}
	if res.StatusCode != status || p.Status != status || p.Type != problemPrefix+kind || p.Title == "" {
		t.Errorf("status %d, want %d %s: %s", res.StatusCode, status, kind, body)
	}
	if location == "" {
		return res
	}
	if len(p.Errors) != 1 || p.Errors[0].Location != location || p.Errors[0].Message == "" {
		t.Errorf("errors %+v do not name %s", p.Errors, location)
	}
	if !strings.Contains(p.Detail, location) {
		t.Errorf("detail %q does not name %s", p.Detail, location)
	}
	return res
}

func TestBadPaths(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	long := strings.Repeat("a", 257)
	for _, c := range []struct{ method, path, location string }{
		{http.MethodPut, "/v1/videos//like-relation", "path.id"},
		{http.MethodPut, "/v1/videos/" + long + "/like-relation", "path.id"},
		{http.MethodPut, "/v1/videos/" + strings.Repeat("%E8%B5%9E", 86) + "/like-relation", "path.id"},
		{http.MethodPut, "/v1/videos/%00/like-relation", "path.id"},
		{http.MethodPut, "/v1/videos/a%0Ab/favorite-relation", "path.id"},
		{http.MethodPut, "/v1/videos/%7F/like-relation", "path.id"},
		{http.MethodPut, "/v1/videos/%FF%FE/like-relation", "path.id"},
		{http.MethodPut, "/v1/videos/%C0%80/like-relation", "path.id"},
		{http.MethodPut, "/v1/videos/%ED%A0%80/like-relation", "path.id"},
		{http.MethodPut, "/v1/users//follow-relation", "path.id"},
		{http.MethodPut, "/v1/users/%1b/follow-relation", "path.id"},
		{http.MethodGet, "/v1/operations/", "path.operationId"},
		{http.MethodGet, "/v1/operations/%E8%B5%9E", "path.operationId"},
		{http.MethodGet, "/v1/operations/a%00", "path.operationId"},
		{http.MethodGet, "/v1/operations/" + strings.Repeat("o", 129), "path.operationId"},
		{http.MethodGet, "/v1/targets/like//count", "path.id"},
		{http.MethodGet, "/v1/targets//V1/count", "path.kind"},
		{http.MethodGet, "/v1/targets/love/V1/count", "path.kind"},
		{http.MethodGet, "/v1/targets/LIKE/V1/count", "path.kind"},
		{http.MethodGet, "/v1/targets/like/" + long + "/count", "path.id"},
		{http.MethodGet, "/v1/targets/like/V1/count?asOf=1", "query.asOf"},
		{http.MethodPut, likePath + "?userId=u8", "query.userId"},
		{http.MethodPut, likePath + "?%zz=&a", "query.%zz"},
	} {
		t.Run(c.method+" "+clip(c.path), func(t *testing.T) {
			expectProblem(t, ta, request(t, c.method, c.path, `{"desiredState":"LIKED"}`), 400, "invalid-request", c.location)
		})
	}
}

func TestBadHeaders(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	const key, media = "Idempotency-Key", "Content-Type"
	for _, c := range []struct {
		name, header string
		values       []string
		status       int
		kind         string
	}{
		{"no key", key, nil, 400, "invalid-request"},
		{"empty key", key, []string{""}, 400, "invalid-request"},
		{"two keys", key, []string{"a", "b"}, 400, "invalid-request"},
		{"long key", key, []string{strings.Repeat("k", 129)}, 400, "invalid-request"},
		{"key not ASCII", key, []string{"赞"}, 400, "invalid-request"},
		{"key with a tab", key, []string{"a\tb"}, 400, "invalid-request"},
		{"form", media, []string{"application/x-www-form-urlencoded"}, 415, "unsupported-media-type"},
		{"text", media, []string{"text/plain"}, 415, "unsupported-media-type"},
		{"JSON by another name", media, []string{"application/vnd.api+json"}, 415, "unsupported-media-type"},
		{"not a media type", media, []string{";;"}, 415, "unsupported-media-type"},
		{"another charset", media, []string{"application/json; charset=utf-16"}, 415, "unsupported-media-type"},
		{"compressed", "Content-Encoding", []string{"gzip"}, 415, "unsupported-media-type"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`)
			r.Header[c.header] = c.values
			if c.values == nil {
				r.Header.Del(c.header)
			}
			expectProblem(t, ta, r, c.status, c.kind, "header."+c.header)
		})
	}
	for _, good := range []string{"", "application/json", "application/json; charset=UTF-8", "Application/JSON"} {
		r := request(t, http.MethodPut, likePath, `{"desiredState":"LIKED"}`)
		r.Header.Set(media, good)
		ta.do(r, 200, nil)
	}
}

// oneByte gives a body without a known length.
type oneByte struct{ r io.Reader }

func (o oneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1024, len(p))]) }

func TestBodyTooLarge(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	fits := `{"desiredState":"LIKED"}`
	fits += strings.Repeat(" ", MaxBodyBytes-len(fits))
	ta.do(request(t, http.MethodPut, likePath, fits), 200, nil)
	expectProblem(t, ta, request(t, http.MethodPut, likePath, fits+" "), 413, "body-too-large", "body")
	r := request(t, http.MethodPut, likePath, "")
	r.Body, r.ContentLength = io.NopCloser(oneByte{strings.NewReader(fits + " ")}), -1
	expectProblem(t, ta, r, 413, "body-too-large", "body")
}

// brokenBody fails as a body whose connection or chunks broke.
type brokenBody struct{ err error }

func (b brokenBody) Read([]byte) (int, error) { return 0, b.err }

type slowError struct{}

func (slowError) Error() string   { return "too slow" }
func (slowError) Timeout() bool   { return true }
func (slowError) Temporary() bool { return true }

func TestBodyBroken(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	for name, c := range map[string]struct {
		err    error
		status int
		kind   string
	}{
		"ends early":   {io.ErrUnexpectedEOF, 400, "invalid-request"},
		"broken chunk": {io.ErrNoProgress, 400, "invalid-request"},
		"slow":         {slowError{}, 408, "request-timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, http.MethodPut, likePath, "")
			r.Body, r.ContentLength = io.NopCloser(brokenBody{c.err}), -1
			expectProblem(t, ta, r, c.status, c.kind, "")
		})
	}
}

func TestNoSuchRoute(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	for _, path := range []string{"/", "/v1", "/v1/", "/v1/videos", "/v1/videos/V1", "/v1/videos/V1/like-relation/", "/v1//", "/docs",
		"/openapi.yaml", "/openapi-3.0.json", "/schemas/Problem.json", "//", "/../etc/passwd", "/v1/videos/V1/like/toggle"} {
		t.Run(path, func(t *testing.T) {
			res := expectProblem(t, ta, request(t, http.MethodGet, path, ""), 404, "not-found", "")
			if l := res.Header.Get("Location"); l != "" {
				t.Errorf("redirected to %s", l)
			}
		})
	}
	for path, allow := range map[string]string{likePath: "PUT", likeBatch: "POST", "/v1/targets/like/V1/count": "GET, HEAD", "/openapi.json": "GET, HEAD"} {
		for _, method := range []string{http.MethodPatch, http.MethodDelete, http.MethodOptions, "BREW"} {
			res := expectProblem(t, ta, request(t, method, path, ""), 405, "method-not-allowed", "")
			if got := res.Header.Get("Allow"); got != allow {
				t.Errorf("%s %s: Allow %q, want %q", method, path, got, allow)
			}
		}
	}
}
