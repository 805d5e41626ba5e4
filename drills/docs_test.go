package drills

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The Goka and Sarama rows of the bug log.
var bugLogRows = []string{
	"G01", "G02", "G03", "G04", "G05", "G06", "G08", "G09", "G11", "G12", "G13", "G14", "G15", "G16", "G17", "G18", "G19", "G21", "G22", "G25", "G28", "G29", "G30",
	"S01", "S03", "S04", "S05", "S06", "S08", "S09", "S10", "S11",
}

// Every row of the bug log is answered, by drills and tests that exist.
func TestBugLogPage(t *testing.T) {
	page := readDoc(t, "bug-log.md")
	for _, row := range bugLogRows {
		if !strings.Contains(page, "| "+row+" |") {
			t.Errorf("row %s is not answered", row)
		}
	}
	tests := testNames(t)
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(page, -1) {
		name := m[1]
		if strings.Contains(name, " ") {
			continue // a command
		}
		if _, err := Find(name); err != nil && !tests[name] {
			t.Errorf("%s is neither a drill nor a test", name)
		}
	}
	for _, d := range Catalogue() {
		for _, row := range d.Rows {
			if strings.ContainsAny(row[:1], "GS") && !strings.Contains(page, "| "+row+" |") {
				t.Errorf("drill %s answers row %s, which the page does not have", d.Name, row)
			}
		}
	}
}

// The page lists every drill and suite.
func TestTorturePage(t *testing.T) {
	page := readDoc(t, "torture.md")
	for _, d := range Catalogue() {
		if !strings.Contains(page, "| `"+d.Name+"` |") {
			t.Errorf("drill %s is not listed: | `%s` | %s |", d.Name, d.Name, d.About)
		}
	}
	for _, s := range Suites() {
		if !strings.Contains(page, s.Name) {
			t.Errorf("suite %s is not mentioned", s.Name)
		}
	}
	for _, p := range proofs {
		if !strings.Contains(page, "| "+p.mechanism+" |") {
			t.Errorf("the proof of %s is not listed", p.mechanism)
		}
	}
}

func readDoc(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// testNames are the tests of the whole repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names, declared := map[string]bool{}, regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != ".." {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(b, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
