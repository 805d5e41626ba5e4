package api

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/internal/control"
)

// operatorActions are the operations that need a role, each with a request that
// would be taken from who has it.
var operatorActions = map[string]struct{ path, body string }{
	"POST /v1/exports":                  {"/v1/exports", `{"kind":"like","targetId":"V1","format":"csv","purpose":"a test"}`},
	"GET /v1/exports/{id}":              {"/v1/exports/job0", ""},
	"GET /v1/exports/{id}/files/{name}": {"/v1/exports/job0/files/manifest.json", ""},
	"POST /v1/privacy-events":           {"/v1/privacy-events", `{"type":"block","blockerId":"u7","blockedId":"u8","version":1,"active":true}`},
}

// auditedActions are those of operatorActions whose handlers write to the audit,
// with the action that it has of each.
var auditedActions = map[string]string{
	"GET /v1/exports/{id}/files/{name}": "export.downloaded",
	"POST /v1/privacy-events":           "privacy.event",
}

// unauditedActions are the others, with why.
var unauditedActions = map[string]string{
	"POST /v1/exports":     "the job and its line are one transaction (TestExportOverHTTP finds export.asked)",
	"GET /v1/exports/{id}": "tells how far a job is that is in the audit, and no row",
}

// Every action of operators and analysts is in the audit, or has a reason not to
// be: a new one has to say which.
func TestJ4OperatorActionsAreAudited(t *testing.T) {
	for name, action := range operatorActions {
		audited, is := auditedActions[name]
		if _, not := unauditedActions[name]; is == not {
			t.Errorf("%s is in one of auditedActions and unauditedActions: %v, %v", name, is, not)
		}
		if !is {
			continue
		}
		ta := newTestAPI(t, &fakeStore{})
		ta.exports.jobs = []control.ExportJob{{ID: "job0", Who: "root"}}
		ta.exports.finish(t, 0)
		method, _, _ := strings.Cut(name, " ")
		if res := ta.serve(as(t, "root", OperatorRole, method, action.path, action.body)); res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d", name, res.StatusCode)
		}
		if !slices.ContainsFunc(ta.audit(), func(e control.Entry) bool { return e.Action == audited && e.Who == "root" }) {
			t.Errorf("%s: the audit has %+v, not %s of root", name, ta.audit(), audited)
		}
	}
}

// audit is what handlers have written, wherever.
func (ta *testAPI) audit() []control.Entry {
	all := slices.Clone(ta.exports.audit)
	for _, line := range ta.visible.log {
		if e, ok := line.(control.Entry); ok {
			all = append(all, e)
		}
	}
	return all
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
