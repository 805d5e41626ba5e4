package oracle

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// I17: of any commits over any input, exactly the unfinished records below a
// commit are named, once each.
func TestI17PrefixAgreesWithAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type record struct {
			key    string
			number uint64
			poison bool
		}
		var input []record
		highest, aside := map[string]uint64{}, map[int64]bool{}
		p := newPrefix()
		last, reported := int64(0), map[int64]bool{}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				r := record{fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "key")), rapid.Uint64Range(1, 5).Draw(t, "number"), rapid.IntRange(0, 9).Draw(t, "poison") == 0}
				p.input(origin{0, int64(len(input))}, r.key, r.number, r.poison)
				input = append(input, r)
			case 1:
				key, number := fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "key")), rapid.Uint64Range(1, 5).Draw(t, "number")
				p.effect(key, number)
				highest[key] = max(highest[key], number)
			case 2:
				if len(input) > 0 {
					o := int64(rapid.IntRange(0, len(input)-1).Draw(t, "aside"))
					p.setAside(origin{0, o})
					aside[o] = true
				}
			case 3:
				commit := int64(rapid.IntRange(0, len(input)).Draw(t, "commit"))
				unfinished, back := p.commit(0, commit)
				if back != (commit < last) {
					t.Fatalf("commit %d after %d: back %v", commit, last, back)
				}
				var want []int64
				for o := last; o < commit; o++ {
					r := input[o]
					if !(r.poison && aside[o] || !r.poison && highest[r.key] >= r.number) && !reported[o] {
						want, reported[o] = append(want, o), true
					}
				}
				if !slices.Equal(unfinished, want) {
					t.Fatalf("commit %d after %d names %v, want %v", commit, last, unfinished, want)
				}
				last = max(last, commit)
			}
		}
	})
}

func TestWinners(t *testing.T) {
	w := newWinners(func(b []byte) (uint64, error) {
		if len(b) != 1 {
			return 0, fmt.Errorf("no row")
		}
		return uint64(b[0]), nil
	})
	for _, v := range []byte{1, 3, 2} {
		if err := w.take("k", []byte{v}); err != nil {
			t.Fatal(err)
		}
	}
	if s := w.keys["k"]; s.last != 2 || s.highest != 3 || w.late != 1 {
		t.Errorf("%+v, late %d", s, w.late)
	}
	if err := w.take("k", []byte{3}); err != nil || w.keys["k"].last != 3 {
		t.Error("a repair does not count")
	}
	if w.take("k", nil) == nil {
		t.Error("a row that is none was taken")
	}
}

func TestFindingsCountAllAndDescribeSome(t *testing.T) {
	var f Findings
	f.AddMany(Negative, 0, "nothing")
	if f.Total() != 0 || len(f.Lines()) != 0 {
		t.Fatal("nothing is something")
	}
	for i := range 25 {
		f.Add(EarlyCommit, "number %d", i)
	}
	f.AddMany(Negative, 7, "seven")
	lines := f.Lines()
	if f.Total() != 32 || len(lines) != maxExamples+3 || lines[maxExamples] != "early-commit: and 15 more" || lines[len(lines)-1] != "negative: and 6 more" {
		t.Fatalf("%d: %q", f.Total(), lines)
	}
}
