package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/exports"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/topology"
)

// fakeExports are export jobs and the audit in memory, with the rules of
// control.DB.
type fakeExports struct {
	jobs  []control.ExportJob
	audit []control.Entry
	dir   string
	err   error
}

func newFakeExports(t testing.TB) *fakeExports { return &fakeExports{dir: t.TempDir()} }

func (f *fakeExports) QueueExport(_ context.Context, j control.ExportJob, _ string, limit int) (control.ExportJob, error) {
	for _, have := range f.jobs {
		if have.Who == j.Who && have.OperationID == j.OperationID {
			if have.Target != j.Target {
				return have, control.ErrExportReused
			}
			return have, f.err
		}
	}
	if len(f.jobs) >= limit {
		return j, control.ErrTooManyExports
	}
	j.ID, j.State, j.CreatedAt = fmt.Sprintf("job%d", len(f.jobs)), control.ExportQueued, testTime
	f.jobs = append(f.jobs, j)
	return j, f.err
}

func (f *fakeExports) Export(_ context.Context, id string) (control.ExportJob, error) {
	for _, j := range f.jobs {
		if j.ID == id {
			return j, f.err
		}
	}
	return control.ExportJob{}, errors.Join(control.ErrNoExport, f.err)
}

func (f *fakeExports) Audit(_ context.Context, e control.Entry) error {
	f.audit = append(f.audit, e)
	return f.err
}

