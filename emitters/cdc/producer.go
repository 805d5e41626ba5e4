package cdc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// producer writes records to one partition, in order: acks from all in-sync
// replicas, idempotent, one request in flight. It retries without end what can
// be retried; an error that reaches a promise is final.
type producer struct {
	client    *kgo.Client
	topic     string
	partition int32
	free      sync.Pool // *outgoing
	done      func(*outgoing, error)
}

// outgoing is a record on its way, with its buffer. It is used again after its
// record was acked.
type outgoing struct {
	record   kgo.Record
	buffer   []byte // key, then value
	number   uint64 // in the tracker
	size     int    // in the window
	lsn      pglogrepl.LSN
	commitUS int64 // µs since 1970
	promise  func(*kgo.Record, error)
}

// maxKeptBuffer bounds the buffers kept for reuse.
const maxKeptBuffer = 128 << 10

// newProducer makes a client; done is called for every record, in order, when
// Kafka has it or never will. note hears of failed connections.
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
		// No linger: while a request is in flight the next batch gathers, so
		// a lone record waits for nothing and a backlog fills its batches.
		kgo.ProducerLinger(0),
		kgo.ProducerBatchCompression(compression),
		// The window is the bound; the client's own must not be met first.
		kgo.MaxBufferedRecords(c.MaxInFlightRecords + 1),
		kgo.MetadataMinAge(500 * time.Millisecond),
		kgo.WithHooks(connectHook(note)),
	}
	if c.TLS != nil {
		opts = append(opts, kgo.DialTLSConfig(c.TLS))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, fmt.Errorf("making the Kafka client: %w", err)
	}
	return &producer{client: client, topic: c.Topic, partition: int32(c.Partition), done: done}, nil
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
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
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
	o.promise = func(_ *kgo.Record, err error) { p.done(o, err) }
	return o
}

// Produce sends a record whose buffer holds key and value; keySize below 0:
// the key is null. It does not block: the caller has room in the window.
func (p *producer) Produce(o *outgoing, keySize int, now time.Time) {
	o.record = kgo.Record{Topic: p.topic, Partition: p.partition, Timestamp: now, Value: o.buffer}
	if keySize >= 0 {
		o.record.Key, o.record.Value = o.buffer[:keySize:keySize], o.buffer[keySize:]
	}
	// The record's life is the producer's, not a caller's context: during a
	// graceful stop the reader ends first and what is buffered goes out.
	p.client.Produce(context.Background(), &o.record, o.promise)
}

// Recycle takes back an acked record.
func (p *producer) Recycle(o *outgoing) {
	if cap(o.buffer) <= maxKeptBuffer {
		o.buffer = o.buffer[:0]
		p.free.Put(o)
	}
}

// Close gives up what is buffered; its records' promises fail.
func (p *producer) Close() { p.client.Close() }
