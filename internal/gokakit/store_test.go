package gokakit

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// fill acks n writes to different keys, from offset on.
func fill(t testing.TB, s *store, offset int64, n int) {
	t.Helper()
	for i := range n {
		at := offset + int64(i)
		w, err := s.testPut(fmt.Sprintf("0000|g%d:a%d", at%9, at), cell{uint64(at) + 1, uint64(at) + 1, at, at})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.testAck(w, at); err != nil {
			t.Fatal(err)
		}
	}
}

// The changelog of an owner has no gaps: a gap is another writer (5 of the
// package comment).
func TestFence(t *testing.T) {
	run := func(weak Weakness) error {
		var told error
		s, err := failingStore(vfs.NewMem(), weak, logBounds{}, func(err error) { told = err })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.close() }()
		fill(t, s, 0, 3)
		w, err := s.testPut("0000|g1:a1", cell{version: 9, seq: 9})
		if err != nil {
			t.Fatal(err)
		}
		err = s.testAck(w, 4)
		if !errors.Is(told, err) {
			t.Errorf("the processor was told %v", told)
		}
		if err == nil {
			return nil
		}
		if _, e := s.testPut("0000|g1:a1", cell{}); e == nil {
			t.Error("a fenced store takes writes")
		}
		if _, e := s.get("0000|g1:a1"); e == nil {
			t.Error("a fenced store answers")
		}
		if s.offset() != 2 {
			t.Errorf("a fenced store is at %d", s.offset())
		}
		return err
	}
	if err := run(0); err == nil || !strings.Contains(err.Error(), "table/0") || !strings.Contains(err.Error(), "another owner") {
		t.Errorf("a foreign record at offset 3: %v", err)
	}
	if run(WithoutFence) != nil {
		t.Error("without the fence it fails all the same")
	}
}

