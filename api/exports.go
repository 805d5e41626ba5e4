package api

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tidemark/tidemark/exports"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/topology"
)

// Roles that may export. What others asked for, operators see too.
const (
	AnalystRole  = "analyst"  // accounts that are shown
	OperatorRole = "operator" // all accounts
)

// MaxExportJobs is how many export jobs wait or run at once.
const MaxExportJobs = 16

// ExportJobs keeps export jobs and the audit; *control.DB is one.
type ExportJobs interface {
	QueueExport(ctx context.Context, j control.ExportJob, subject string, limit int) (control.ExportJob, error)
	Export(ctx context.Context, id string) (control.ExportJob, error)
	Audit(ctx context.Context, e control.Entry) error
}

// exportJobs serves export jobs, whose files lie below dir.
type exportJobs struct {
	api  *API
	jobs ExportJobs
	dir  string
}

// RegisterExports adds export jobs; someone else runs them (exports.Runner) and
// writes below dir. Once per API.
func RegisterExports(a *API, jobs ExportJobs, dir string) {
	e := &exportJobs{a, jobs, dir}
	id := &huma.Param{Name: "id", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}, Description: "The export's id"}
	problems := []problemKind{kindRoleMissing, kindExportsUnavailable}
	a.add(operation{
		method: http.MethodPost, path: "/v1/exports", id: "create-export", tag: "exports",
		summary: "Export who likes, favorites or follows a target, as of one barrier",
		description: "Takes a job; the answer says how far it is. The list is exact as of one moment, in contrast to the pages of a live list. " +
			"Needs the role analyst, or operator for accounts: all. Purpose and caller are audited before a row is read, and so is each download.",
		params: []*huma.Param{{
			Name: "Idempotency-Key", In: "header", Required: true, Schema: keySchema(),
			Description: "The export's own key, made by the client; sent again it gives the same export",
		}},
		class: "exports",
		body:  reflect.TypeFor[ExportBody](), result: reflect.TypeFor[ExportAnswer](),
		problems: append([]problemKind{kindTooManyExports, kindKeyReused}, problems...),
		handle:   e.create,
	})
	a.add(operation{
		method: http.MethodGet, path: "/v1/exports/{id}", id: "get-export", tag: "exports",
		summary:     "How far an export is, and its files",
		description: "Whoever asked for it sees it, and operators do.",
		params:      []*huma.Param{id}, result: reflect.TypeFor[ExportAnswer](),
		problems: append([]problemKind{kindExportUnknown}, problems...),
		handle:   e.get,
	})
	a.add(operation{
		method: http.MethodGet, path: "/v1/exports/{id}/files/{name}", id: "get-export-file", tag: "exports",
		summary:     "A file of a finished export",
		description: "A part of its rows, or manifest.json. Each download is audited. Ranges may be asked for.",
		params: []*huma.Param{id, {Name: "name", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString},
			Description: "The file's name, as the export lists it"}},
		media:    "application/octet-stream",
		problems: append([]problemKind{kindExportUnknown, kindExportNotFinished}, problems...),
		handle:   e.file,
	})
}

func (e *exportJobs) create(w http.ResponseWriter, r *http.Request) *Problem {
	who := IdentityOf(r.Context())
	if p := needExportRole(who); p != nil {
		return p
	}
	key, p := idempotencyKey(r)
	if p != nil {
		return p
	}
	text, p := readBody(w, r)
	if p != nil {
		return p
	}
	spec, p := decodeExport(text)
	if p != nil {
		return p
	}
	if spec.Accounts == exports.All && !who.HasRole(OperatorRole) {
		return roleMissing("accounts all needs the role " + OperatorRole)
	}
	j, err := e.jobs.QueueExport(r.Context(), control.ExportJob{
		Who: who.User, OperationID: key, Kind: spec.Kind.String(), Target: spec.Target,
		Format: string(spec.Format), Accounts: string(spec.Accounts), Purpose: spec.Purpose,
	}, exports.AuditSubject(spec.Kind, spec.Target), MaxExportJobs)
	switch {
	case errors.Is(err, control.ErrTooManyExports):
		p := unavailable(kindTooManyExports, "as many exports wait or run as may: ask again with the same Idempotency-Key")
		p.retryAfter = 10 * time.Second
		return p
	case errors.Is(err, control.ErrExportReused):
		return newProblem(kindKeyReused, "header.Idempotency-Key is that of another export: make a new one")
	case err != nil:
		return e.unavailable(r.Context(), err)
	}
	return e.answer(w, r, j)
}

