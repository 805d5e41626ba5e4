package gokakit

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark/tidemark/internal/testenv"
)

// workload writes, acks, flushes and closes a store, with late copies in the
// log before it. It returns the log, and the first error.
func workload(s *store) (log []logged, err error) {
	for i := range 60 {
		key := fmt.Sprintf("0000|g%d:a%d", i%7, i%20)
		log = append(log, logged{key, cell{uint64(i/20) + 1, uint64(i) + 1, int64(i), int64(i)}.encode()})
		if i == 50 {
			log = append(log, log[3]) // a stale record, which leaves a mark
		}
	}
	if err := s.testLoad(log, 40); err != nil {
		return log, err
	}
	for at, r := range log[41:] {
		if _, err := s.replay(r.key, r.value, 41+int64(at)); err != nil {
			return log, err
		}
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	var pending []*write
	for i := range 400 {
		key := fmt.Sprintf("0000|g%d:a%d", rnd.IntN(7), rnd.IntN(200))
		w, err := s.testPut(key, cell{uint64(i) + 100, uint64(i) + 100, int64(i), int64(i)})
		if err != nil {
			return log, err
		}
		pending = append(pending, w)
		for len(pending) > 0 && rnd.IntN(3) > 0 {
			w, pending = pending[0], pending[1:]
			log = append(log, logged{w.key, w.value})
			if err := s.testAck(w, int64(len(log))-1); err != nil {
				return log, err
			}
		}
		if i%150 == 149 {
			if err := s.flush(); err != nil {
				return log, err
			}
		}
	}
	return log, s.close()
}

// after says what is wrong with the store that fs holds, and with what it
// becomes once the rest of the log is read; "" when nothing is.
func after(fs vfs.FS, log []logged) string {
	b := logBounds{end: int64(len(log)), topicID: [16]byte{1}}
	s, err := testStore(fs, 0, b)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = s.close() }()
	if d := checkDisk(s, log); d != "" {
		return d
	}
	if err := s.testLoad(log, int64(len(log))-1); err != nil {
		return err.Error()
	}
	if err := s.flush(); err != nil {
		return err.Error()
	}
	return checkDisk(s, log)
}

// crashes runs the workload and returns a copy of the disk as a crash before
// each change of it would have left it.
func crashes(t *testing.T, weak Weakness) (disks []*vfs.MemFS, log []logged) {
	mem := vfs.NewCrashableMem()
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(5, 5))
	on := false
	fs := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if on && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			disks = append(disks, mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rnd.IntN(2) * 50, RNG: rnd}))
		}
		return nil
	}))
	s := openStore(t, fs, weak, logBounds{end: 1 << 40, topicID: [16]byte{1}})
	mu.Lock()
	on = true
	mu.Unlock()
	log, err := workload(s)
	if err != nil {
		t.Fatal(err)
	}
	return disks, log
}

// torn crashes a store before each change of its disk and returns what the
// first wrong disk holds.
func torn(t *testing.T, weak Weakness) string {
	disks, log := crashes(t, weak)
	for i, fs := range disks {
		if d := after(fs, log); d != "" {
			return fmt.Sprintf("crash %d of %d: %s", i, len(disks), d)
		}
	}
	t.Logf("%d crashes", len(disks))
	return ""
}

// Whenever the process dies, the disk holds the state of a prefix of the log:
// values, derived rows, marks and offset together (C2).
func TestStoreSurvivesCrashAtEveryWrite(t *testing.T) {
	if d := torn(t, 0); d != "" {
		t.Fatal(d)
	}
	if torn(t, WithoutAtomicity) == "" {
		t.Error("a store that takes batches in two steps looks the same")
	}
	if torn(t, WithoutGate) == "" {
		t.Error("a store that does not wait for acks looks the same")
	}
}

// faulty lets changes of the disk fail: the nth, or all from the nth on.
type faulty struct {
	mu      sync.Mutex
	n       int // changes until the first failure; never below 0
	forever bool
	hit     int
	healed  bool
}

func (f *faulty) MaybeError(op errorfs.Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.healed || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
		return nil
	}
	if f.n > 0 {
		f.n--
		return nil
	}
	if f.hit > 0 && !f.forever {
		return nil
	}
	f.hit++
	return fmt.Errorf("no space left on device: %s", op.Path)
}

func (f *faulty) String() string { return "faulty" }

func (f *faulty) damage() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.healed = false
}

func (f *faulty) heal() (hits int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.healed = true
	return f.hit
}

// Whichever write to disk fails, once or from then on, the store goes on or
// fails by name, never hangs, and never leaves anything but a prefix of the
// log: what follows is read from there.
func TestStoreSurvivesFailureOfEveryWrite(t *testing.T) {
	for _, forever := range []bool{false, true} {
		t.Run(fmt.Sprintf("forever=%v", forever), func(t *testing.T) {
			n := 0
			for ; ; n += 1 + n/20 {
				f := &faulty{n: n, forever: forever}
				if d := survive(t, f); d != "" {
					t.Fatalf("failure of write %d: %s", n, d)
				}
				if f.heal() == 0 {
					break
				}
			}
			t.Logf("up to write %d", n)
		})
	}
}

func survive(t *testing.T, f *faulty) string {
	mem := vfs.NewMem()
	fs := errorfs.Wrap(mem, f)
	start := time.Now()
	told := make(chan error, 1)
	s, err := failingStore(fs, 0, logBounds{end: 1 << 40, topicID: [16]byte{1}}, func(err error) { told <- err })
	if err != nil {
		return unnamed(err)
	}
	log, err := workload(s)
	_ = s.close()
	if took := time.Since(start); took > 10*time.Second {
		return fmt.Sprintf("took %v", took)
	}
	if err != nil {
		if d := unnamed(err); d != "" {
			return d
		}
		testenv.Eventually(t, soon, func() error {
			if len(told) == 0 {
				return fmt.Errorf("nobody was told of: %w", err)
			}
			return nil
		})
	}
	f.heal()
	return after(fs, log)
}

func unnamed(err error) string {
	if !strings.Contains(err.Error(), "table/0") || !strings.Contains(err.Error(), "no space left on device") {
		return "the error does not say where and what: " + err.Error()
	}
	return ""
}