// A repair does not turn derived rows back: the winner of a key says what its
// bucket was at its own time.
func TestRepairKeepsNewerRows(t *testing.T) {
	s := openStore(t, vfs.NewMem(), 0, unended)
	log := []logged{
		{"0000|g:a1", cell{2, 1, 10, 0}.encode()},
		{"0000|g:a2", cell{1, 2, 20, 1}.encode()},
		{"0000|g:a1", cell{1, 1, 10, 0}.encode()}, // stale
		{"0000|h:a1", cell{1, 1, 5, 2}.encode()},
		{"0000|h:a1", nil}, // nobody here writes tombstones
	}
	for at, r := range log {
		changed, err := s.replay(r.key, r.value, int64(at))
		if err != nil || changed != (at != 2 && at != 4) {
			t.Fatalf("record %d: changed %v, %v", at, changed, err)
		}
	}
	keys := s.staleKeys()
	if fmt.Sprint(keys) != "[0000|g:a1 0000|h:a1]" {
		t.Fatalf("stale keys %v", keys)
	}
	for i, key := range keys {
		v, err := s.get(key)
		if err != nil {
			t.Fatal(err)
		}
		w := new(write)
		if err := s.put(w, key, v, true); err != nil {
			t.Fatal(err)
		}
		if row, _ := s.derived("g", "a"); string(row) != string(log[1].value) {
			t.Fatalf("the row is %q after the repair of %s", row, key)
		}
		if err := s.testAck(w, int64(5+i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.staleKeys()) > 0 {
		t.Errorf("still stale: %v", s.staleKeys())
	}
}

// A key of another partition is refused by name when the log is read (G13).
func TestForeignKeyIsRefused(t *testing.T) {
	other := ""
	for i := 0; other == ""; i++ {
		key := fmt.Sprintf("murmur:%d", i)
		if p, _ := topology.PartitionOf(key, 4); p != 0 {
			other = key
		}
	}
	for _, key := range []string{"0001|g:a1", "ffff|g:a1", other} {
		run := func(weak Weakness) error {
			s := openStore(t, vfs.NewMem(), weak, unended)
			_, err := s.replay(key, cell{version: 1, seq: 1}.encode(), 0)
			return err
		}
		if err := run(0); err == nil || !strings.Contains(err.Error(), "table/0") || !strings.Contains(err.Error(), "offset 0") {
			t.Errorf("%s: %v", key, err)
		}
		if err := run(WithoutPlacement); err != nil {
			t.Errorf("%s, without the rule: %v", key, err)
		}
	}
}

// Whatever Schema refuses stops the store by name, and changes nothing.
func TestUnreadableRecord(t *testing.T) {
	s := openStore(t, vfs.NewMem(), 0, unended)
	if _, err := s.replay("0000|g:a1", []byte("?"), 0); err == nil || !strings.Contains(err.Error(), "changelog record at offset 0") {
		t.Errorf("replay: %v", err)
	}
	if err := s.put(new(write), "0000|g:a1", []byte("?"), false); err == nil {
		t.Error("put takes what Derive refuses")
	}
	if v, err := s.get("0000|g:a1"); v != nil || err != nil || s.offset() != -1 {
		t.Errorf("afterwards: %q, %v, offset %d", v, err, s.offset())
	}
}

// A closing store ends its scans and does not wait for their visitors' whole
// way; what comes later is an error by name, and a second close does nothing.
func TestCloseEndsScans(t *testing.T) {
	s := openStore(t, vfs.NewMem(), 0, logBounds{})
	fill(t, s, 0, 1000)
	seen, closed := 0, make(chan error, 1)
	err := s.scan(func(string, []byte) error {
		if seen++; seen == 10 {
			go func() { closed <- s.close() }()
			testenv.Eventually(t, soon, func() error {
				if !s.closing.Load() {
					return errors.New("not closing")
				}
				return nil
			})
		}
		return nil
	})
	if !errors.Is(err, errClosed) || seen > 11 {
		t.Errorf("the scan went on to %d: %v", seen, err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for name, f := range map[string]func() error{
		"get":     func() error { _, err := s.get("x"); return err },
		"derived": func() error { _, err := s.derived("g", "i"); return err },
		"put":     func() error { _, err := s.testPut("0000|g:a", cell{}); return err },
		"ack":     func() error { return s.testAck(new(write), 1000) },
		"replay":  func() error { _, err := s.replay("0000|g:a", cell{}.encode(), 1000); return err },
		"scan":    func() error { return s.scan(nil) },
		"group":   func() error { _, err := s.scanGroup("g", nil); return err },
		"flush":   s.flush,
	} {
		if err := f(); !errors.Is(err, errClosed) || !strings.Contains(err.Error(), "table/0") {
			t.Errorf("%s of a closed store: %v", name, err)
		}
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
}

// scan sees acked values only, in order, and no derived rows.
func TestScan(t *testing.T) {
	s := openStore(t, vfs.NewMem(), 0, logBounds{})
	fill(t, s, 0, 100)
	if _, err := s.testPut("0000|g:a9", cell{version: 1, seq: 1}); err != nil {
		t.Fatal(err)
	}
	last, n := "", 0
	if err := s.scan(func(key string, _ []byte) error {
		if key <= last || !strings.HasPrefix(key, "0000|g") || key == "0000|g:a9" {
			t.Errorf("%s after %s", key, last)
		}
		last = key
		n++
		return nil
	}); err != nil || n != 100 {
		t.Errorf("%d values, %v", n, err)
	}
	stop := errors.New("enough")
	if err := s.scan(func(string, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("scan does not stop: %v", err)
	}
	if _, err := s.scanGroup("g1", func(string, []byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("scanGroup does not stop: %v", err)
	}
}

// Readers, a writer and a closer at once: nothing but errClosed, no race.
func TestStoreUnderConcurrency(t *testing.T) {
	s := openStore(t, vfs.NewMem(), 0, logBounds{})
	var readers sync.WaitGroup
	for r := range 4 {
		readers.Go(func() {
			for i := 0; ; i++ {
				_, err := s.get(fmt.Sprintf("0000|g%d:a%d", i%9, i%3000))
				if err == nil && i%50 == r {
					_, err = s.scanGroup(fmt.Sprintf("g%d", i%9), func(string, []byte) error { return nil })
				}
				if err == nil && i%500 == r {
					err = s.scan(func(string, []byte) error { return nil })
				}
				if errors.Is(err, errClosed) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	fill(t, s, 0, 3000)
	if err := s.close(); err != nil {
		t.Error(err)
	}
	readers.Wait()
}