// finish gives a job two files.
func (f *fakeExports) finish(t testing.TB, place int) {
	t.Helper()
	j := &f.jobs[place]
	m := exports.Manifest{Version: 1, Checksum: "sha256:00", Parts: []exports.Part{{Name: "part-000001.csv"}}}
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	j.State, j.Manifest, j.Rows = control.ExportFinished, b, 2
	dir := exports.JobDir(f.dir, j.ID)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"manifest.json": string(b), "part-000001.csv": "userId\nu1\n", ".journal.json": "secret"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// as makes a request of a user with a role.
func as(t testing.TB, user, role, method, path, body string) *http.Request {
	t.Helper()
	r := request(t, method, path, body)
	token, err := MintToken(testKey, user, role, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

const exportBody = `{"kind":"like","targetId":"V1","format":"csv","purpose":"campaign 12"}`

func TestExport(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	var made, again ExportAnswer
	ta.do(as(t, "ann", AnalystRole, http.MethodPost, "/v1/exports", exportBody), http.StatusOK, &made)
	if made.State != "QUEUED" || made.ExportID == "" || made.Accounts != "shown" || made.RequestedBy != "ann" || made.Purpose != "campaign 12" || made.Files == nil {
		t.Errorf("made %+v", made)
	}
	ta.do(as(t, "ann", AnalystRole, http.MethodPost, "/v1/exports", exportBody), http.StatusOK, &again)
	if again.ExportID != made.ExportID || len(ta.exports.jobs) != 1 {
		t.Errorf("again %+v, %d jobs", again, len(ta.exports.jobs))
	}
	path := "/v1/exports/" + made.ExportID
	ta.wantProblem(as(t, "ann", AnalystRole, http.MethodGet, path+"/files/manifest.json", ""), kindExportNotFinished)
	ta.exports.finish(t, 0)
	var done ExportAnswer
	ta.do(as(t, "ann", AnalystRole, http.MethodGet, path, ""), http.StatusOK, &done)
	if done.State != "FINISHED" || done.Checksum != "sha256:00" || !slices.Equal(done.Files, []string{"manifest.json", "part-000001.csv"}) {
		t.Errorf("done %+v", done)
	}
	res := ta.serve(as(t, "root", OperatorRole, http.MethodGet, path+"/files/part-000001.csv", ""))
	if b, _ := io.ReadAll(res.Body); string(b) != "userId\nu1\n" || res.Header.Get("Content-Type") != "text/csv; charset=utf-8" {
		t.Errorf("file %q of %v", b, res.Header)
	}
	if a := ta.exports.audit; len(a) != 1 || a[0].Who != "root" || a[0].Action != "export.downloaded" || a[0].Subject != exports.AuditSubject(topology.Like, "V1") || a[0].Reason != "campaign 12" || a[0].Detail["file"] != "part-000001.csv" {
		t.Errorf("audit %+v", a)
	}
	for _, name := range []string{".journal.json", "part-000002.csv", "..%2Fjob0%2Fmanifest.json", "%2Fetc%2Fpasswd"} {
		ta.wantProblem(as(t, "ann", AnalystRole, http.MethodGet, path+"/files/"+name, ""), kindNotFound)
	}
	if err := os.Remove(filepath.Join(exports.JobDir(ta.exports.dir, made.ExportID), "part-000001.csv")); err != nil {
		t.Fatal(err)
	}
	ta.wantProblem(as(t, "ann", AnalystRole, http.MethodGet, path+"/files/part-000001.csv", ""), kindExportsUnavailable)
	// A download that cannot be audited is none.
	ta.exports.err = errors.New("away")
	ta.wantProblem(as(t, "ann", AnalystRole, http.MethodGet, path+"/files/manifest.json", ""), kindExportsUnavailable)
}

// wantProblem sends a request that is answered with a problem.
func (ta *testAPI) wantProblem(r *http.Request, want problemKind) {
	ta.t.Helper()
	var p Problem
	ta.do(r, want.status, &p)
	if p.Type != want.uri() {
		ta.t.Errorf("%s %s: %+v, want %s", r.Method, r.URL, p, want.name)
	}
}

// Who has no right to an export learns nothing of it.
func TestExportRights(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	for role, want := range map[string]problemKind{"": kindRoleMissing, "moderator": kindRoleMissing} {
		for method, path := range map[string]string{http.MethodPost: "/v1/exports", http.MethodGet: "/v1/exports/job0"} {
			ta.wantProblem(as(t, "eve", role, method, path, exportBody), want)
		}
	}
	all := strings.Replace(exportBody, `"kind"`, `"accounts":"all","kind"`, 1)
	ta.wantProblem(as(t, "ann", AnalystRole, http.MethodPost, "/v1/exports", all), kindRoleMissing)
	if len(ta.exports.jobs) != 0 {
		t.Fatalf("jobs %+v", ta.exports.jobs)
	}
	ta.do(as(t, "root", OperatorRole, http.MethodPost, "/v1/exports", all), http.StatusOK, nil)
	ta.wantProblem(as(t, "ann", AnalystRole, http.MethodGet, "/v1/exports/job0", ""), kindExportUnknown)
	ta.wantProblem(as(t, "ann", AnalystRole, http.MethodGet, "/v1/exports/job1", ""), kindExportUnknown)
	ta.wantProblem(as(t, "ann", AnalystRole, http.MethodGet, "/v1/exports/job0/files/manifest.json", ""), kindExportUnknown)
	ta.do(as(t, "other", OperatorRole, http.MethodGet, "/v1/exports/job0", ""), http.StatusOK, nil)
}

func TestBadExports(t *testing.T) {
	ta := newTestAPI(t, &fakeStore{})
	for _, test := range []struct{ body, at string }{
		{`{"targetId":"V1","purpose":"p"}`, "body.kind"},
		{`{"kind":"dislike","targetId":"V1","purpose":"p"}`, "body.kind"},
		{`{"kind":"like","purpose":"p"}`, "body.targetId"},
		{`{"kind":"like","targetId":"a\u0000","purpose":"p"}`, "body.targetId"},
		{`{"kind":"like","targetId":"V1"}`, "body.purpose"},
		{`{"kind":"like","targetId":"V1","purpose":"  "}`, "body.purpose"},
		{`{"kind":"like","targetId":"V1","purpose":"a\nb"}`, "body.purpose"},
		{`{"kind":"like","targetId":"V1","purpose":"` + strings.Repeat("p", exports.MaxPurpose+1) + `"}`, "body.purpose"},
		{`{"kind":"like","targetId":"V1","purpose":7}`, "body.purpose"},
		{`{"kind":"like","targetId":"V1","purpose":"p","format":"xlsx"}`, "body.format"},
		{`{"kind":"like","targetId":"V1","purpose":"p","accounts":"mine"}`, "body.accounts"},
		{`{"kind":"like","targetId":"V1","purpose":"p","asOf":"2026-01-01"}`, "body.asOf"},
		{`{"kind":"like","targetId":"V1","purpose":"p","format":"csv","accounts":"shown","kind":"like"}`, "body.kind"},
		{`[]`, "body"},
	} {
		var p Problem
		ta.do(as(t, "ann", AnalystRole, http.MethodPost, "/v1/exports", test.body), http.StatusBadRequest, &p)
		if len(p.Errors) != 1 || p.Errors[0].Location != test.at {
			t.Errorf("%s: %+v, want %s", test.body, p, test.at)
		}
	}
	r := as(t, "ann", AnalystRole, http.MethodPost, "/v1/exports", exportBody)
	r.Header.Del("Idempotency-Key")
	ta.wantProblem(r, kindInvalidRequest)
	ta.do(as(t, "ann", AnalystRole, http.MethodPost, "/v1/exports", exportBody), http.StatusOK, nil)
	ta.wantProblem(as(t, "ann", AnalystRole, http.MethodPost, "/v1/exports", strings.Replace(exportBody, "V1", "V2", 1)), kindKeyReused)
	for i := len(ta.exports.jobs); i < MaxExportJobs; i++ {
		ta.exports.jobs = append(ta.exports.jobs, control.ExportJob{ID: fmt.Sprint(i)})
	}
	r = as(t, "ann", AnalystRole, http.MethodPost, "/v1/exports", exportBody)
	r.Header.Set("Idempotency-Key", "another")
	ta.wantProblem(r, kindTooManyExports)
	ta.exports.err = errors.New("away")
	ta.wantProblem(as(t, "ann", AnalystRole, http.MethodGet, "/v1/exports/job0", ""), kindExportsUnavailable)
}

// No body is answered with a mistake of the server, and what is refused queues no
// job.
func FuzzExportBody(f *testing.F) {
	f.Add(exportBody)
	f.Add(`{"kind":"follow","targetId":"𝒱","format":"jsonl","purpose":"\u0000","accounts":"all"}`)
	f.Add(`{"kind":1,"targetId":null}`)
	f.Add(`[`)
	ta := newTestAPI(f, &fakeStore{})
	f.Fuzz(func(t *testing.T, text string) {
		ta.exports.jobs = nil
		status, body := neverWorse(t, ta, as(t, "root", OperatorRole, http.MethodPost, "/v1/exports", text))
		if (status == http.StatusOK) != (len(ta.exports.jobs) == 1) {
			t.Fatalf("%q: status %d, jobs %v: %s", text, status, ta.exports.jobs, body)
		}
	})
}
