package risk

import (
	"fmt"
	"path/filepath"

	"github.com/tidemark/tidemark/internal/filestamp"
)

// Load reads the rules of a file. Files of ids that it names are found beside it,
// unless their paths are absolute.
func Load(path string) (*Rules, error) {
	rules, _, err := load(path)
	return rules, err
}

// load also gives what it has read, also when that cannot be used.
func load(path string) (*Rules, filestamp.Seen, error) {
	var seen filestamp.Seen
	b, err := seen.Read(path, MaxRuleBytes)
	if err != nil {
		return nil, seen, fmt.Errorf("reading rules of risk: %w", err)
	}
	rules, err := Parse(b, func(name string) ([]byte, error) {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(path), name)
		}
		return seen.Read(name, MaxIDFileBytes)
	})
	if err != nil {
		return nil, seen, fmt.Errorf("reading rules of risk: %s: %w", path, err)
	}
	return rules, seen, nil
}
