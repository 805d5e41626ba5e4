package api

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

// operatorActions are the operations that need a role, each with a request that
// would be taken from who has it.
var operatorActions = map[string]struct{ path, body string }{
	"POST /v1/exports":                  {"/v1/exports", `{"kind":"like","targetId":"V1","format":"csv","purpose":"a test"}`},
	"GET /v1/exports/{id}":              {"/v1/exports/job0", ""},
	"GET /v1/exports/{id}/files/{name}": {"/v1/exports/job0/files/manifest.json", ""},
	"POST /v1/privacy-events":           {"/v1/privacy-events", `{"type":"block","blockerId":"u7","blockedId":"u8","version":1,"active":true}`},
}

// Every action of operators and analysts is refused to who has no role, before
// anything is read, written or audited, and none is left out here.
func TestJ4OperatorActionsNeedTheirRole(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	ofOperators := regexp.MustCompile(`(?i)needs the role|audited`)
	for path, item := range ta.api.huma.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Put, item.Post, item.Patch, item.Delete} {
			if op == nil {
				continue
			}
			name := op.Method + " " + path
			_, listed := operatorActions[name]
			tagged := len(op.Tags) > 0 && (op.Tags[0] == "operators" || op.Tags[0] == "exports")
			if (tagged || ofOperators.MatchString(op.Description)) != listed {
				t.Errorf("%s (tags %v): listed here as an action that needs a role: %v", name, op.Tags, listed)
			}
		}
	}
	for name, action := range operatorActions {
		for _, role := range []string{"", "somebody"} {
			token, err := MintToken(testKey, "u7", role, time.Hour)
			if err != nil {
				t.Fatal(err)
			}
			method, _, _ := strings.Cut(name, " ")
			r := request(t, method, action.path, action.body)
			r.Header.Set("Authorization", "Bearer "+token)
			if res := ta.serve(r); res.StatusCode != http.StatusForbidden {
				t.Errorf("%s with role %q: status %d", name, role, res.StatusCode)
			}
		}
	}
	if len(ta.exports.audit) != 0 || len(ta.exports.jobs) != 0 {
		t.Errorf("what was refused left %v, %v", ta.exports.jobs, ta.exports.audit)
	}
}
