package gokakit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/tidemark/tidemark/topology"
	"github.com/twmb/franz-go/pkg/kgo"
)

// lane is the ordered way out of one partition: table writes, emissions and
// barriers resolve strictly in the order in which they entered. After the
// producer's first failure everything in it fails.
//
// What enters has room in the producer's budget already, so that nobody waits
// while holding the lane's lock.
type lane struct {
	producer *producer
	number   int    // of the partition
	store    *store // nil for a stateless processor
	table    string
	owner    Owner // told of each acked table write, in order; may be nil

	mu     sync.Mutex
	queue  []item
	head   int
	closed bool

	wake chan struct{}
	done chan struct{}

	// Of the goroutine of resolve only.
	batch   []item
	effects []any
	writes  []*write
	rows    []Derived
}

// item is an emission, an effect or a barrier.
type item struct {
	emission *emission
	effect   any
	barrier  func(error)
}

// emission is a record on its way. It is its record's context, by which
// franz-go's callback finds it.
type emission struct {
	context.Context
	lane   *lane
	record kgo.Record
	table  bool
	write  write // of a table's record
	bytes  int
	acked  atomic.Bool
	err    error // written before acked
}

func newLane(p *producer, number int, s *store, table string, owner Owner) *lane {
	l := &lane{producer: p, number: number, store: s, table: table, owner: owner,
		wake: make(chan struct{}, 1), done: make(chan struct{})}
	p.add(l)
	go l.resolve()
	return l
}

const (
	recordOverhead  = 512 // bytes of RAM an emission takes beside its data
	barrierOverhead = 512 // bytes of RAM a barrier takes, goka's share included
)

// emit sends a record; an error means that the producer has failed or that the
// record cannot be sent.
func (l *lane) emit(topic, key string, value []byte) error {
	return l.send(&emission{Context: context.Background(), lane: l}, topic, key, value, false)
}

// put writes to the table: readable at once, in the store once acked. A value
// that is written again implies rows of its own time, see store.put.
func (l *lane) put(key string, value []byte, again bool) error {
	if l.store == nil {
		return errNoTable
	}
	if value == nil && !l.producer.weak.has(WithoutTombstoneRule) {
		return errTombstone
	}
	return l.send(&emission{Context: context.Background(), lane: l, table: true}, l.table, key, value, again)
}

var (
	errNoTable   = errors.New("the processor has no table")
	errTombstone = errors.New("writing to a table: the value is nil, and tables know no tombstones")
)

func (l *lane) send(e *emission, topic, key string, value []byte, again bool) error {
	partition, err := l.place(e, topic, key, len(value))
	if err != nil {
		return err
	}
	e.bytes = len(key) + len(value) + recordOverhead
	e.record = kgo.Record{Topic: topic, Partition: int32(partition), Key: readOnly(key), Value: value, Context: e}
	if err := l.producer.acquire(e.bytes); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.enter(e, key, value, again); err != nil {
		l.producer.release(1, e.bytes)
		return err
	}
	l.producer.produce(e, &e.record, resolved)
	return nil
}

// readOnly is the bytes of a string, which nobody may change.
func readOnly(s string) []byte {
	if s == "" {
		return []byte{} // nil would be a record without a key
	}
	return unsafe.Slice(unsafe.StringData(s), len(s))
}

// place finds a record's partition and refuses what cannot be sent, before
// anything has changed.
func (l *lane) place(e *emission, topic, key string, size int) (int, error) {
	n, ok := l.producer.partitions[topic]
	if !ok {
		return 0, fmt.Errorf("emitting to %s: the topology has no such output for this processor", topic)
	}
	if len(key)+size > maxRecordBytes {
		return 0, fmt.Errorf("emitting to %s: a record of %d bytes is over the limit of %d", topic, len(key)+size, maxRecordBytes)
	}
	p, err := topology.PartitionOf(key, n)
	if err != nil {
		return 0, fmt.Errorf("emitting to %s: %w", topic, err)
	}
	if e.table && p != l.number && !l.producer.weak.has(WithoutPlacement) {
		return 0, fmt.Errorf("writing to %s/%d: the key belongs to partition %d (G13)", topic, l.number, p)
	}
	return p, nil
}

func (l *lane) enter(e *emission, key string, value []byte, again bool) error {
	if l.closed {
		return fmt.Errorf("emitting to %s: %w", e.record.Topic, errClosed)
	}
	if err := l.producer.err(); err != nil { // since there was room
		return err
	}
	if e.table {
		if err := l.store.put(&e.write, key, value, again); err != nil {
			l.producer.fail(err)
			return err
		}
	}
	l.queue = append(l.queue, item{emission: e})
	return nil
}

// resolved is franz-go's callback.
func resolved(r *kgo.Record, err error) {
	e := r.Context.(*emission)
	if err != nil {
		e.err = fmt.Errorf("producing to %s/%d: %w", r.Topic, r.Partition, err)
		if !e.lane.producer.weak.has(WithoutOrder) {
			e.lane.producer.fail(e.err)
		}
	}
	e.acked.Store(true)
	e.lane.poke()
}

