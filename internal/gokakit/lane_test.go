package gokakit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

// fakeKafka holds what was produced until the test resolves it.
type fakeKafka struct {
	mu      sync.Mutex
	records []*kgo.Record
	promise []func(*kgo.Record, error)
	next    int64 // offset of the next acked table record
}

func (k *fakeKafka) produce(_ context.Context, r *kgo.Record, f func(*kgo.Record, error)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.records, k.promise = append(k.records, r), append(k.promise, f)
}

func (k *fakeKafka) held() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.records)
}

// resolve resolves the held record at i.
func (k *fakeKafka) resolve(i int, err error) {
	k.mu.Lock()
	r, f := k.records[i], k.promise[i]
	k.records = append(k.records[:i:i], k.records[i+1:]...)
	k.promise = append(k.promise[:i:i], k.promise[i+1:]...)
	if err == nil && r.Topic == "table" {
		r.Offset = k.next
		k.next++
	}
	k.mu.Unlock()
	f(r, err)
}

func (k *fakeKafka) resolveAll(err error) {
	for k.held() > 0 {
		k.resolve(0, err)
	}
}

// bench is a lane without Kafka: table "table" and output "out", partition 0
// of 4.
type bench struct {
	kafka    *fakeKafka
	producer *producer
	store    *store
	lane     *lane
	poisoned chan error
}

func newBench(t testing.TB, weak Weakness, owner Owner) *bench {
	b := &bench{kafka: &fakeKafka{}, poisoned: make(chan error, 1)}
	b.producer = &producer{produce: b.kafka.produce, partitions: map[string]int{"table": 4, "out": 4},
		metrics: mustMetrics(), weak: weak, onPoison: func(err error) { b.poisoned <- err }}
	b.producer.budget.init(1<<16, 64<<20)
	b.store = openStore(t, vfs.NewMem(), 0, logBounds{})
	b.lane = newLane(b.producer, 0, b.store, "table", owner)
	t.Cleanup(func() {
		b.producer.stop(errors.New("the test is over"))
		b.lane.close()
	})
	return b
}

func (b *bench) put(t testing.TB, i int) {
	t.Helper()
	if err := b.lane.put(fmt.Sprintf("0000|g:a%d", i), cell{1, uint64(i) + 1, 0, 0}.encode(), false); err != nil {
		t.Fatal(err)
	}
}

// settled waits until a barrier resolves and returns its answer.
func (b *bench) settled() error {
	done := make(chan error, 1)
	b.lane.barrier(func(err error) { done <- err })
	return <-done
}

// TestLaneResolvesInOrder: in whatever order Kafka acks, barriers resolve in
// the order in which they entered, after everything before them; after one
// failure nothing succeeds any more (3 and 4 of the package comment).
func TestLaneResolvesInOrder(t *testing.T) { rapid.Check(t, laneOrder(t, 0)) }

func TestLaneOrderCanFail(t *testing.T) {
	if !falsified(t, laneOrder(t, WithoutOrder)) {
		t.Error("a lane that goes on after a failure looks the same")
	}
}

func laneOrder(t *testing.T, weak Weakness) func(*rapid.T) {
	return func(rt *rapid.T) {
		b := newBench(t, weak, nil)
		const n = 30
		failAt := rapid.IntRange(0, n*3/2).Draw(rt, "failing emission") // beyond n: none
		var mu sync.Mutex
		var answered []int
		var answers []error
		for i := range n {
			key := fmt.Sprintf("0000|x%d", i)
			if i%3 == 0 {
				b.put(t, i)
			} else if err := b.lane.emit("out", key, []byte("v")); err != nil {
				rt.Fatal(err)
			}
			b.lane.barrier(func(err error) {
				mu.Lock()
				defer mu.Unlock()
				answered, answers = append(answered, i), append(answers, err)
			})
		}
		id := func(r *kgo.Record) int {
			var n int
			_, _ = fmt.Sscanf(strings.TrimLeft(string(r.Key[5:]), "xg:a"), "%d", &n)
			return n
		}
		for b.kafka.held() > 0 {
			at := rapid.IntRange(0, b.kafka.held()-1).Draw(rt, "resolved")
			// Kafka keeps the order of one partition: table acks stay ordered.
			if r := b.kafka.records[at]; r.Topic == "table" {
				for i, other := range b.kafka.records {
					if other.Topic == "table" {
						at = i
						break
					}
				}
			}
			var err error
			if id(b.kafka.records[at]) == failAt {
				err = errors.New("refused")
			}
			b.kafka.resolve(at, err)
		}
		final := b.settled()
		b.lane.close()
		if len(answered) != n {
			rt.Fatalf("%d of %d barriers answered", len(answered), n)
		}
		failed := false
		for i, at := range answered {
			if at != i {
				rt.Fatalf("barrier %d answered in place %d", at, i)
			}
			switch failed = failed || answers[i] != nil; {
			case failed && answers[i] == nil:
				rt.Fatalf("barrier %d succeeded behind a failed one", i)
			case i >= failAt && answers[i] == nil:
				rt.Fatalf("barrier %d succeeded, emission %d had failed", i, failAt)
			}
		}
		if (final != nil) != (failAt < n) {
			rt.Fatalf("at the end: %v", final)
		}
	}
}

