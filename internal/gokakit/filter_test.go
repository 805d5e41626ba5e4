package gokakit

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark/tidemark/internal/testenv"
)

// The filter never denies what was added, and wrongly admits few others.
func TestFilter(t *testing.T) {
	f := newFilter(0)
	for i := range filterMinKeys {
		f.add(hashName(valueName, fmt.Sprint(i), ""))
	}
	if f.full() {
		t.Errorf("full with %d keys, built for %d", f.keys, f.built)
	}
	wrong := 0
	for i := range filterMinKeys {
		if !f.may(hashName(valueName, fmt.Sprint(i), "")) {
			t.Fatalf("key %d is denied", i)
		}
		for _, h := range []uint64{hashName(groupName, fmt.Sprint(i), ""), hashName(rowName, fmt.Sprint(i), "a")} {
			if f.may(h) {
				wrong++
			}
		}
	}
	if share := float64(wrong) / (2 * filterMinKeys); share > 0.03 {
		t.Errorf("%.1f %% wrong yeses", 100*share)
	}
}

func (s *store) filtered() *filter {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.filter
}

func awaitFilter(t testing.TB, s *store, keys int) {
	t.Helper()
	testenv.Eventually(t, soon, func() error {
		if f := s.filtered(); f == nil || f.built < keys {
			return errors.New("not built")
		}
		return nil
	})
}

// The filter is rebuilt at opening and when it is full, beside the running
// store, and knows what came in meanwhile.
func TestFilterIsRebuilt(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs, 0, logBounds{})
	s.opts.writeBehind = 1 << 20
	awaitFilter(t, s, 1)
	const n = filterMinKeys + 1000
	fill(t, s, 0, n) // two hashes a write: overflows the smallest
	if err := s.flush(); err != nil {
		t.Fatal(err)
	}
	awaitFilter(t, s, n)
	for round := range 2 {
		for i := range n {
			if v, err := s.get(fmt.Sprintf("0000|g%d:a%d", i%9, i)); v == nil || err != nil {
				t.Fatalf("round %d: key %d: %q, %v", round, i, v, err)
			}
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, fs, 0, unended)
		if round == 0 {
			awaitFilter(t, s, n)
		}
	}
	// A store that is closed while the filter is built does not wait for it.
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
}

// What is on disk is visited for the filter after a short log was read, not
// before: whoever waits for the store would wait for that too.
func TestFilterWaitsForAShortLog(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs, 0, logBounds{})
	const n = filterMinKeys
	fill(t, s, 0, n)
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, fs, 0, logBounds{end: n + 100})
	s.mu.RLock()
	begun := s.filter != nil || s.next != nil
	s.mu.RUnlock()
	if begun {
		t.Error("the filter is built before 100 records of the log are read")
	}
	s.needFilter()
	awaitFilter(t, s, n)
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	s.needFilter() // goka may say so once more
}
