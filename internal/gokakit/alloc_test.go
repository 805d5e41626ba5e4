package gokakit

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/lovoo/goka"
	"github.com/twmb/franz-go/pkg/kgo"
)

// allocations counts the allocations of a record's way out, without what the
// test's Kafka and schema allocate.
func allocations(t *testing.T, send func(b *bench, i int)) float64 {
	b := newBench(t, 0, nil)
	noProduce(b)
	b.store.schema = flat{}
	b.store.opts.writeBehind = 64 << 20
	i := 0
	done := make(chan error, 1)
	answer := func(err error) { done <- err }
	return testing.AllocsPerRun(2000, func() {
		send(b, i)
		i++
		b.lane.barrier(answer)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

// flat is a schema that allocates nothing: version and seq in the first bytes
// of a value.
type flat struct{}

func (flat) Version(value []byte) (uint64, error) { return binary.BigEndian.Uint64(value), nil }
func (flat) Derive(key string, value []byte, add func(Derived)) error {
	add(Derived{Group: key[5:6], Item: key[7:8], Seq: binary.BigEndian.Uint64(value[8:]), Value: value[16:]})
	return nil
}

// noProduce acks at once.
func noProduce(b *bench) {
	next := int64(0)
	b.producer.produce = func(_ context.Context, r *kgo.Record, f func(*kgo.Record, error)) {
		if r.Topic == "table" {
			r.Offset = next
			next++
		}
		f(r, nil)
	}
}

func TestAllocations(t *testing.T) {
	value := make([]byte, 100)
	keys := make([]string, 3000)
	for i := range keys {
		keys[i] = fmt.Sprintf("0000|g:a%d", i)
	}
	for name, c := range map[string]struct {
		send func(b *bench, i int)
		most float64
	}{
		"emission": {func(b *bench, i int) { _ = b.lane.emit("out", keys[i], value) }, 1},
		"put":      {func(b *bench, i int) { _ = b.lane.put(keys[0], value, false) }, 2},
		"new key":  {func(b *bench, i int) { _ = b.lane.put(keys[i], value, false) }, 3},
	} {
		if n := allocations(t, c.send); n > c.most {
			t.Errorf("%s: %v allocations, at most %v are meant", name, n, c.most)
		} else {
			t.Logf("%s: %v", name, n)
		}
	}
}

// A record's way in costs nothing beside what goka allocates for it.
func TestConsumeAllocations(t *testing.T) {
	b := newBench(t, 0, nil)
	a := &attempt{Processor: &Processor{cfg: ProcessorConfig{Handle: func(*Partition, Record) error { return nil }}, metrics: mustMetrics()},
		producer: b.producer, partitions: map[int]*Partition{0: {lane: b.lane, store: b.store}}}
	commits := 0
	in := &input{done: func(error) { commits++ }}
	var value any = []byte("v")
	if n := testing.AllocsPerRun(1000, func() { a.consume(in, value) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	if commits != 1001 {
		t.Errorf("%d commits", commits)
	}
}

// input is goka's context of one record.
type input struct {
	gokaContext
	done func(error)
}

type gokaContext = goka.Context

func (i *input) DeferCommit() func(error) { return i.done }
func (*input) Topic() goka.Stream         { return "in" }
func (*input) Partition() int32           { return 0 }
func (*input) Key() string                { return "k" }
func (*input) Offset() int64              { return 1 }
func (*input) Timestamp() time.Time       { return time.Time{} }

func BenchmarkPut(b *testing.B) {
	x := newBench(b, 0, nil)
	noProduce(x)
	x.store.schema = flat{}
	x.store.opts.writeBehind = 4 << 20
	value := make([]byte, 100)
	keys := make([]string, 100000)
	for i := range keys {
		keys[i] = fmt.Sprintf("0000|g:a%d", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := x.lane.put(keys[i%len(keys)], value, false); err != nil {
			b.Fatal(err)
		}
		x.lane.barrier(func(error) {})
	}
}
