package cdc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// producer writes records to one partition, in order: acks from all in-sync
// replicas, idempotent, one request in flight. It retries without end what can
// be retried; an error that reaches a promise is final.
//
// Records gather in a queue; a goroutine hands the queue to the client whole,
// flushes, and takes the next only when Kafka has all of it. So after a
// failure nothing behind it is sent: the client fails what it holds, and what
// is in the queue stays there. Producing straight into the client would let
// records through that arrive between the failure and its promise.
type producer struct {
	client    *kgo.Client
	topic     string
	partition int32
	linger    time.Duration
	free      sync.Pool // *outgoing
	done      func(*outgoing, error)

	mu     sync.Mutex
	queue  []*outgoing
	queued int           // bytes
	wake   chan struct{} // one token: the queue has a first record
	enough chan struct{} // one token: the queue is worth a request

	failed     atomic.Bool
	finish     chan struct{} // closed: send what is queued, then end
	finishOnce sync.Once
	give       context.CancelFunc // gives up
	ended      chan struct{}      // closed: the goroutine has ended
}

// outgoing is a record on its way, with its buffer. It is used again after its
// record was acked.
type outgoing struct {
	record   kgo.Record
	buffer   []byte // key, then value
	keySize  int    // below 0: the key is null
	at       time.Time
	number   uint64 // in the tracker
	size     int    // in the window
	lsn      pglogrepl.LSN
	commitUS int64 // µs since 1970
	promise  func(*kgo.Record, error)
}

const (
	maxKeptBuffer  = 128 << 10 // of the buffers kept for reuse
	maxBatchBytes  = 1_000_012 // of a batch; topics take 1,048,588
	maxRecordBytes = 1_000_000 - 1024
	enoughBytes    = 256 << 10 // not worth waiting for more
)

const endTimeout = 10 * time.Second // of a question to Kafka

// newProducer makes a client and starts its goroutine. done is called for
// every record, in order, when Kafka has it or never will; note hears of
// failed connections.
func newProducer(c *Config, note func(error), done func(*outgoing, error)) (*producer, error) {
	compression := kgo.NoCompression()
	if c.Compress {
		compression = kgo.Lz4Compression()
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...),
		kgo.ClientID(fmt.Sprintf("tidemark-cdc-%d", c.Shard)),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxProduceRequestsInflightPerBroker(1),
		kgo.StopProducerOnDataLossDetected(),
		kgo.ManualFlushing(),
		kgo.ProducerBatchMaxBytes(maxBatchBytes),
		kgo.ProducerBatchCompression(compression),
		// The window is the bound; the client's own must not be met first.
		kgo.MaxBufferedRecords(c.MaxInFlightRecords + 1),
		kgo.MetadataMinAge(500 * time.Millisecond),
		kgo.WithHooks(connectHook(note)),
	}
	client, err := kgo.NewClient(append(opts, c.Access.Franz()...)...)
	if err != nil {
		return nil, fmt.Errorf("making the Kafka client: %w", err)
	}
	p := &producer{
		client: client, topic: c.Topic, partition: int32(c.Partition), linger: c.Linger, done: done,
		wake: make(chan struct{}, 1), enough: make(chan struct{}, 1),
		finish: make(chan struct{}), ended: make(chan struct{}),
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.give = cancel
	go p.run(ctx)
	return p, nil
}

// connectHook hears of connections that could not be made.
type connectHook func(error)

func (h connectHook) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err != nil && !errors.Is(err, context.Canceled) { // the client is closing
		h(fmt.Errorf("connecting to Kafka at %s:%d: %w", meta.Host, meta.Port, err))
	}
}

// End is the partition's end offset: 0 when it never had a record.
func (p *producer) End(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	offsets, err := kadm.NewClient(p.client).ListEndOffsets(ctx, p.topic)
	if err != nil {
		return 0, fmt.Errorf("asking Kafka for the end of %s: %w", p.topic, err)
	}
	o, ok := offsets.Lookup(p.topic, p.partition)
	if !ok {
		return 0, fmt.Errorf("Kafka has no partition %d of topic %s; create the topics", p.partition, p.topic)
	}
	if o.Err != nil {
		return 0, fmt.Errorf("asking Kafka for the end of %s partition %d: %w", p.topic, p.partition, o.Err)
	}
	return o.Offset, nil
}

// New gives an empty record to fill.
func (p *producer) New() *outgoing {
	if o, ok := p.free.Get().(*outgoing); ok {
		return o
	}
	o := &outgoing{}
	o.promise = func(_ *kgo.Record, err error) {
		if err != nil {
			p.failed.Store(true)
		}
		p.done(o, err)
	}
	return o
}

// Put queues a record. It does not block: the caller has room in the window.
func (p *producer) Put(o *outgoing) {
	p.mu.Lock()
	p.queue = append(p.queue, o)
	before := p.queued
	p.queued += o.size
	first, full := before == 0, before < enoughBytes && p.queued >= enoughBytes
	p.mu.Unlock()
	if first {
		signal(p.wake)
	}
	if full {
		signal(p.enough)
	}
}

func signal(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

// take empties the queue into group, which it gives its own place.
func (p *producer) take(group []*outgoing) []*outgoing {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(group)
	taken := p.queue
	p.queue, p.queued = group[:0], 0
	return taken
}

// run sends the queue, group by group, until told to end or a record failed.
func (p *producer) run(ctx context.Context) {
	defer close(p.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	var group []*outgoing
	for finishing := false; ; {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
			p.gather(ctx, timer)
		case <-p.finish:
			finishing = true
		}
		group = p.take(group)
		if len(group) == 0 && finishing {
			return
		}
		if !p.send(ctx, group) {
			return
		}
	}
}

// gather gives a first record's companions time to arrive.
func (p *producer) gather(ctx context.Context, timer *time.Timer) {
	if p.linger <= 0 {
		return
	}
	timer.Reset(p.linger)
	select {
	case <-timer.C:
	case <-p.enough:
	case <-p.finish:
	case <-ctx.Done():
	}
}

// send hands a group to the client and waits until Kafka has it; false: it
// does not, and never will.
func (p *producer) send(ctx context.Context, group []*outgoing) bool {
	for _, o := range group {
		o.record = kgo.Record{Topic: p.topic, Partition: p.partition, Timestamp: o.at, Value: o.buffer}
		if n := o.keySize; n >= 0 {
			o.record.Key, o.record.Value = o.buffer[:n:n], o.buffer[n:]
		}
		// Not ctx: a record lives until Kafka has it or the client closes.
		p.client.Produce(context.Background(), &o.record, o.promise)
	}
	// Flush returns after the promises of all records.
	return p.client.Flush(ctx) == nil && !p.failed.Load()
}

// Recycle takes back an acked record.
func (p *producer) Recycle(o *outgoing) {
	if cap(o.buffer) <= maxKeptBuffer {
		o.buffer = o.buffer[:0]
		p.free.Put(o)
	}
}

// Finish waits until Kafka has all that was put, a record failed, or ctx ends.
func (p *producer) Finish(ctx context.Context) error {
	p.finishOnce.Do(func() { close(p.finish) })
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Close gives up what is on its way; its records' promises fail.
func (p *producer) Close() {
	p.give()
	<-p.ended
	p.client.Close()
}
