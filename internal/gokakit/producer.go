package gokakit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lovoo/goka"
	"github.com/twmb/franz-go/pkg/kgo"
)

// producer sends a processor's emissions. With all replicas' acks, idempotence
// and one request in flight, the order of each partition's log is the order of
// emission. Its first failure is its last: every lane then fails all that it
// holds and all that comes.
//
// It blocks emitters while too many records or bytes wait for their acks.
type producer struct {
	client     *kgo.Client
	partitions map[string]int // of each topic that may be written
	metrics    *metrics
	onPoison   func(error)

	poison atomic.Pointer[poison]
	closed sync.Once

	mu      sync.Mutex
	room    *sync.Cond
	records int
	bytes   int
	lanes   []*lane
}

type poison struct{ err error }

const (
	maxInflightRecords = 1 << 16
	maxInflightBytes   = 64 << 20
	closeTimeout       = 2 * time.Second
)

func newProducer(c Client, partitions map[string]int, m *metrics, onPoison func(error)) (*producer, error) {
	client, err := c.franz(
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MaxProduceRequestsInflightPerBroker(1),
		kgo.StopProducerOnDataLossDetected(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(c.Linger),
		kgo.ProducerBatchMaxBytes(1<<20),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()),
		// The budget below is the limit; franz-go must never block a lane.
		kgo.MaxBufferedRecords(2*maxInflightRecords),
		kgo.UnknownTopicRetries(10),
	)
	if err != nil {
		return nil, err
	}
	p := &producer{client: client, partitions: partitions, metrics: m, onPoison: onPoison}
	p.room = sync.NewCond(&p.mu)
	return p, nil
}

// err is the failure that poisoned the producer; nil while it is well.
func (p *producer) err() error {
	if x := p.poison.Load(); x != nil {
		return x.err
	}
	return nil
}

// fail poisons the producer; only the first call counts.
func (p *producer) fail(err error) {
	if !p.poison.CompareAndSwap(nil, &poison{err}) {
		return
	}
	p.onPoison(err)
	p.mu.Lock()
	p.room.Broadcast()
	lanes := p.lanes
	p.mu.Unlock()
	for _, l := range lanes {
		l.poke()
	}
}

// acquire waits for room in the budget. It does not wait for a record that is
// alone, however large.
func (p *producer) acquire(bytes int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.records > 0 && (p.records >= maxInflightRecords || p.bytes+bytes > maxInflightBytes) && p.err() == nil {
		p.room.Wait()
	}
	if err := p.err(); err != nil {
		return err
	}
	p.records++
	p.bytes += bytes
	p.metrics.inflight.Set(float64(p.records))
	p.metrics.inflightBytes.Set(float64(p.bytes))
	return nil
}

func (p *producer) release(records, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.records -= records
	p.bytes -= bytes
	p.metrics.inflight.Set(float64(p.records))
	p.metrics.inflightBytes.Set(float64(p.bytes))
	p.room.Broadcast()
}

func (p *producer) add(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lanes = append(p.lanes, l)
}

func (p *producer) remove(l *lane) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, x := range p.lanes {
		if x == l {
			p.lanes = append(p.lanes[:i:i], p.lanes[i+1:]...)
			return
		}
	}
}

// Close waits a moment for acks and stops; what is left fails. A second call
// does nothing.
func (p *producer) Close() (err error) {
	p.closed.Do(func() { err = p.close() })
	return err
}

func (p *producer) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := p.client.Flush(ctx)
	p.fail(errors.New("the producer is closed"))
	p.client.Close()
	if err != nil {
		return fmt.Errorf("waiting for the last acks: %w", err)
	}
	return nil
}

// Emit and EmitWithHeaders make this a goka.Producer. Handlers emit through
// their Partition, never through goka's context.
func (p *producer) Emit(topic, key string, value []byte) *goka.Promise {
	return p.EmitWithHeaders(topic, key, value, nil)
}

// EmitWithHeaders refuses, see Emit.
func (p *producer) EmitWithHeaders(topic, _ string, _ []byte, _ goka.Headers) *goka.Promise {
	promise, finish := goka.NewPromiseWithFinisher()
	finish(nil, fmt.Errorf("emitting to %s through goka's context: use the Partition", topic))
	return promise
}
