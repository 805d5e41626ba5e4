package risk

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Load reads the rules of a file. Files of ids that it names are found beside it,
// unless their paths are absolute.
func Load(path string) (*Rules, error) {
	rules, _, err := load(path)
	return rules, err
}

// load also gives what it has read, also when that cannot be used.
func load(path string) (*Rules, fileStamps, error) {
	var seen fileStamps
	b, err := seen.read(path, MaxRuleBytes)
	if err != nil {
		return nil, seen, fmt.Errorf("reading rules of risk: %w", err)
	}
	rules, err := Parse(b, func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return seen.read(name, MaxIDFileBytes)
	})
	if err != nil {
		return nil, seen, fmt.Errorf("reading rules of risk: %s: %w", path, err)
	}
	return rules, seen, nil
}

// fileStamps are files with their stamps.
type fileStamps []fileStamp

type fileStamp struct{ path, stamp string }

// read takes a file's stamp before its content: a change in between has a newer
// stamp, and is read the next time.
func (s *fileStamps) read(path string, most int64) ([]byte, error) {
	*s = append(*s, fileStamp{path, stampOf(path)})
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return b, err
}

// changed tells whether any of the files is another one now.
func (s fileStamps) changed() bool {
	for _, f := range s {
		if stampOf(f.path) != f.stamp {
			return true
		}
	}
	return false
}

// stampOf is empty for a file that is not there.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.Size(), info.ModTime().UnixNano())
}
