package exports

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Verify finds whatever was done to a finished export.
func TestVerifyFindsTampering(t *testing.T) {
	for _, f := range Formats() {
		for name, harm := range map[string]struct {
			do   func(t *testing.T, dir string)
			want string
		}{
			"nothing": {func(*testing.T, string) {}, ""},
			"a byte":  {func(t *testing.T, dir string) { edit(t, dir, partName(2, f), flip) }, "not the file"},
			"a part is short": {func(t *testing.T, dir string) {
				edit(t, dir, partName(1, f), func(b []byte) []byte { return b[:len(b)-3] })
			}, "not the file"},
			"a part is gone": {func(t *testing.T, dir string) { remove(t, dir, partName(3, f)) }, "is missing"},
			"a part is another": {func(t *testing.T, dir string) {
				b := must(os.ReadFile(filepath.Join(dir, partName(1, f))))
				edit(t, dir, partName(2, f), func([]byte) []byte { return b })
			}, "not the file"},
			"a part too many": {func(t *testing.T, dir string) { edit(t, dir, partName(9, f), func([]byte) []byte { return nil }) }, "does not name"},
			"a part less in the manifest": {func(t *testing.T, dir string) {
				change(t, dir, func(m *Manifest) { m.Parts = m.Parts[1:] })
			}, "the parts have"},
			"parts in another order": {func(t *testing.T, dir string) {
				change(t, dir, func(m *Manifest) { m.Parts[0], m.Parts[1] = m.Parts[1], m.Parts[0] })
			}, "out of order"},
			"a part twice": {func(t *testing.T, dir string) {
				change(t, dir, func(m *Manifest) { m.Parts[1] = m.Parts[0] })
			}, "out of order"},
			"the count":    {func(t *testing.T, dir string) { change(t, dir, func(m *Manifest) { m.Rows++ }) }, "the manifest says"},
			"the withheld": {func(t *testing.T, dir string) { change(t, dir, func(m *Manifest) { m.Withheld-- }) }, "withheld"},
			"a way out": {func(t *testing.T, dir string) {
				change(t, dir, func(m *Manifest) { m.Parts[0].Name = "../" + m.Parts[0].Name })
			}, "is not a name"},
			"another format":     {func(t *testing.T, dir string) { change(t, dir, func(m *Manifest) { m.Format = "xlsx" }) }, "format"},
			"a row of one's own": {forge(f), "the parts have"},
		} {
			t.Run(string(f)+"/"+name, func(t *testing.T) {
				dir := filepath.Join(t.TempDir(), "x")
				mustRun(t, newSystem(60), spec(f), dir)
				harm.do(t, dir)
				r, err := Verify(t.Context(), dir)
				if err != nil {
					t.Fatal(err)
				}
				if all := strings.Join(r.Differences, "\n"); (all == "") != (harm.want == "") || !strings.Contains(all, harm.want) {
					t.Errorf("found %q, want %q", all, harm.want)
				}
			})
		}
	}
}

// forge writes a part anew with a row changed, and its own sums with it.
func forge(f Format) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		m := must(ReadManifest(dir))
		var rows []Row
		if err := readPart(dir, m.Parts[0], f, func(r Row) error { rows = append(rows, r); return nil }); err != nil {
			t.Fatal(err)
		}
		rows[3].Version++
		d := must(openDirectory(dir))
		defer d.close()
		p, err := d.writePart(1, f, rows)
		if err != nil {
			t.Fatal(err)
		}
		change(t, dir, func(m *Manifest) { m.Parts[0] = p })
	}
}

func flip(b []byte) []byte {
	b[len(b)/2] ^= 1
	return b
}

func edit(t *testing.T, dir, name string, change func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), change(bytes.Clone(b)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func change(t *testing.T, dir string, do func(*Manifest)) {
	t.Helper()
	m := must(ReadManifest(dir))
	do(&m)
	edit(t, dir, ManifestName, func([]byte) []byte { return must(json.Marshal(m)) })
}

// What is no file of its format is a difference, never a panic.
func TestVerifyOfGarbage(t *testing.T) {
	for _, f := range Formats() {
		for _, text := range []string{"", "x", "PAR1", "PAR1\x00\x00\x00\x00PAR1", "userId,likedAt,version\na,b\n", "userId,likedAt,version\na,b,c\n", `{"userId":1}`, `{"userId":"a","likedAt":"x","version":1}`, strings.Repeat("\xff", 4096)} {
			file := filepath.Join(t.TempDir(), "part")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			in := must(os.Open(file))
			err := codecs[f].read(in, func(Row) error { return nil })
			_ = in.Close()
			if err == nil && (text != "" || f != JSONL) {
				t.Errorf("%s takes %q", f, text)
			}
		}
	}
}
