package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/exports"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/topology"
)

// An export over the API is a job with the caller's right and purpose, its files
// are what the command writes, and the audit has each step.
func TestExportOverHTTP(t *testing.T) {
	s := theSystem(t)
	const video, likers = "VX3", 30
	var likes []string
	for i := range likers {
		likes = append(likes, fmt.Sprintf("asked%d,like,%s,LIKED", i, video))
	}
	s.replay(t, likes)
	url := s.endpoints(t).API
	nobody := newClient(t, url, "nobody", "--data-dir", s.dir)
	nobody.awaitCount(video, likers)
	body := map[string]string{"kind": "like", "targetId": video, "format": "csv", "purpose": "a test"}
	if err := nobody.try(http.MethodPost, "/v1/exports", "k1", body, nil); err == nil || !strings.Contains(err.Error(), "role-missing") {
		t.Errorf("without a role: %v", err)
	}
	ann := &client{t, url, "ann", strings.TrimSpace(must(t, exitOK, s.at("token", "--user", "ann", "--role", api.AnalystRole)...).out)}
	var job api.ExportAnswer
	ann.do(http.MethodPost, "/v1/exports", "k1", body, &job)
	eventually(t, func() error {
		ann.do(http.MethodGet, "/v1/exports/"+job.ExportID, "", nil, &job)
		if job.State != "FINISHED" {
			return fmt.Errorf("job %+v", job)
		}
		return nil
	})
	if job.Rows != likers || len(job.Files) != 2 || job.EndedAt == nil {
		t.Errorf("job %+v", job)
	}
	var m exports.Manifest
	ann.do(http.MethodGet, "/v1/exports/"+job.ExportID+"/files/manifest.json", "", nil, &m)
	if m.Checksum != job.Checksum || m.Rows != likers || m.By != "ann" || m.Purpose != "a test" || len(m.AsOf.Shards) != 2 {
		t.Errorf("manifest %+v", m)
	}
	must(t, exitOK, "export", "verify", filepath.Join(s.dir, "exports", job.ExportID))
	db, err := control.Open(t.Context(), s.config(t).Control)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	lines, err := db.Entries(t.Context(), exports.AuditSubject(topology.Like, video), 10)
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, e := range slices.Backward(lines) {
		if actions = append(actions, e.Action); e.Who != "ann" || e.Reason != "a test" {
			t.Errorf("audit %+v", e)
		}
	}
	if want := []string{"export.asked", "export.begun", "export.finished", "export.downloaded"}; !slices.Equal(actions, want) {
		t.Errorf("audit %v, want %v", actions, want)
	}
}
