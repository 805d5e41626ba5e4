package gokakit

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// TestMechanisms runs each mechanism on a broker as it is, when all must be
// well, and switched off, when something must be wrong. A scenario returns
// what is wrong.
func TestMechanisms(t *testing.T) {
	for _, m := range []struct {
		name     string
		scenario func(t *testing.T, weak Weakness) string
		weak     Weakness
	}{
		{"commit barrier I17", commitsArePrefix, WithoutBarrier},
		{"one failure fails all behind it", failureStopsAll, WithoutOrder},
		{"fence by contiguity", foreignWriter, WithoutFence},
		{"replay never lowers a version I3", lateRecord, WithoutVersion},
		{"repair at the end of recovery", staleWinner, WithoutRepair},
		{"standbys write nothing", standby, WithoutOwnership},
		{"keys stay on their partition G13", foreignKey, WithoutPlacement},
		{"no tombstones", tombstone, WithoutTombstoneRule},
		{"rebuild after an error G06", rebuildAfter(errPoison), WithoutRebuild},
		{"rebuild after a panic G03", rebuildAfter(nil), WithoutRebuild},
		{"static membership", restart, WithoutStaticMember},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			t.Run("works", func(t *testing.T) {
				if d := m.scenario(t, 0); d != "" {
					t.Error(d)
				}
			})
			t.Run("can fail", func(t *testing.T) {
				d := m.scenario(t, m.weak)
				if d == "" {
					t.Error("switched off, it looks the same")
				}
				t.Log(d)
			})
		})
	}
}

func with(weak Weakness) func(*ProcessorConfig) {
	return func(c *ProcessorConfig) { c.weak = weak }
}

// commitsArePrefix: while the table's log does not answer, no input offset is
// committed; afterwards all are (I17). What is committed is read from the
// broker's own requests, against the records in the table's log.
func commitsArePrefix(t *testing.T, weak Weakness) string {
	w := newWorld(t)
	var ahead atomic.Int64
	c := w.cluster()
	c.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		for _, topic := range req.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range topic.Partitions {
				// Every input is a new version: one table record each.
				if n := p.Offset - c.PartitionInfo(w.table, p.Partition).HighWatermark; n > 0 {
					ahead.Store(n)
				}
			}
		}
		return nil, nil, false
	})
	held, release := w.hold(w.table)
	w.send(5)
	m := w.start(with(weak))
	w.ready(m)
	testenv.Eventually(t, soon, func() error {
		if held.Load() == 0 {
			return errors.New("nothing was produced")
		}
		return nil
	})
	overtaken := func() error {
		if n := ahead.Load(); n > 0 {
			return fmt.Errorf("%d offsets were committed before their effect was in the log", n)
		}
		return nil
	}
	if err := stays(700*time.Millisecond, overtaken); err != nil {
		return err.Error()
	}
	release()
	d := w.counted()
	if err := overtaken(); err != nil {
		return err.Error()
	}
	return d
}

// failureStopsAll: an output refuses one record; nothing behind it counts as
// done, the processor is built anew, and the record is brought out in the end
// (G05).
func failureStopsAll(t *testing.T, weak Weakness) string {
	w := newWorld(t)
	fault := w.cluster().Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: w.out, Err: kerr.PolicyViolation, Count: 1})
	m := w.start(func(c *ProcessorConfig) {
		c.weak = weak
		c.Handle = func(p *Partition, r Record) error {
			if p.Number() == 0 { // an output per input, before the count
				if err := p.Emit(w.out, fmt.Sprintf("like:%d", r.Offset), r.Value); err != nil {
					return err
				}
			}
			return count(p, r)
		}
	})
	w.ready(m)
	w.send(6)
	if err := fault.Wait(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if d := w.counted(); d != "" {
		return d
	}
	out := map[string]bool{}
	for p := range 2 {
		for _, r := range w.log(w.out, p) {
			out[r.key] = true
			if want, _ := topology.PartitionOf(r.key, 2); want != p {
				return fmt.Sprintf("output %s is on partition %d, Java puts it on %d", r.key, p, want)
			}
		}
	}
	for i := range 6 {
		if !out[fmt.Sprintf("like:%d", i)] {
			return fmt.Sprintf("input %d is committed, its output was never written", i)
		}
	}
	return ""
}

