package gokakit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// Partitions move within one attempt as members come and go, and nothing is
// lost, counted twice, or built anew (G01).
func TestRebalance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one := w.start(nil)
	w.ready(one)
	w.send(10)
	var others []*member
	for i := range 2 {
		others = append(others, w.start(func(c *ProcessorConfig) { c.Instance, c.HotStandby = fmt.Sprint("other", i), i == 1 }))
		w.send(10)
	}
	if d := w.counted(); d != "" {
		t.Fatal(d)
	}
	for _, m := range others {
		w.ready(m)
		m.stop()
		w.send(10)
	}
	if d := w.counted(); d != "" { // once the session of the stopped ones is over
		t.Fatal(d)
	}
	for _, m := range append(others, one) {
		if n := counterValue(m.metrics.rebuilds); n > 0 {
			t.Errorf("a member was built anew %v times", n)
		}
	}
}

// A processor without a table emits each input at least once, in order per
// partition, and commits behind what it emits, through rebalances.
func TestWithoutTable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.group = w.topo.Group(plainGroup).ID
	plain := func(c *ProcessorConfig) {
		c.Group, c.Schema, c.StateDir = plainGroup, nil, ""
		c.Handle = func(p *Partition, r Record) error {
			if _, err := p.Get("k"); !errors.Is(err, errNoTable) {
				return fmt.Errorf("get: %w", err)
			}
			if _, err := p.Derived("g", "i"); !errors.Is(err, errNoTable) {
				return fmt.Errorf("derived: %w", err)
			}
			if err := p.Put("k", []byte("v")); !errors.Is(err, errNoTable) {
				return fmt.Errorf("put: %w", err)
			}
			return p.Emit(w.out, topology.OnPartition(r.Partition%2, r.Key), fmt.Append(nil, r.Offset))
		}
	}
	one := w.start(plain)
	w.ready(one)
	w.send(10)
	two := w.start(func(c *ProcessorConfig) { plain(c); c.Instance = "two" })
	w.send(10)
	w.taken()
	w.ready(two)
	w.send(10)
	w.taken()
	last := map[string]int64{}
	for p := range 2 {
		for _, r := range w.log(w.out, p) {
			var at int64
			_, _ = fmt.Sscan(string(r.value), &at)
			source := r.key[5:9]
			if at > last[source]+1 {
				t.Errorf("source partition %s: %d after %d", source, at, last[source])
			}
			last[source] = max(last[source], at)
		}
	}
	for p := range 4 {
		if at := last[fmt.Sprintf("%04x", p)]; at != 29 {
			t.Errorf("partition %d was emitted up to %d", p, at)
		}
	}
}

// slow is a schema that can stop the reading of a log: it holds the nth record
// until the gate opens.
type slow struct {
	tally
	n    *atomic.Int64
	gate chan struct{}
}

func (s slow) Version(value []byte) (uint64, error) {
	if s.n.Add(-1) == 0 {
		<-s.gate
	}
	return s.tally.Version(value)
}