// barrier calls f once everything that entered before is resolved, with the
// failure if there was one. It may wait for room like an emission.
func (l *lane) barrier(f func(error)) {
	if err, ok := l.idle(); ok {
		f(err)
		return
	}
	if err := l.producer.acquire(barrierOverhead); err != nil {
		f(err)
		return
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.producer.release(1, barrierOverhead)
		f(errClosed)
		return
	}
	l.queue = append(l.queue, item{barrier: f})
	l.mu.Unlock()
	l.poke() // the queue may have run empty meanwhile
}

// effect has the owner perform something outside Kafka once everything that
// entered before is acked. It may wait for room like an emission.
func (l *lane) effect(what any) error {
	if err := l.producer.acquire(barrierOverhead); err != nil {
		return err
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		l.producer.release(1, barrierOverhead)
		return errClosed
	}
	l.queue = append(l.queue, item{effect: what})
	l.mu.Unlock()
	l.poke()
	return nil
}

// idle says whether nothing is under way, and what a barrier answers then.
func (l *lane) idle() (error, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head < len(l.queue) && !l.closed {
		return nil, false
	}
	err := l.producer.err()
	if err == nil && l.closed {
		err = errClosed
	}
	return err, true
}

func (l *lane) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// resolve runs until close. The queue's head stays in the queue until it is
// settled, so that a barrier never overtakes an ack that is being settled.
func (l *lane) resolve() {
	defer close(l.done)
	for {
		l.ready()
		if len(l.batch) > 0 {
			l.settle()
			l.drop(len(l.batch))
			continue
		}
		if l.finished() {
			return
		}
		<-l.wake
	}
}

const maxBatch = 1024

// ready gathers the resolved prefix of the queue: barriers and acked emissions
// up to the first that is not, or everything when the producer has failed.
func (l *lane) ready() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batch = l.batch[:0]
	failed := l.producer.err() != nil
	for _, i := range l.queue[l.head:] {
		if len(l.batch) == maxBatch {
			return
		}
		if e := i.emission; e != nil && !failed && !e.acked.Load() {
			return
		}
		l.batch = append(l.batch, i)
	}
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
		n := copy(l.queue, l.queue[l.head:])
		clear(l.queue[n:])
		l.queue, l.head = l.queue[:n], 0
	}
}

// settle acks a batch, or fails all of it: an emission that has failed has
// poisoned the producer.
func (l *lane) settle() {
	err := l.producer.err()
	if err == nil {
		if err = l.ack(); err == nil {
			err = l.perform()
		}
		if err != nil {
			l.producer.fail(err)
		}
	}
	bytes := 0
	for _, i := range l.batch {
		switch {
		case i.barrier != nil:
			i.barrier(err)
			bytes += barrierOverhead
		case i.emission != nil:
			bytes += i.emission.bytes
		default:
			bytes += barrierOverhead
		}
	}
	l.producer.release(len(l.batch), bytes)
}

// ack settles the table writes of a batch whose records are all acked.
func (l *lane) ack() (err error) {
	defer func() {
		if x := recover(); x != nil { // in the owner's code
			err = fmt.Errorf("table %s/%d: settling acked writes: panic: %v", l.table, l.number, x)
		}
	}()
	l.writes = l.writes[:0]
	for _, i := range l.batch {
		if e := i.emission; e != nil && e.table && e.err == nil {
			e.write.offset = e.record.Offset
			l.writes = append(l.writes, &e.write)
		}
	}
	if len(l.writes) == 0 {
		return nil
	}
	defer func() { clear(l.writes) }()
	if err := l.store.ack(l.writes); err != nil {
		return err
	}
	l.producer.metrics.acked.Add(float64(len(l.writes)))
	if l.owner == nil {
		return nil
	}
	for _, w := range l.writes {
		l.rows = l.rows[:0]
		for i := range w.derived {
			l.rows = append(l.rows, w.derived[i].Derived)
		}
		l.owner.Settled(w.key, w.value, w.offset, l.rows)
	}
	return nil
}

// perform has the owner make the effects of a batch whose records are all acked,
// before any barrier of the batch is told.
func (l *lane) perform() (err error) {
	l.effects = l.effects[:0]
	for _, i := range l.batch {
		if i.effect != nil {
			l.effects = append(l.effects, i.effect)
		}
	}
	if len(l.effects) == 0 {
		return nil
	}
	defer func() {
		clear(l.effects)
		if x := recover(); x != nil { // in the owner's code
			err = fmt.Errorf("partition %d: performing effects: panic: %v", l.number, x)
		}
	}()
	owner, ok := l.owner.(Performer)
	if !ok {
		return errors.New("the partition's owner performs no effects")
	}
	return owner.Perform(l.effects)
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