// foreignWriter: a paused owner's record lands in the log of a running one.
// The owner notices, is built anew, and writes the winner again behind it.
func foreignWriter(t *testing.T, weak Weakness) string {
	w := newWorld(t)
	m := w.start(with(weak))
	w.ready(m)
	w.send(4)
	if d := w.counted(); d != "" {
		return d
	}
	key := "0001|g0:a0"
	w.send(4)
	if d := w.counted(); d != "" {
		return d
	}
	w.produce(w.table, 1, key, cell{1, 1, 1, 0}.encode()) // version 1 again; 2 is known
	w.sent["0001|g1:a1"]++                                // anything that makes the owner write
	w.produce(w.input, 1, "0001|g1:a1", []byte("3"))
	w.perPartition[1]++
	if d := w.counted(); d != "" {
		return d
	}
	if n := counterValue(m.metrics.fenced); n < 1 {
		return "the foreign record was not noticed"
	}
	return ""
}

// lateRecord: the log ends with an older version of a key; a change of a
// version in between is a duplicate and counts nothing.
func lateRecord(t *testing.T, weak Weakness) string {
	w := newWorld(t)
	key := "0002|g0:a0"
	w.produce(w.table, 2, key, cell{5, 1, 5, -1}.encode())
	w.produce(w.table, 2, key, cell{2, 1, 2, -1}.encode())
	w.sent[key] = 5
	m := w.start(with(weak | WithoutRepair)) // so that a repair does not hide it
	w.ready(m)
	w.produce(w.input, 2, key, []byte("4"))
	w.perPartition[2]++
	if d := w.counted(); !strings.HasSuffix(d, "are stale") {
		return d
	}
	for _, r := range w.log(w.table, 2)[2:] {
		return fmt.Sprintf("version 4 was counted again: %s", r.value)
	}
	return ""
}

// staleWinner: the newest record of a key is an older one; the owner writes
// the winner again without being asked.
func staleWinner(t *testing.T, weak Weakness) string {
	w := newWorld(t)
	key, other := "0003|g0:a0", "0003|g0:a3"
	w.produce(w.table, 3, key, cell{2, 1, 2, 0}.encode())
	w.produce(w.table, 3, other, cell{1, 2, 3, 1}.encode()) // the row's newest count
	w.produce(w.table, 3, key, cell{1, 1, 1, 0}.encode())
	w.sent[key], w.sent[other] = 2, 1
	m := w.start(with(weak))
	w.ready(m)
	// The count goes on from the row's newest value, not the winner's.
	w.produce(w.input, 3, "0003|g0:b0", []byte("1"))
	w.produce(w.input, 3, "0003|g0:b0", []byte("1"))
	w.produce(w.input, 3, "0003|g0:a3", []byte("4"))
	w.sent["0003|g0:b0"], w.sent[other] = 1, 4
	w.perPartition[3] = 3
	d := w.counted()
	if n := counterValue(m.metrics.repairs); d == "" && n != 1 {
		return fmt.Sprintf("%v keys were repaired, not 1", n)
	}
	return d
}

// standby: of two members with hot standbys the one that does not repair owns
// some partitions; the other reads them, and must leave them alone.
func standby(t *testing.T, weak Weakness) string {
	w := newWorld(t)
	for p := range 4 {
		key := fmt.Sprintf("%04x|g0:a0", p)
		w.produce(w.table, p, key, cell{2, 1, 2, -1}.encode())
		w.produce(w.table, p, key, cell{1, 1, 1, -1}.encode())
	}
	lazy := w.start(func(c *ProcessorConfig) { c.weak, c.Instance, c.HotStandby = WithoutRepair, "lazy", true })
	w.ready(lazy)
	keen := w.start(func(c *ProcessorConfig) { c.weak, c.Instance, c.HotStandby = weak, "keen", true })
	owned := func(m *member) map[int]bool {
		a := m.live()
		if a == nil {
			return nil
		}
		a.mu.RLock()
		defer a.mu.RUnlock()
		n := map[int]bool{}
		for p := range a.assigned {
			n[p] = true
		}
		return n
	}
	testenv.Eventually(t, soon, func() error {
		if len(owned(keen)) != 2 || len(owned(lazy)) != 2 {
			return errors.New("partitions are not shared yet")
		}
		if err := lazy.Ready(); err != nil {
			return err
		}
		return keen.Ready()
	})
	var wrong string
	testenv.Eventually(t, soon, func() error { // the owned ones are repaired
		for p := range owned(keen) {
			if n := w.end(w.table, p); n != 3 {
				return fmt.Errorf("partition %d has %d records", p, n)
			}
		}
		return nil
	})
	for p := range owned(lazy) {
		if n := w.end(w.table, p); n != 2 {
			wrong = fmt.Sprintf("partition %d has %d records, its owner wrote none", p, n)
		}
		if s := keen.stores.get(p); s == nil || s.offset() < 1 {
			t.Fatalf("partition %d is not read by the standby", p)
		}
	}
	if wrong == "" && counterValue(keen.metrics.rebuilds) > 0 {
		wrong = "the standby was built anew"
	}
	return wrong
}

