// Package docs has no code: its tests keep the pages true where a program can
// tell. Tables between "<!-- generated: NAME -->" and "<!-- end -->" are
// written from the code:
//
//	go test ./docs -update
package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the generated tables")

const root = ".."

// pages are the project's own Markdown files.
func pages(t *testing.T) []string {
	t.Helper()
	list := []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && filepath.Ext(path) == ".md" {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var block = regexp.MustCompile(`(?s)<!-- generated: ([^>]+) -->\n.*?<!-- end -->`)

func TestGeneratedTables(t *testing.T) {
	for _, page := range pages(t) {
		have := read(t, page)
		want := block.ReplaceAllStringFunc(have, func(b string) string {
			name := block.FindStringSubmatch(b)[1]
			table, err := generate(name)
			if err != nil {
				t.Fatalf("%s: table %q: %v", page, name, err)
			}
			return fmt.Sprintf("<!-- generated: %s -->\n%s<!-- end -->", name, table)
		})
		if want == have {
			continue
		}
		if !*update {
			t.Errorf("%s: its tables are not what the code says: run go test ./docs -update", page)
			continue
		}
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Every relative link leads to a file and, within a page, to a heading.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := page
			if target != "" {
				path = filepath.Join(filepath.Dir(page), target)
			}
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: link %s leads nowhere", page, m[1])
				continue
			}
			if anchor != "" && !anchors(read(t, path))[anchor] {
				t.Errorf("%s: link %s: no such heading", page, m[1])
			}
		}
	}
}

var notInAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchors are a page's headings as links name them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, line := range strings.Split(text, "\n") {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			title = notInAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			found[strings.ReplaceAll(title, " ", "-")] = true
		}
	}
	return found
}

// named is a path of the repository in backquotes, perhaps with what to look
// for in that file: `relations/seal.go: prove`.
var named = regexp.MustCompile("`((?:api|bench|client|cmd|docker|docs|drills|emitters|examples|internal|processors|real|relations|topology|views)/[A-Za-z0-9_./*-]*)(?:: ([A-Za-z0-9_.]+(?:, [A-Za-z0-9_.]+)*))?`")

// Every file that a page names is there and holds what the page says it does.
func TestNamedFiles(t *testing.T) {
	for _, page := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(read(t, page), -1) {
			found, err := filepath.Glob(filepath.Join(root, m[1]))
			if err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which is not there", page, m[1])
				continue
			}
			if m[2] == "" {
				continue
			}
			for _, what := range strings.Split(m[2], ", ") {
				if !holds(t, found, what) {
					t.Errorf("%s: %s has no %s", page, m[1], what)
				}
			}
		}
	}
}

// holds tells whether a declared name, or the last part of Type.method, stands
// in one of the files.
func holds(t *testing.T, files []string, what string) bool {
	what = what[strings.LastIndexByte(what, '.')+1:]
	word := regexp.MustCompile(`\b` + regexp.QuoteMeta(what) + `\b`)
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && !info.IsDir() && word.MatchString(read(t, f)) {
			return true
		}
	}
	return false
}

var testName = regexp.MustCompile("`(Test[A-Za-z0-9_]+|Fuzz[A-Za-z0-9_]+)`")

// Every test that a page names exists.
func TestNamedTests(t *testing.T) {
	all := map[string]bool{}
	goFiles(t, func(path string) bool { return strings.HasSuffix(path, "_test.go") }, func(_ string, f *ast.File) {
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				all[fn.Name.Name] = true
			}
		}
	})
	for _, page := range pages(t) {
		for _, m := range testName.FindAllStringSubmatch(read(t, page), -1) {
			if !all[m[1]] {
				t.Errorf("%s names %s, which does not exist", page, m[1])
			}
		}
	}
}

var metric = regexp.MustCompile(`\btidemark_[a-z0-9_]+`)

// operating.md lists every metric that a package comment names.
func TestEveryMetricIsListed(t *testing.T) {
	page := map[string]bool{}
	for _, name := range metric.FindAllString(read(t, "operating.md"), -1) {
		page[name] = true
	}
	goFiles(t, func(path string) bool { return !strings.HasSuffix(path, "_test.go") }, func(path string, f *ast.File) {
		if f.Doc == nil {
			return
		}
		for _, name := range metric.FindAllString(f.Doc.Text(), -1) {
			if !page[name] {
				t.Errorf("operating.md lacks %s of %s", name, path)
			}
		}
	})
}

// goFiles parses the repository's Go files.
func goFiles(t *testing.T, want func(path string) bool, visit func(path string, f *ast.File)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || !want(path) {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err == nil {
			visit(path, f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
