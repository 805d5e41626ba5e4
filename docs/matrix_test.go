package docs

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/drills"
)

var backquoted = regexp.MustCompile("`([^`]+)`")

// Every row of the matrix names a test, or a drill of the catalogue, or says
// that there is none. That the tests exist is TestNamedTests' part.
func TestEveryMatrixRowIsChecked(t *testing.T) {
	known := map[string]bool{}
	for _, d := range drills.Catalogue() {
		known[d.Name] = true
	}
	rows := 0
	for _, line := range strings.Split(read(t, filepath.Join(root, "docs", "test-matrix.md")), "\n") {
		cells := strings.Split(line, "|")
		if len(cells) != 4 || strings.HasPrefix(cells[1], "-") || strings.Contains(line, "| tried by |") {
			continue
		}
		rows++
		by := strings.TrimSpace(cells[2])
		names := backquoted.FindAllStringSubmatch(by, -1)
		if len(names) == 0 && !strings.HasPrefix(by, "not built") {
			t.Errorf("nothing tries to break: %s", cells[1])
		}
		for _, n := range names {
			if !testName.MatchString(n[0]) && !known[n[1]] {
				t.Errorf("%s is neither a test nor a drill", n[0])
			}
		}
	}
	if rows < 30 {
		t.Errorf("the matrix has %d rows", rows)
	}
}