// foreignKey: a handler that puts a key of another partition is refused by
// name; nothing is written anywhere.
func foreignKey(t *testing.T, weak Weakness) string {
	w := newWorld(t)
	m := w.start(func(c *ProcessorConfig) {
		c.weak = weak
		c.Handle = func(p *Partition, _ Record) error { return p.Put("0001|g0:a0", cell{version: 1, seq: 1}.encode()) }
	})
	w.produce(w.input, 0, "0000|g0:a0", []byte("1"))
	return refused(w, m, "the key belongs to partition 1")
}

func tombstone(t *testing.T, weak Weakness) string {
	w := newWorld(t)
	m := w.start(func(c *ProcessorConfig) {
		c.weak = weak
		c.Handle = func(p *Partition, r Record) error { return p.Put(r.Key, nil) }
	})
	w.produce(w.input, 0, "0000|g0:a0", []byte("1"))
	return refused(w, m, "tables know no tombstones")
}

// refused waits until a member says why it is not ready, or has written.
func refused(w *world, m *member, why string) (wrong string) {
	testenv.Eventually(w.t, soon, func() error {
		for p := range 4 {
			if w.end(w.table, p) > 0 {
				wrong = "it was written"
				return nil
			}
		}
		if err := m.Ready(); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "offset 0") {
			return fmt.Errorf("ready says: %w", err)
		}
		return nil
	})
	if wrong == "" && w.committed(0) != 0 {
		wrong = "the refused record is committed"
	}
	return wrong
}

var errPoison = errors.New("this record is poison")

// rebuildAfter: a record makes the handler fail (or panic, without an error)
// until it is mended. Ready says why, nothing is committed past the record,
// and once it is mended everything is counted.
func rebuildAfter(poison error) func(*testing.T, Weakness) string {
	return func(t *testing.T, weak Weakness) string {
		w := newWorld(t)
		var mended atomic.Bool
		m := w.start(func(c *ProcessorConfig) {
			c.weak = weak
			c.Handle = func(p *Partition, r Record) error {
				if r.Partition == 2 && r.Offset == 3 && !mended.Load() {
					if poison == nil {
						panic("this record is poison")
					}
					return poison
				}
				return count(p, r)
			}
		})
		w.send(8)
		eventuallyNamed(t, m.Ready, "offset 3", "this record is poison")
		if c := w.committed(2); c > 3 {
			return fmt.Sprintf("committed %d past the record", c)
		}
		mended.Store(true)
		patience := soon
		if weak != 0 {
			patience = 2 * time.Second
		}
		if err := eventually(patience, m.Ready); err != nil {
			return "it is still down: " + err.Error()
		}
		return w.counted()
	}
}

// restart: one of two members stops and comes back; the other keeps its
// partitions and sees no new generation.
func restart(t *testing.T, weak Weakness) string {
	w := newWorld(t)
	generation := func(members int) (int, error) {
		g := w.cluster().GroupInfo(w.group)
		if g == nil || g.State != "Stable" || len(g.Members) != members {
			return 0, errNotYet
		}
		return int(g.Epoch), nil
	}
	dir := t.TempDir()
	two := func(c *ProcessorConfig) { c.weak, c.Instance, c.StateDir = weak, "two", dir }
	one := w.start(with(weak))
	m := w.start(two)
	var before int
	testenv.Eventually(t, soon, func() (err error) {
		before, err = generation(2)
		return errors.Join(err, one.Ready(), m.Ready())
	})
	joined := one.live().joined.Load()
	m.stop()
	again := w.start(two)
	var now int
	testenv.Eventually(t, soon, func() (err error) {
		now, err = generation(2)
		return errors.Join(err, one.Ready(), again.Ready())
	})
	w.send(2)
	if d := w.counted(); d != "" {
		return d
	}
	if now != before || one.live().joined.Load() != joined {
		return fmt.Sprintf("generation %d became %d", before, now)
	}
	return ""
}