// A rebalance that ends a recovery halfway makes nobody an owner: half a table
// repairs nothing and counts for nothing.
func TestRebalanceDuringRecovery(t *testing.T) {
	t.Parallel()
	run := func(weak Weakness) string {
		w := newWorld(t)
		key := "0000|g0:a0"
		w.produce(w.table, 0, key, cell{2, 1, 2, -1}.encode())
		w.produce(w.table, 0, key, cell{1, 1, 1, -1}.encode()) // stale
		for v := range 60 {
			w.produce(w.table, 0, key, cell{uint64(v) + 3, uint64(v) + 3, int64(v) + 3, -1}.encode())
		}
		w.sent[key] = 62
		schema := slow{n: new(atomic.Int64), gate: make(chan struct{})}
		schema.n.Store(20)
		var early atomic.Int64
		one := w.start(func(c *ProcessorConfig) {
			c.weak, c.Schema, c.HotStandby = weak, schema, true
			c.NewOwner = func(p *Partition) Owner {
				return ownerRun(func(ctx context.Context) error {
					if p.Number() == 0 && p.AckedOffset() < 61 {
						early.Add(1)
					}
					<-ctx.Done()
					return nil
				})
			}
		})
		open := sync.OnceFunc(func() { close(schema.gate) })
		t.Cleanup(open)
		testenv.Eventually(t, soon, func() error {
			if schema.n.Load() > 0 {
				return errNotYet
			}
			return nil
		})
		if err := one.Ready(); err == nil || !strings.Contains(err.Error(), "reading the log of ") || !strings.Contains(err.Error(), "partitions, 16 of 62 records, 25 %, about ") {
			t.Errorf("while it recovers, ready says: %v", err)
		}
		session := one.live().present()
		two := w.start(func(c *ProcessorConfig) { c.Instance, c.HotStandby = "two", true })
		testenv.Eventually(t, soon, func() error { // the second member ends the first one's generation
			if session.Err() == nil {
				return errNotYet
			}
			return nil
		})
		open()
		wrong := func() error {
			n := early.Load() + int64(counterValue(one.metrics.rebuilds)+counterValue(one.metrics.repairs))
			if n > 0 {
				return fmt.Errorf("%d early owners, rebuilds and repairs", n)
			}
			return nil
		}
		if weak != 0 {
			if err := stays(5*time.Second, wrong); err != nil {
				return err.Error()
			}
			return ""
		}
		w.ready(one)
		w.ready(two)
		w.send(3)
		if d := w.counted(); d != "" {
			return d
		}
		if err := wrong(); err != nil {
			return err.Error()
		}
		return ""
	}
	if d := run(0); d != "" {
		t.Error(d)
	}
	if d := run(WithoutOwnership); d == "" {
		t.Error("without the rule it looks the same")
	} else {
		t.Log(d)
	}
}

func (a *attempt) present() context.Context {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.session
}

// An owner that comes to a partition after it was lost does not start, and
// what it started is over when losing it is.
func TestOwningALostPartition(t *testing.T) {
	b := newBench(t, 0, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	a := &attempt{Processor: &Processor{metrics: mustMetrics(), log: quiet()}, ctx: ctx, cancel: cancel, producer: b.producer}
	var running atomic.Int64
	p := &Partition{store: b.store, lane: b.lane, owner: ownerRun(func(ctx context.Context) error {
		running.Add(1)
		defer running.Add(-1)
		<-ctx.Done()
		return ctx.Err()
	})}
	if err := p.own(a); err != nil {
		t.Fatal(err)
	}
	p.lose()
	if n := running.Load(); n != 0 {
		t.Error("the owner runs on")
	}
	if err := p.own(a); err != nil || running.Load() != 0 || a.ctx.Err() != nil {
		t.Errorf("owning a lost partition: %v, attempt %v", err, context.Cause(a.ctx))
	}
}

type ownerRun func(context.Context) error

func (ownerRun) Settled(string, []byte, int64, []Derived) {}

func (f ownerRun) Run(ctx context.Context) error { return f(ctx) }

// An owner that fails, or panics, fails the processor by name.
func TestOwnerFails(t *testing.T) {
	t.Parallel()
	for why, run := range map[string]func(context.Context) error{
		"the flusher is broken": func(context.Context) error { return errors.New("the flusher is broken") },
		"panic: flush":          func(context.Context) error { panic("flush") },
	} {
		w := newWorld(t)
		m := w.start(func(c *ProcessorConfig) { c.NewOwner = func(*Partition) Owner { return ownerRun(run) } })
		eventuallyNamed(t, m.Ready, "partition ", why)
	}
}

type idle struct{}

func (idle) Settled(string, []byte, int64, []Derived) {}

func (idle) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func idleOwner(*Partition) Owner { return idle{} }

// However early a member is stopped, in whatever phase, it stops cleanly, and
// the next one counts right (G22). The test binary's leak check sees what it
// leaves behind.
func TestStartStopChurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	w.send(20)
	for i := range 25 {
		m := w.start(func(c *ProcessorConfig) { c.StateDir, c.NewOwner = dir, idleOwner })
		switch {
		case i%5 == 4:
			w.ready(m)
		default:
			time.Sleep(time.Duration(i) * 4 * time.Millisecond) // the moment of the stop
		}
		if err := stopped(m.stop); err != nil {
			t.Fatal(err)
		}
	}
	w.start(func(c *ProcessorConfig) { c.StateDir = dir })
	if d := w.counted(); d != "" {
		t.Error(d)
	}
}