// A failure fails what waits for acks, whether or not those come later: a
// poisoned producer and franz-go's pending callbacks do not meet.
func TestPoisonAndPendingCallbacks(t *testing.T) {
	b := newBench(t, 0, nil)
	for i := range 10 {
		b.put(t, i)
	}
	why := errors.New("gone")
	b.producer.fail(why)
	if err := b.settled(); !errors.Is(err, why) {
		t.Errorf("barrier: %v", err)
	}
	b.lane.close() // does not wait for the ten
	if err := <-b.poisoned; !errors.Is(err, why) {
		t.Errorf("the attempt was told %v", err)
	}
	b.kafka.resolveAll(nil) // late acks
	if at := b.store.offset(); at != -1 {
		t.Errorf("the store took acks up to %d after the failure", at)
	}
	if n := b.producer.budget.records.Load(); n != 0 {
		t.Errorf("%d records still hold room", n)
	}
	if err := b.lane.emit("out", "k", nil); !errors.Is(err, why) {
		t.Errorf("emit: %v", err)
	}
}

// A store that fails at an ack poisons everything, by name.
func TestStoreFailureFailsLane(t *testing.T) {
	b := newBench(t, 0, nil)
	b.put(t, 0)
	b.store.fail(errors.New("table/0: no space left on device"))
	b.kafka.resolveAll(nil)
	if err := b.settled(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("barrier: %v", err)
	}
	if err := <-b.poisoned; !strings.Contains(err.Error(), "no space left") {
		t.Errorf("the attempt was told %v", err)
	}
}

// What cannot be sent is refused before anything changes.
func TestLaneRefuses(t *testing.T) {
	b := newBench(t, 0, nil)
	big := make([]byte, maxRecordBytes)
	for name, f := range map[string]func() error{
		"no such output":       func() error { return b.lane.emit("elsewhere", "k", nil) },
		"names partition 4":    func() error { return b.lane.emit("out", "0004|k", nil) },
		"over the limit":       func() error { return b.lane.emit("out", "k", big) },
		"the key belongs":      func() error { return b.lane.put("0001|g:a", cell{}.encode(), false) },
		"over the limit of":    func() error { return b.lane.put("0000|g:a", big, false) },
		"know no tombstones":   func() error { return b.lane.put("0000|g:a", nil, false) },
		"processor has no tab": func() error { return (&lane{producer: b.producer}).put("k", []byte{1}, false) },
	} {
		if err := f(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if b.kafka.held() != 0 || b.producer.err() != nil || b.producer.budget.records.Load() != 0 {
		t.Errorf("after refusals: %d records, %v", b.kafka.held(), b.producer.err())
	}
	for name, weak := range map[string]Weakness{"0001|g:a": WithoutPlacement, "0000|g:a": WithoutTombstoneRule} {
		b := newBench(t, weak, nil)
		value := cell{}.encode()
		if weak == WithoutTombstoneRule {
			value = nil
		}
		if err := b.lane.put(name, value, false); err != nil {
			t.Errorf("without the rule, %s: %v", name, err)
		}
	}
	b.lane.close()
	if err := b.lane.emit("out", "k", nil); !errors.Is(err, errClosed) {
		t.Errorf("emit to a closed lane: %v", err)
	}
	if err := b.settled(); !errors.Is(err, errClosed) {
		t.Errorf("barrier of a closed lane: %v", err)
	}
}

type ownerFunc func(key string, offset int64, rows []Derived)

func (f ownerFunc) Settled(key string, _ []byte, offset int64, rows []Derived) { f(key, offset, rows) }
func (ownerFunc) Run(context.Context) error                                    { return nil }

// The owner is told of acked writes only, in order, after the store has them.
func TestOwnerIsTold(t *testing.T) {
	var b *bench
	var told []string
	b = newBench(t, 0, ownerFunc(func(key string, offset int64, rows []Derived) {
		if b.store.offset() < offset {
			t.Errorf("told of %d, the store is at %d", offset, b.store.offset())
		}
		told = append(told, fmt.Sprint(key, offset, rows[0].Group))
	}))
	for i := range 3 {
		b.put(t, i)
	}
	b.kafka.resolve(0, nil)
	b.kafka.resolve(0, nil)
	b.producer.fail(errors.New("gone"))
	b.kafka.resolveAll(nil)
	_ = b.settled()
	for i, s := range told {
		if s != fmt.Sprintf("0000|g:a%d%dg", i, i) {
			t.Errorf("told %v", told)
		}
	}
	if len(told) > 2 {
		t.Errorf("told of a write that failed: %v", told)
	}
}

// A panic of the owner's code is a failure, not the end of the process.
func TestOwnerPanics(t *testing.T) {
	b := newBench(t, 0, ownerFunc(func(string, int64, []Derived) { panic("oh") }))
	b.put(t, 0)
	b.kafka.resolveAll(nil)
	if err := b.settled(); err == nil || !strings.Contains(err.Error(), "panic: oh") {
		t.Errorf("barrier: %v", err)
	}
}

func TestPoisonEndsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0, nil)
		b.producer.budget.init(1, 1<<20)
		if err := b.lane.emit("out", "k", nil); err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 2)
		go func() { got <- b.lane.emit("out", "k", nil) }()
		go func() { b.lane.barrier(func(err error) { got <- err }) }()
		synctest.Wait()
		why := errors.New("gone")
		b.producer.fail(why)
		for range 2 {
			if err := <-got; !errors.Is(err, why) {
				t.Errorf("a waiting emitter got %v", err)
			}
		}
		b.lane.close()
	})
}