func needExportRole(who Identity) *Problem {
	if !who.HasRole(AnalystRole) && !who.HasRole(OperatorRole) {
		return roleMissing("exports need the role " + AnalystRole + " or " + OperatorRole)
	}
	return nil
}

func roleMissing(detail string) *Problem {
	return newProblem(kindRoleMissing, "the token does not have a role that this needs: "+detail)
}

func (e *exportJobs) unavailable(ctx context.Context, err error) *Problem {
	e.api.quiet.warn(ctx, "export jobs cannot be reached", err)
	return unavailable(kindExportsUnavailable, "exports cannot be reached now: try again")
}

// job reads the job of the path, if it is the caller's to see.
func (e *exportJobs) job(r *http.Request) (control.ExportJob, *Problem) {
	who := IdentityOf(r.Context())
	if p := needExportRole(who); p != nil {
		return control.ExportJob{}, p
	}
	j, err := e.jobs.Export(r.Context(), r.PathValue("id"))
	switch {
	case errors.Is(err, control.ErrNoExport) || err == nil && j.Who != who.User && !who.HasRole(OperatorRole):
		return j, newProblem(kindExportUnknown, "there is no such export, or it is another's")
	case err != nil:
		return j, e.unavailable(r.Context(), err)
	}
	return j, nil
}

func (e *exportJobs) get(w http.ResponseWriter, r *http.Request) *Problem {
	j, p := e.job(r)
	if p != nil {
		return p
	}
	return e.answer(w, r, j)
}

func (e *exportJobs) answer(w http.ResponseWriter, r *http.Request, j control.ExportJob) *Problem {
	a := ExportAnswer{
		ExportID: j.ID, State: string(j.State), RequestedBy: j.Who, Kind: j.Kind, TargetID: j.Target, Format: j.Format, Accounts: j.Accounts, Purpose: j.Purpose,
		RequestedAt: j.CreatedAt.UTC(), EndedAt: j.EndedAt, Relations: j.Relations, Rows: j.Rows, Note: j.Note, Files: []string{},
	}
	if j.State == control.ExportFinished {
		m, err := manifestOf(j)
		if err != nil {
			return e.unavailable(r.Context(), err)
		}
		a.Checksum, a.Files = m.Checksum, filesOf(m)
	}
	writeJSON(w, a)
	return nil
}

func manifestOf(j control.ExportJob) (m exports.Manifest, err error) {
	return m, json.Unmarshal(j.Manifest, &m)
}

func filesOf(m exports.Manifest) []string {
	files := []string{exports.ManifestName}
	for _, p := range m.Parts {
		files = append(files, p.Name)
	}
	return files
}

// fileTimeout is how long a client may take for a file.
const fileTimeout = 10 * time.Minute

// file sends a file that the job's manifest names, and no other.
func (e *exportJobs) file(w http.ResponseWriter, r *http.Request) *Problem {
	j, p := e.job(r)
	if p != nil {
		return p
	}
	if j.State != control.ExportFinished {
		return newProblem(kindExportNotFinished, "the export is "+string(j.State)+": its files are there when it is FINISHED")
	}
	m, err := manifestOf(j)
	name := r.PathValue("name")
	if err == nil && !slices.Contains(filesOf(m), name) {
		return newProblem(kindNotFound, "the export has no such file")
	}
	var f *os.File
	if err == nil {
		f, err = os.Open(filepath.Join(exports.JobDir(e.dir, j.ID), name))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return unavailable(kindExportsUnavailable, "the file is not in the exports folder of this process: it was removed, or it lies with another process")
	}
	if err != nil {
		return e.unavailable(r.Context(), err)
	}
	defer func() { _ = f.Close() }()
	kind, _ := topology.ParseKind(j.Kind)
	if err := e.jobs.Audit(r.Context(), control.Entry{
		Who: IdentityOf(r.Context()).User, Action: "export.downloaded", Subject: exports.AuditSubject(kind, j.Target), Reason: j.Purpose,
		Detail: map[string]any{"job": j.ID, "file": name},
	}); err != nil {
		return e.unavailable(r.Context(), err)
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(fileTimeout)) // a writer without deadlines has none
	h := w.Header()
	h.Set("Content-Type", mediaOf(name))
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, f)
	return nil
}

func mediaOf(name string) string {
	switch {
	case name == exports.ManifestName:
		return "application/json"
	case strings.HasSuffix(name, ".csv"):
		return "text/csv; charset=utf-8"
	case strings.HasSuffix(name, ".jsonl"):
		return "application/jsonl"
	}
	return "application/vnd.apache.parquet"
}
