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
// franz-go fails whatever it holds of a partition together with a record that
// the broker refuses, but takes what comes later. The failure is therefore
// noted in its callback, before anything waits for it, and what can be refused
// beforehand (an oversized record, a foreign topic) never gets as far.
type producer struct {
	client     *kgo.Client // nil in unit tests
	produce    func(context.Context, *kgo.Record, func(*kgo.Record, error))
	partitions map[string]int // of each topic that may be written
	metrics    *metrics
	onPoison   func(error)
	budget     budget
	weak       Weakness

	poison atomic.Pointer[poison]
	closed sync.Once

	mu    sync.Mutex
	lanes []*lane
}

type poison struct{ err error }

const (
	maxInflightRecords = 1 << 16
	maxInflightBytes   = 64 << 20
	// maxRecordBytes of key and value: what fits a batch and every topic.
	maxRecordBytes = 1<<20 - 1<<10
	closeTimeout   = 2 * time.Second
)

// producerOptions are franz-go's settings; settings_test.go pins them.
func (c Client) producerOptions() []kgo.Opt {
	return []kgo.Opt{
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.MaxProduceRequestsInflightPerBroker(1),
		kgo.StopProducerOnDataLossDetected(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(c.Linger),
		kgo.ProducerBatchMaxBytes(1 << 20),
		kgo.ProducerBatchCompression(kgo.Lz4Compression()),
		// The budget is the limit; franz-go must never block a lane.
		kgo.MaxBufferedRecords(2 * maxInflightRecords),
		// A deleted topic fails within some 10 s, and a leader that moved is
		// found within one.
		kgo.UnknownTopicRetries(10),
		kgo.MetadataMinAge(time.Second),
	}
}

func newProducer(c Client, partitions map[string]int, m *metrics, onPoison func(error)) (*producer, error) {
	client, err := c.franz(c.producerOptions()...)
	if err != nil {
		return nil, err
	}
	p := &producer{client: client, produce: client.Produce, partitions: partitions, metrics: m, onPoison: onPoison}
	p.budget.init(maxInflightRecords, maxInflightBytes)
	return p, nil
}

// err is the failure that poisoned the producer; nil while it is well.
func (p *producer) err() error {
	if x := p.poison.Load(); x != nil {
		return x.err
	}
	return nil
}

// fail poisons the producer and ends what it belongs to; only the first call
// counts.
func (p *producer) fail(err error) {
	if p.stop(err) {
		p.onPoison(err)
	}
}

// stop poisons the producer quietly: nothing can be sent any more.
func (p *producer) stop(err error) bool {
	if !p.poison.CompareAndSwap(nil, &poison{err}) {
		return false
	}
	p.budget.poison(err)
	p.mu.Lock()
	lanes := p.lanes
	p.mu.Unlock()
	for _, l := range lanes {
		l.poke()
	}
	return true
}

// acquire waits for room for one record.
func (p *producer) acquire(bytes int) error {
	if err := p.err(); err != nil {
		return err
	}
	if p.weak.has(WithoutBudget) {
		p.budget.force(bytes)
		return nil
	}
	return p.budget.acquire(bytes)
}

func (p *producer) release(records, bytes int) {
	left, leftBytes := p.budget.release(records, bytes)
	p.metrics.inflight.Set(float64(left))
	p.metrics.inflightBytes.Set(float64(leftBytes))
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
			p.lanes = append(p.lanes[:i:i], p.lanes[i+1:]...) // a copy: stop may be reading the old one
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

func (p *producer) close() (err error) {
	if p.err() == nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		if err = p.client.Flush(ctx); err != nil {
			err = fmt.Errorf("waiting for the last acks: %w", err)
		}
	}
	p.stop(errors.New("the producer is closed"))
	p.client.Close()
	return err
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
