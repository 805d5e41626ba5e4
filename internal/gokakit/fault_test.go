package gokakit

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/internal/testenv"
)

// A full disk is named; nothing is lost or counted twice once there is room
// again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	disk := &faulty{forever: true, healed: true}
	m := w.start(func(c *ProcessorConfig) { c.fs, c.WriteBehind = errorfs.Wrap(vfs.NewMem(), disk), 4<<10 })
	w.send(20)
	if d := w.counted(); d != "" {
		t.Fatal(d)
	}
	disk.damage()
	w.send(60)
	eventuallyNamed(t, m.Ready, w.table, "no space left on device")
	disk.heal()
	if d := w.counted(); d != "" {
		t.Error(d)
	}
	w.ready(m)
	if n := counterValue(m.metrics.rebuilds); n < 1 {
		t.Error("the processor was not built anew")
	}
}

// An output that is deleted under a running processor is named, and what could
// not be brought out is not committed (S03).
func TestDeletedOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.start(func(c *ProcessorConfig) {
		c.Handle = func(p *Partition, r Record) error { return p.Emit(w.out, r.Key[5:], r.Value) }
	})
	w.ready(m)
	w.send(1)
	w.taken()
	w.delete(w.out)
	w.send(1)
	eventuallyNamed(t, m.Ready, w.out)
	for p := range 4 {
		if c := w.committed(p); c != 1 {
			t.Errorf("partition %d: committed %d", p, c)
		}
	}
	testenv.CreateTopics(t, w.broker, w.topo)
	w.taken()
}

// A committed offset that the input's log has lost is named, never skipped.
func TestLostInputIsNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.start(nil)
	w.send(3)
	if d := w.counted(); d != "" {
		t.Fatal(d)
	}
	m.stop()
	w.send(5)
	if err := w.cluster().DeleteRecords(w.input, 1, 6); err != nil {
		t.Fatal(err)
	}
	m = w.start(nil)
	eventuallyNamed(t, m.Ready, w.input+"/1", "records were lost")
	if c := w.committed(1); c != 3 {
		t.Errorf("the offset has become %d", c)
	}
	m.stop()
	// A group that names its gaps itself may say that it goes on.
	m = w.start(func(c *ProcessorConfig) { c.SkipLost = true })
	w.taken()
	w.ready(m)
}

// A table's log that has lost its oldest records is read from where it starts
// now, into an empty store and into one that is behind (G15).
func TestG15LogStartsLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	behind := t.TempDir()
	m := w.start(func(c *ProcessorConfig) { c.StateDir = behind })
	w.send(3)
	w.taken()
	m.stop()
	m = w.start(nil) // elsewhere
	w.send(3)
	w.taken()
	m.stop()
	w.send(3)
	for p := range 4 {
		if err := w.cluster().DeleteRecords(w.table, int32(p), 5); err != nil {
			t.Fatal(err)
		}
	}
	for name, dir := range map[string]string{"empty": t.TempDir(), "behind": behind} {
		m = w.start(func(c *ProcessorConfig) { c.StateDir = dir })
		w.ready(m)
		w.taken()
		if n := counterValue(m.metrics.rebuilds); n > 0 {
			t.Errorf("%s: built anew %v times", name, n)
		}
		m.stop()
	}
}

// Errors that Kafka asks to try again, whether the records were taken or not,
// and connections that break in the middle, change nothing: the table's log
// has each change once and in order, and nobody is built anew (S01, S09).
func TestRetriesKeepOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	c := w.cluster()
	m := w.start(nil)
	w.ready(m)
	var requests atomic.Int64
	info := c.TopicInfo(w.table)
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if topics := req.(*kmsg.ProduceRequest).Topics; len(topics) == 0 || topics[0].TopicID != info.TopicID && topics[0].Topic != w.table {
			return nil, nil, false
		}
		switch requests.Add(1) % 6 {
		case 2:
			return nil, errors.New("the connection breaks before the request is taken"), true
		case 4:
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: w.table, Err: kerr.RequestTimedOut}) // taken
		case 5:
			c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: w.table, Err: kerr.NotLeaderForPartition}) // not taken
		}
		return nil, nil, false
	})
	for range 12 {
		w.send(8)
		testenv.Eventually(t, soon, func() error { // one request at least for each round
			if n := c.PartitionInfo(w.table, 0).HighWatermark; n < w.perPartition[0] {
				return fmt.Errorf("%d of %d are written", n, w.perPartition[0])
			}
			return nil
		})
	}
	if d := w.counted(); d != "" {
		t.Error(d)
	}
	if n := requests.Load(); n < 12 {
		t.Errorf("only %d requests, too few to prove anything", n)
	}
	for p := range 4 {
		seen := map[string]uint64{}
		for at, r := range w.log(w.table, p) {
			c, _ := decodeCell(r.value)
			if c.version != seen[r.key]+1 {
				t.Fatalf("partition %d, offset %d: version %d of %s after %d", p, at, c.version, r.key, seen[r.key])
			}
			seen[r.key] = c.version
		}
	}
	if n := counterValue(m.metrics.rebuilds); n > 0 {
		t.Errorf("built anew %v times", n)
	}
}
