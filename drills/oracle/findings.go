package oracle

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Class is a sort of finding; the package comment explains each.
type Class string

// The classes found by watching.
const (
	EarlyCommit       Class = "early-commit"
	CommitBack        Class = "commit-back"
	SequenceConflict  Class = "sequence-conflict"
	DisplayBack       Class = "display-back"
	Negative          Class = "negative"
	Unfenced          Class = "unfenced"
	StaleLast         Class = "stale-last"
	QuarantineMissing Class = "quarantine-missing"
	QuarantineExtra   Class = "quarantine-extra"
	Unreadable        Class = "unreadable"
)

// maxExamples is how many findings of a class are described.
const maxExamples = 10

// Findings collects what is wrong. The zero value is empty and ready.
type Findings struct {
	mu       sync.Mutex
	counts   map[Class]int64
	examples map[Class][]string
}

// Add notes one finding.
func (f *Findings) Add(c Class, format string, a ...any) { f.AddMany(c, 1, format, a...) }

// AddMany notes n findings of which one is described.
func (f *Findings) AddMany(c Class, n int64, format string, a ...any) {
	if n == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.counts == nil {
		f.counts, f.examples = map[Class]int64{}, map[Class][]string{}
	}
	f.counts[c] += n
	if len(f.examples[c]) < maxExamples {
		f.examples[c] = append(f.examples[c], fmt.Sprintf(format, a...))
	}
}

// Counts gives the number of findings of each class.
func (f *Findings) Counts() map[Class]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.counts)
}

// Total is the number of all findings.
func (f *Findings) Total() (n int64) {
	for _, c := range f.Counts() {
		n += c
	}
	return n
}

// Lines describes findings of each class, those of one class in the order in
// which they were found.
func (f *Findings) Lines() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for _, c := range slices.Sorted(maps.Keys(f.counts)) {
		for _, e := range f.examples[c] {
			lines = append(lines, fmt.Sprintf("%s: %s", c, e))
		}
		if more := f.counts[c] - int64(len(f.examples[c])); more > 0 {
			lines = append(lines, fmt.Sprintf("%s: and %d more", c, more))
		}
	}
	return lines
}
