package traffic

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// PoisonHeader marks a poisoned record for those who check, with the reason it
// must be set aside for. Processors do not look at headers.
const PoisonHeader = "drill-poison"

// Sender sends a generator's messages at a rate until every one is acked.
type Sender struct {
	client  *kgo.Client
	brokers []string
	topic   string

	mu  sync.Mutex // of g
	g   *Generator
	log []Message // everything sent since Record; nil: not recorded

	rate   atomic.Int64 // messages per second; 0 pauses
	acked  atomic.Int64
	failed atomic.Int64 // sendings that had to be repeated
	poison atomic.Int64
	under  sync.WaitGroup // messages under way
	stop   context.CancelFunc
	done   chan struct{}
}

// ClientID of the sender; no fault is meant for it.
const ClientID = "traffic"

// NewSender makes a sender for a topic of brokers.
func NewSender(brokers []string, topic string, g *Generator) (*Sender, error) {
	s := &Sender{brokers: brokers, topic: topic, g: g}
	return s, s.connect()
}

func (s *Sender) connect() (err error) {
	s.client, err = kgo.NewClient(
		kgo.SeedBrokers(s.brokers...), kgo.ClientID(ClientID), kgo.DefaultProduceTopic(s.topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(100*time.Millisecond),
		kgo.ProducerLinger(2*time.Millisecond), kgo.MaxBufferedRecords(1<<20),
	)
	if err != nil {
		return fmt.Errorf("traffic: making a Kafka client: %w", err)
	}
	return nil
}

// Reconnect begins anew as another producer, after the broker has forgotten
// what this one sent. Nothing may be under way.
func (s *Sender) Reconnect() error {
	s.client.Close()
	return s.connect()
}

// Start begins to send, or goes on after a Pause; while it sends, only the rate
// changes.
func (s *Sender) Start(rate int) {
	if s.stop != nil {
		s.SetRate(rate)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.rate.Store(int64(rate))
	s.stop, s.done = cancel, make(chan struct{})
	go s.run(ctx)
}

// SetRate changes the rate; 0 pauses.
func (s *Sender) SetRate(rate int) { s.rate.Store(int64(rate)) }

// Rate is the present rate.
func (s *Sender) Rate() int { return int(s.rate.Load()) }

const tick = 5 * time.Millisecond

// sealEvery is the distance of watermarks.
const sealEvery = time.Second

// run paces: each tick sends what is due, at most a second's worth.
func (s *Sender) run(ctx context.Context) {
	defer close(s.done)
	pace := time.NewTicker(tick)
	defer pace.Stop()
	last, due, sealed := time.Now(), 0.0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
		}
		now := time.Now()
		rate := float64(s.rate.Load())
		due = min(due+rate*now.Sub(last).Seconds(), rate)
		last = now
		for ; due >= 1; due-- {
			s.mu.Lock()
			s.send(s.g.Next())
			s.mu.Unlock()
		}
		if rate > 0 && now.Sub(sealed) >= sealEvery {
			sealed = now
			s.Seal()
		}
	}
}

// send produces a message; the caller holds the lock. What fails is sent again.
func (s *Sender) send(m Message) {
	if s.log != nil {
		s.log = append(s.log, m)
	}
	r := &kgo.Record{Topic: s.topic, Partition: m.Partition, Key: m.Key, Value: m.Value}
	if m.Poison != "" {
		r.Headers = []kgo.RecordHeader{{Key: PoisonHeader, Value: []byte(m.Poison)}}
	}
	s.under.Add(1)
	s.client.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
		defer s.under.Done()
		if err == nil {
			s.acked.Add(1)
			if m.Poison != "" {
				s.poison.Add(1)
			}
			return
		}
		s.failed.Add(1)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.g.Again(m)
	})
}

// Seal sends a watermark of every shard to every partition.
func (s *Sender) Seal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.g.Seal() {
		s.send(m)
	}
}

// Touch sends a new version of every relation and waits until all is acked.
func (s *Sender) Touch(ctx context.Context) error {
	s.mu.Lock()
	for _, m := range s.g.Touch() {
		s.send(m)
	}
	s.mu.Unlock()
	return s.Flush(ctx)
}

// Flush waits until everything under way is acked.
func (s *Sender) Flush(ctx context.Context) error {
	if err := s.client.Flush(ctx); err != nil {
		return fmt.Errorf("traffic: waiting for acks: %w", err)
	}
	s.under.Wait()
	return nil
}

// Finish stops the stream and sends what is left of it, until every fact is in
// the log. The generator is the caller's again afterwards.
func (s *Sender) Finish(ctx context.Context) error {
	s.Pause()
	for {
		if err := s.Flush(ctx); err != nil {
			return err
		}
		if !s.rest() {
			return nil
		}
	}
}

// Pause stops the stream; Start goes on with it.
func (s *Sender) Pause() {
	if s.stop == nil {
		return
	}
	s.stop()
	<-s.done
	s.stop = nil
}

// rest sends what is left, and says whether anything was.
func (s *Sender) rest() (any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		m, ok := s.g.Rest()
		if !ok {
			return any
		}
		any = true
		s.send(m)
	}
}

// Record keeps every message from now on, to be sent again by Replay.
func (s *Sender) Record() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = []Message{}
}

// Replay sends again what was recorded, in order, and ends the recording: the
// log may have lost it.
func (s *Sender) Replay(ctx context.Context) error {
	s.mu.Lock()
	log := s.log
	s.log = nil
	for _, m := range log {
		s.send(m)
	}
	s.mu.Unlock()
	return s.Flush(ctx)
}

// Figures of a sender.
type Figures struct {
	Acked    int64 // messages
	Repeated int64 // sendings that failed and were repeated
	Poison   int64 // poisoned messages among them
}

// Figures so far.
func (s *Sender) Figures() Figures {
	return Figures{s.acked.Load(), s.failed.Load(), s.poison.Load()}
}

// Close stops everything.
func (s *Sender) Close() {
	s.Pause()
	s.client.Close()
}

// Generator is what is sent; only between Finish or Pause and Start.
func (s *Sender) Generator() *Generator { return s.g }
