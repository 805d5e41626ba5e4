package gokakit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// A store that does not fit its log is thrown away and read anew (G14, G15,
// G16), one that does is kept.
func TestStoreIsComparedWithItsLog(t *testing.T) {
	mine := [16]byte{1}
	for _, c := range []struct {
		name string
		log  logBounds
		keep bool
	}{
		{"same log", logBounds{start: 0, end: 100, topicID: mine}, true},
		{"log went on", logBounds{start: 0, end: 1000, topicID: mine}, true},
		{"log starts right behind", logBounds{start: 100, end: 200, topicID: mine}, true},
		{"G14 topic made anew", logBounds{start: 0, end: 100, topicID: [16]byte{2}}, false},
		{"G14 topic made anew, empty", logBounds{topicID: [16]byte{2}}, false},
		{"G15 log starts later", logBounds{start: 101, end: 200, topicID: mine}, false},
		{"G16 ahead of the log", logBounds{start: 0, end: 99, topicID: mine}, false},
		{"G16 log is empty", logBounds{topicID: mine}, false},
	} {
		run := func(weak Weakness) string {
			fs := vfs.NewMem()
			s := openStore(t, fs, 0, logBounds{topicID: mine})
			fill(t, s, 0, 100)
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
			s = openStore(t, fs, weak, c.log)
			v, err := s.get("0000|g0:a0")
			if err != nil {
				t.Fatal(err)
			}
			if kept := v != nil; kept != c.keep {
				return fmt.Sprintf("kept %v, want %v", kept, c.keep)
			}
			want := int64(99)
			if !c.keep {
				want = -1
			}
			if c.log.start == c.log.end {
				want = c.log.end - 1
			}
			if s.offset() != want {
				return fmt.Sprintf("the log is read from %d, want %d", s.offset()+1, want+1)
			}
			return ""
		}
		t.Run(c.name, func(t *testing.T) {
			if d := run(0); d != "" {
				t.Error(d)
			}
			if !c.keep && run(WithoutLogCheck) == "" {
				t.Error("a store that is not compared looks the same")
			}
		})
	}
}

// An open store notices that the log has become another one (G14).
func TestOpenStoreIsComparedAgain(t *testing.T) {
	s := openStore(t, vfs.NewMem(), 0, logBounds{topicID: [16]byte{1}})
	fill(t, s, 0, 10)
	if err := s.recheck(logBounds{end: 10, topicID: [16]byte{1}}); err != nil {
		t.Error(err)
	}
	for name, b := range map[string]logBounds{
		"made anew": {end: 10, topicID: [16]byte{2}}, "is not below the log's end": {end: 9, topicID: [16]byte{1}}, "is gone": {start: 11, end: 20, topicID: [16]byte{1}},
	} {
		if err := s.recheck(b); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// A damaged store is discarded, whatever part of it is damaged; one in use by
// another process is not.
func TestDamagedStoreIsDiscarded(t *testing.T) {
	for name, damage := range map[string]func(fs *vfs.MemFS, dir string, files []string){
		"table missing": func(fs *vfs.MemFS, dir string, files []string) {
			for _, f := range files {
				if strings.HasSuffix(f, ".sst") {
					_ = fs.Remove(fs.PathJoin(dir, f))
				}
			}
		},
		"table damaged":    overwrite(".sst"),
		"manifest damaged": overwrite("MANIFEST"),
		"own rows damaged": nil,
	} {
		t.Run(name, func(t *testing.T) {
			fs := vfs.NewMem()
			s := openStore(t, fs, 0, logBounds{})
			fill(t, s, 0, 100)
			if damage == nil {
				if err := s.db.Set(offsetName, []byte("x"), pebble.NoSync); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.close(); err != nil {
				t.Fatal(err)
			}
			if damage != nil {
				files, err := fs.List("state/table.0")
				if err != nil {
					t.Fatal(err)
				}
				damage(fs, "state/table.0", files)
			}
			// What only a read notices needs a second opening.
			for range 2 {
				s, err := testStore(fs, 0, unended)
				if err != nil {
					t.Fatal(err)
				}
				_, err = s.get("0000|g0:a0")
				if err == nil {
					if err := s.replayAll(100); err != nil {
						t.Fatal(err)
					}
					_, err = s.get("0000|g0:a0")
				}
				_ = s.close()
				if err == nil {
					return
				}
			}
			t.Error("the damaged store is still there")
		})
	}
}

func overwrite(part string) func(*vfs.MemFS, string, []string) {
	return func(fs *vfs.MemFS, dir string, files []string) {
		for _, name := range files {
			if !strings.Contains(name, part) || strings.HasPrefix(name, "marker") {
				continue
			}
			path := fs.PathJoin(dir, name)
			info, _ := fs.Stat(path)
			f, _ := fs.Create(path, vfs.WriteCategoryUnspecified)
			_, _ = f.Write(make([]byte, info.Size()))
			_ = f.Close()
		}
	}
}

func (s *store) replayAll(n int) error {
	for i := s.offset() + 1; i < int64(n); i++ {
		if _, err := s.replay(fmt.Sprintf("0000|g%d:a%d", i%9, i), cell{uint64(i) + 1, uint64(i) + 1, i, i}.encode(), i); err != nil {
			return err
		}
	}
	return nil
}

func TestStoreInUseIsNotDiscarded(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs, 0, logBounds{})
	fill(t, s, 0, 10)
	if _, err := testStore(fs, 0, unended); err == nil || !strings.Contains(err.Error(), "state/table.0") {
		t.Fatalf("opened twice: %v", err)
	}
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
}

// A half-removed store of an earlier crash is removed for good.
func TestDiscardedStoreIsRemoved(t *testing.T) {
	fs := vfs.NewMem()
	if err := fs.MkdirAll("state/table.0.discarded/x", 0o755); err != nil {
		t.Fatal(err)
	}
	openStore(t, fs, 0, logBounds{})
	if _, err := fs.Stat("state/table.0.discarded"); err == nil {
		t.Error("the discarded store is still there")
	}
}