// Closing a lane waits for what is inside.
func TestLaneCloseDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 0, nil)
		b.put(t, 0)
		var answer error = errors.New("none")
		b.lane.barrier(func(err error) { answer = err })
		closed := make(chan struct{})
		go func() {
			b.lane.close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("closed before the ack")
		default:
		}
		b.kafka.resolveAll(nil)
		<-closed
		if answer != nil || b.store.offset() != 0 {
			t.Errorf("answer %v, store at %d", answer, b.store.offset())
		}
	})
}

// performing is an owner that notes effects.
type performing struct {
	mu   sync.Mutex
	made []any
	err  error
	hold chan struct{} // closed: effects end at once
}

func (*performing) Settled(string, []byte, int64, []Derived) {}
func (*performing) Run(ctx context.Context) error            { <-ctx.Done(); return nil }
func (o *performing) Perform(effects []any) error {
	<-o.hold
	o.mu.Lock()
	defer o.mu.Unlock()
	o.made = append(o.made, effects...)
	return o.err
}

// An effect is made after what was put before it is acked, and before anything
// behind it is committed (I17).
func TestEffectsStandBetweenAckAndCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &performing{hold: make(chan struct{})}
		b := newBench(t, 0, o)
		committed := 0
		for i := range 3 {
			if err := b.lane.put(fmt.Sprintf("0000|g:a%d", i), cell{1, uint64(i) + 1, 0, 0}.encode(), false); err != nil {
				t.Fatal(err)
			}
			if err := b.lane.effect(i); err != nil {
				t.Fatal(err)
			}
			b.lane.barrier(func(err error) {
				if err == nil {
					committed++
				}
			})
		}
		synctest.Wait()
		if len(o.made) != 0 || committed != 0 {
			t.Fatalf("%d effects, %d commits before any ack", len(o.made), committed)
		}
		b.kafka.resolveAll(nil)
		synctest.Wait()
		if committed != 0 {
			t.Fatalf("%d commits before their effects", committed)
		}
		close(o.hold)
		synctest.Wait()
		if len(o.made) != 3 || o.made[0] != 0 || o.made[2] != 2 || committed != 3 {
			t.Fatalf("effects %v, %d commits", o.made, committed)
		}
	})
}

// What an effect's failure stands before is not committed, and comes again.
func TestAFailedEffectCommitsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &performing{hold: make(chan struct{}), err: errors.New("no")}
		close(o.hold)
		b := newBench(t, 0, o)
		if err := b.lane.effect(1); err != nil {
			t.Fatal(err)
		}
		var got error
		b.lane.barrier(func(err error) { got = err })
		synctest.Wait()
		if got == nil {
			t.Error("committed behind a failed effect")
		}
		if err := <-b.poisoned; !errors.Is(err, o.err) {
			t.Errorf("poisoned by %v", err)
		}
	})
}
