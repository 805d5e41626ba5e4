package drills

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The rows of the bug log: Goka, Sarama, Debezium, Go's CDC clients, Kafka
// Streams and kin.
var bugLogRows = []string{
	"G01", "G02", "G03", "G04", "G05", "G06", "G08", "G09", "G11", "G12", "G13", "G14", "G15", "G16", "G17", "G18", "G19", "G21", "G22", "G25", "G28", "G29", "G30",
	"S01", "S03", "S04", "S05", "S06", "S08", "S09", "S10", "S11",
	"D01", "D02", "D03", "D04", "D05", "D06", "D07", "D08", "D09", "D10", "D11", "D12", "D13", "D14", "D15", "D16", "D17", "D19", "D22", "D23", "D24", "D25", "D26",
	"C01", "C02", "C03", "C04", "C06",
	"K01", "K02", "K05", "K06", "K07", "K08", "K10",
}

// rowIDs are what a test's name begins with.
var rowIDs = regexp.MustCompile(`^Test((?:[A-Z]\d+)+)[A-Z]`)

// Every row of the bug log is answered, by drills and tests that exist, and
// those that name a row stand in it.
func TestBugLogPage(t *testing.T) {
	page := readDoc(t, "bug-log.md")
	lines := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z]\d+) \|.*$`).FindAllStringSubmatch(page, -1) {
		lines[m[1]] = m[0]
	}
	for _, row := range bugLogRows {
		if lines[row] == "" {
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
			if !strings.Contains(lines[row], "`"+d.Name+"`") {
				t.Errorf("drill %s answers row %s, which does not say so", d.Name, row)
			}
		}
	}
	for name := range tests {
		m := rowIDs.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		for _, row := range regexp.MustCompile(`[A-Z]\d+`).FindAllString(m[1], -1) {
			if slices.Contains(bugLogRows, row) && !strings.Contains(lines[row], "`"+name+"`") {
				t.Errorf("%s answers row %s, which does not say so", name, row)
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
