package gokakit

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tidemark/tidemark/topology"
	"github.com/twmb/franz-go/pkg/kgo"
)

// lane is the ordered way out of one partition: table writes, emissions and
// barriers resolve strictly in the order in which they entered. After the
// producer's first failure everything in it fails.
type lane struct {
	producer *producer
	store    *store // nil for a stateless processor
	table    string
	owner    Owner // told of each acked table write, in order; may be nil

	mu     sync.Mutex
	queue  []*entry
	head   int
	closed bool

	wake chan struct{}
	done chan struct{}
}

// entry is an emission or, without a record, a barrier.
type entry struct {
	record  kgo.Record
	write   *write
	bytes   int
	barrier func(error)
	acked   atomic.Bool
	err     error // written before acked
}

func newLane(p *producer, s *store, table string, owner Owner) *lane {
	l := &lane{producer: p, store: s, table: table, owner: owner, wake: make(chan struct{}, 1), done: make(chan struct{})}
	p.add(l)
	go l.resolve()
	return l
}

const recordOverhead = 256 // bytes of RAM an emission takes beside its data

// emit sends a record; an error means that the producer has failed or that the
// record cannot be sent, and poisons it.
func (l *lane) emit(topic, key string, value []byte) error {
	return l.send(topic, key, value, false)
}

// put writes to the table: readable at once, in the store once acked.
func (l *lane) put(key string, value []byte) error {
	return l.send(l.table, key, value, true)
}

func (l *lane) send(topic, key string, value []byte, table bool) error {
	n, ok := l.producer.partitions[topic]
	if !ok {
		return fmt.Errorf("emitting to %s: the topology has no such output for this processor", topic)
	}
	partition, err := topology.PartitionOf(key, n)
	if err != nil {
		return fmt.Errorf("emitting to %s: %w", topic, err)
	}
	e := &entry{bytes: len(key) + len(value) + recordOverhead}
	e.record = kgo.Record{Topic: topic, Partition: int32(partition), Key: []byte(key), Value: value}
	if err := l.producer.acquire(e.bytes); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		l.producer.release(1, e.bytes)
		return fmt.Errorf("emitting to %s: %w", topic, errClosed)
	}
	if table {
		if e.write, err = l.store.put(key, value); err != nil {
			l.producer.release(1, e.bytes)
			l.producer.fail(err)
			return err
		}
	}
	l.queue = append(l.queue, e)
	l.producer.client.Produce(context.Background(), &e.record, func(_ *kgo.Record, err error) {
		if err != nil {
			e.err = fmt.Errorf("producing to %s/%d: %w", topic, partition, err)
		}
		e.acked.Store(true)
		l.poke()
	})
	return nil
}

// barrier calls f once everything that entered before is resolved, with the
// failure if there was one.
func (l *lane) barrier(f func(error)) {
	l.mu.Lock()
	if l.head == len(l.queue) || l.closed {
		err := l.producer.err()
		if err == nil && l.closed {
			err = errClosed
		}
		l.mu.Unlock()
		f(err)
		return
	}
	e := &entry{barrier: f}
	e.acked.Store(true)
	l.queue = append(l.queue, e)
	l.mu.Unlock()
}

func (l *lane) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// resolve runs until close. The queue's head stays in the queue until it is
// settled, so that barrier never overtakes an ack that is being settled.
func (l *lane) resolve() {
	defer close(l.done)
	var batch []*entry
	for {
		batch = l.ready(batch[:0])
		if len(batch) == 0 {
			if l.finished() {
				return
			}
			<-l.wake
			continue
		}
		l.settle(batch)
		l.drop(len(batch))
	}
}

const maxBatch = 1024

// ready lists the resolved prefix of the queue: acked entries up to the first
// that is not, or everything when the producer has failed.
func (l *lane) ready(batch []*entry) []*entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	failed := l.producer.err() != nil
	for _, e := range l.queue[l.head:] {
		if len(batch) == maxBatch || !failed && !e.acked.Load() {
			break
		}
		batch = append(batch, e)
		if !failed && e.err != nil {
			break
		}
	}
	return batch
}

func (l *lane) finished() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed && l.head == len(l.queue)
}

func (l *lane) drop(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.queue[l.head : l.head+n])
	l.head += n
	switch {
	case l.head == len(l.queue):
		l.queue, l.head = l.queue[:0], 0
	case l.head > 4096 && l.head*2 > len(l.queue):
		l.queue = append(l.queue[:0], l.queue[l.head:]...)
		l.head = 0
	}
}

func (l *lane) settle(batch []*entry) {
	if last := batch[len(batch)-1]; l.producer.err() == nil && last.acked.Load() && last.err != nil {
		l.producer.fail(last.err)
	}
	if l.producer.err() == nil {
		if err := l.ack(batch); err != nil {
			l.producer.fail(err)
		}
	}
	err := l.producer.err()
	records, bytes := 0, 0
	for _, e := range batch {
		if e.barrier != nil {
			e.barrier(err)
			continue
		}
		records++
		bytes += e.bytes
	}
	l.producer.release(records, bytes)
}

// ack settles the table writes of a batch whose records are all acked.
func (l *lane) ack(batch []*entry) error {
	var writes []*write
	var offsets []int64
	for _, e := range batch {
		if e.write != nil {
			writes = append(writes, e.write)
			offsets = append(offsets, e.record.Offset)
		}
	}
	if len(writes) == 0 {
		return nil
	}
	if err := l.store.ack(writes, offsets); err != nil {
		return err
	}
	l.producer.metrics.acked.Add(float64(len(writes)))
	if l.owner == nil {
		return nil
	}
	for i, w := range writes {
		rows := make([]Derived, len(w.derived))
		for j := range w.derived {
			rows[j] = w.derived[j].Derived
		}
		l.owner.Settled(w.key, w.value, offsets[i], rows)
	}
	return nil
}

// close refuses further emissions and waits until what is inside has resolved
// or, when the producer has failed, has failed.
func (l *lane) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.poke()
	<-l.done
	l.producer.remove(l)
}
