package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/internal/verify"
)

// A small demonstration ends equal and leaves nothing behind, also where
// PostgreSQL's user may not enter the temporary folder.
func TestDemo(t *testing.T) {
	hidden := t.TempDir()
	if err := os.Chmod(hidden, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", hidden)
	before := places(t)
	var report demoReport
	r := must(t, exitOK, "demo", "--commands", "1000", "--rate", "400", "--kills", "1", "--output", "json")
	mustJSON(t, r.out, &report)
	if report.Verify.Verdict != verify.Equal || report.Kills != 1 || report.Load.Decided != 1000 || report.Freshness.Updates == 0 || report.Freshness.P50 <= 0 {
		t.Errorf("%+v", report)
	}
	if !strings.Contains(r.errOut, "demo: kill -9 of the projection") {
		t.Error(r)
	}
	if left, err := os.ReadDir(hidden); err != nil || len(left) > 0 {
		t.Errorf("left in the temporary folder: %v, %v", left, err)
	}
	for place := range places(t) {
		if !before[place] && strings.Contains(owner(place), hidden) {
			t.Errorf("%s is left", place)
		}
	}
}

// places are the folders of PostgreSQL's files outside data directories.
func places(t *testing.T) map[string]bool {
	t.Helper()
	all, err := filepath.Glob("/var/lib/tidemark/*")
	if err != nil {
		t.Fatal(err)
	}
	set := map[string]bool{}
	for _, place := range all {
		set[place] = true
	}
	return set
}

func owner(place string) string {
	b, _ := os.ReadFile(filepath.Join(place, "owner")) // none: nobody's
	return string(b)
}
