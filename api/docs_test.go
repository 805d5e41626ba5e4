package api

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// docs/api.md has every operation and every problem type with its status, and
// no type that does not exist.
func TestDocs(t *testing.T) {
	b, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	docs := string(b)
	a := newTestAPI(t, &fakeStore{}).api
	for _, r := range a.router.routes {
		if !strings.Contains(docs, "| `"+r.pattern+"` |") {
			t.Errorf("docs/api.md does not list %s", r.pattern)
		}
	}
	listed := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| ([0-9]{3}) \\|").FindAllStringSubmatch(docs, -1) {
		listed[m[1]] = m[2]
	}
	for _, k := range problemKinds {
		if listed[k.name] != strconv.Itoa(k.status) {
			t.Errorf("docs/api.md lists %s with status %q, want %d", k.name, listed[k.name], k.status)
		}
		delete(listed, k.name)
	}
	if len(listed) > 0 {
		t.Errorf("docs/api.md lists problems that do not exist: %v", listed)
	}
}
