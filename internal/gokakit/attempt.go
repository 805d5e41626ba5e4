package gokakit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lovoo/goka"
	"github.com/lovoo/goka/storage"

	"github.com/tidemark/tidemark/topology"
)

// attempt is one life of the processor, from building to its first failure.
type attempt struct {
	*Processor
	ctx      context.Context
	cancel   context.CancelCauseFunc
	after    error // why the attempt before it ended; nil for the first
	logs     *topics
	line     *lifeline
	inputs   map[string]uint32 // see Partition.InputEpoch
	goka     *goka.Processor
	producer *producer
	joined   atomic.Int64 // when the partitions were taken over last, Unix ns; 0: not yet

	mu         sync.RWMutex
	session    context.Context // of the present generation
	assigned   map[int]bool
	partitions map[int]*Partition
	recovering map[int]bool
	reading    time.Time // when recovering was empty last
	noted      error     // what the consumer group met last
	silent     error     // why Kafka did not answer when it was asked last
}

// A stopping processor waits this long for acks, and then this long for the
// broker to take the last offsets.
const (
	ackGrace = 2 * time.Second
	cutGrace = 500 * time.Millisecond
)

func (p *Processor) attempt(parent context.Context, after error) error {
	a := &attempt{Processor: p, after: after, line: p.cfg.Client.newLifeline(),
		assigned: map[int]bool{}, partitions: map[int]*Partition{}, recovering: map[int]bool{}}
	a.ctx, a.cancel = context.WithCancelCause(parent)
	defer a.cancel(nil)
	defer a.line.cut()
	var err error
	if a.logs, err = p.cfg.Client.topics(a.ctx); err != nil {
		return err
	}
	defer a.logs.close()
	outputs, err := a.outputs()
	if err != nil {
		return err
	}
	if err := a.knowInputs(); err != nil {
		return err
	}
	if a.producer, err = newProducer(p.cfg.Client, outputs, p.metrics, func(err error) { a.cancel(err) }); err != nil {
		return err
	}
	a.producer.weak = p.cfg.weak
	defer func() { _ = a.producer.Close() }()
	if a.goka, err = a.build(); err != nil {
		return err
	}
	return a.run()
}

// run runs goka until it fails or ctx ends, and says why it ended.
func (a *attempt) run() error {
	defer a.boundStop()()
	a.set(a, nil)
	var watch sync.WaitGroup
	watch.Go(a.watchLag)
	err := a.goka.Run(a.ctx)
	cause := context.Cause(a.ctx)
	a.cancel(nil)
	watch.Wait()
	a.closeStateless()
	switch {
	case cause != nil:
		return cause
	case err != nil:
		return oneLine(err)
	}
	return errors.New("goka's processor stopped by itself")
}

// boundStop bounds how long a stop may take once ctx has ended, even when
// Kafka does not answer any more.
func (a *attempt) boundStop() (stopped func()) {
	if a.cfg.weak.has(WithoutBoundedStop) {
		return func() {}
	}
	done := make(chan struct{})
	stop := context.AfterFunc(a.ctx, func() {
		if wait(done, ackGrace) {
			return
		}
		a.producer.stop(errors.New("stopped before every record was acked"))
		if !wait(done, cutGrace) {
			a.line.cut()
		}
	})
	return func() {
		stop()
		close(done)
	}
}

// wait says whether done was closed within d.
func wait(done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// oneLine writes goka's lists of errors as one line.
func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(err.Error()), " "))
}

// outputs are the partition counts of every topic that the group may write.
func (a *attempt) outputs() (map[string]int, error) {
	g := a.cfg.Topology.Group(a.cfg.Group)
	names := g.Outputs
	if g.Table != "" {
		names = append([]string{g.Table}, names...)
	}
	counts := map[string]int{}
	for _, name := range names {
		s := a.cfg.Topology.Stream(name)
		if err := a.logs.EnsureStreamExists(s.Topic, s.Partitions); err != nil {
			return nil, err
		}
		counts[s.Topic] = s.Partitions
	}
	return counts, nil
}

// knowInputs notes which incarnation of each input topic this attempt reads.
func (a *attempt) knowInputs() error {
	a.inputs = map[string]uint32{}
	for _, name := range a.cfg.Topology.Group(a.cfg.Group).Inputs {
		topic := a.cfg.Topology.Topic(name)
		d, err := a.logs.detail(topic)
		if err != nil {
			return err
		}
		a.inputs[topic] = binary.BigEndian.Uint32(d.ID[:4])
	}
	return nil
}

func (a *attempt) build() (*goka.Processor, error) {
	g := a.cfg.Topology.Group(a.cfg.Group)
	var edges []goka.Edge
	for _, in := range g.Inputs {
		edges = append(edges, goka.Input(goka.Stream(a.cfg.Topology.Topic(in)), rawCodec{}, a.consume))
	}
	if a.stores != nil {
		edges = append(edges, goka.Persist(rawCodec{}))
	}
	member, err := a.cfg.Client.sarama(a.instance(), a.line)
	if err != nil {
		return nil, err
	}
	reader, err := a.cfg.Client.sarama("", a.line)
	if err != nil {
		return nil, err
	}
	if err := advertise(member, a.cfg.Advertise); err != nil {
		return nil, err
	}
	options := []goka.ProcessorOption{
		goka.WithClientID(a.cfg.Client.ClientID),
		goka.WithLogger(gokaLog{a.log}),
		goka.WithHasher(func() hash.Hash32 { return new(topology.KeyHash) }),
		goka.WithNilHandling(goka.NilProcess),
		goka.WithPartitionChannelSize(1000),
		goka.WithTopicManagerBuilder(func([]string) (goka.TopicManager, error) { return a.logs, nil }),
		goka.WithConsumerGroupBuilder(a.membership(member)),
		goka.WithConsumerSaramaBuilder(goka.SaramaConsumerBuilderWithConfig(reader)),
		goka.WithProducerBuilder(func([]string, string, func() hash.Hash32) (goka.Producer, error) { return a.producer, nil }),
		goka.WithRebalanceCallback(a.assign),
	}
	if a.stores != nil {
		options = append(options, goka.WithStorageBuilder(a.storage), goka.WithUpdateCallback(a.update))
	}
	if a.cfg.HotStandby {
		options = append(options, goka.WithHotStandby())
	}
	p, err := goka.NewProcessor(a.cfg.Client.Brokers, goka.DefineGroup(goka.Group(g.ID), edges...), options...)
	if err != nil {
		return nil, fmt.Errorf("building group %s: %w", g.ID, oneLine(err))
	}
	return p, nil
}

// instance makes the member static; "" makes it dynamic.
func (a *attempt) instance() string {
	if a.cfg.weak.has(WithoutStaticMember) {
		return ""
	}
	return a.cfg.Instance + "." + a.cfg.Group
}

// rawCodec hands bytes through.
type rawCodec struct{}

func (rawCodec) Encode(v any) ([]byte, error)    { return v.([]byte), nil }
func (rawCodec) Decode(data []byte) (any, error) { return data, nil }

func (a *attempt) fail(err error) {
	a.cancel(err)
	a.producer.stop(err)
}

// consume is goka's callback: it runs the handler and defers the commit behind
// everything that is under way on the partition (I17).
func (a *attempt) consume(ctx goka.Context, m any) {
	done := ctx.DeferCommit()
	if err := a.producer.err(); err != nil {
		done(err)
		return
	}
	value, _ := m.([]byte)
	r := Record{Topic: string(ctx.Topic()), Key: ctx.Key(), Value: value, Partition: int(ctx.Partition()), Offset: ctx.Offset(), Timestamp: ctx.Timestamp()}
	p, err := a.handle(r)
	if err != nil {
		err = fmt.Errorf("handling %s/%d at offset %d: %w", r.Topic, r.Partition, r.Offset, err)
		a.fail(err)
		done(err)
		return
	}
	a.metrics.records.Inc()
	if a.cfg.weak.has(WithoutBarrier) {
		done(nil)
		return
	}
	p.lane.barrier(done)
}

func (a *attempt) handle(r Record) (p *Partition, err error) {
	if p, err = a.partition(r.Partition); err != nil {
		return nil, err
	}
	return p, a.guard(func() error { return a.cfg.Handle(p, r) })
}

// guard turns a panic of f into an error.
func (a *attempt) guard(f func() error) (err error) {
	defer func() {
		if x := recover(); x != nil {
			err = fmt.Errorf("panic: %v", x)
			a.log.Error("code of the processor panicked", "panic", x, "stack", string(debug.Stack()))
		}
	}()
	return f()
}

// watchLag computes the input lag; goka's own figure is always 0. It also
// notices when Kafka does not answer.
func (a *attempt) watchLag() {
	tick := time.NewTicker(a.cfg.lagInterval)
	defer tick.Stop()
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
		a.reportRecovery()
		ctx, cancel := context.WithTimeout(a.ctx, a.cfg.lagInterval)
		lags, err := a.logs.admin.Lag(ctx, a.group)
		cancel()
		a.mu.Lock()
		a.silent = err
		a.mu.Unlock()
		if err != nil {
			continue
		}
		for _, l := range lags[a.group].Lag.Sorted() {
			a.metrics.lag.WithLabelValues(l.Topic, fmt.Sprint(l.Partition)).Set(float64(max(0, l.Lag)))
		}
	}
}

func (a *attempt) reportRecovery() {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if n := len(a.recovering); n > 0 {
		r := a.progress()
		a.log.Info("reading the table's log", "partitions", n, "records", r.done, "of", r.all, "percent", r.percent(), "left", r.left.Round(time.Second))
	}
}

func (a *attempt) note(err error) {
	a.log.Debug("consumer group", "error", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.noted = err
}

// calm is how long an attempt must have run after a failure before it counts
// as ready: what failed often fails again at once.
const calm = 2 * time.Second

func (a *attempt) ready() error {
	if err := context.Cause(a.ctx); err != nil {
		return err
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	joined := a.joined.Load()
	switch n := len(a.recovering); {
	case a.silent != nil:
		return fmt.Errorf("group %s: kafka does not answer: %w", a.group, a.silent)
	case n > 0:
		return a.not(fmt.Sprintf("reading the log of %d partitions, %s", n, a.progress()))
	case !a.goka.Recovered() || joined == 0:
		return a.not("joining")
	case a.after != nil && time.Since(time.Unix(0, joined)) < calm:
		return a.not("just running again")
	}
	return nil
}

// recovery is how far the logs of a member's partitions are read.
type recovery struct {
	done, all int64         // records, or what compaction has left of them
	left      time.Duration // at the pace so far; 0: not known
}

func (r recovery) percent() int64 { return 100 * r.done / max(1, r.all) }

func (r recovery) String() string {
	s := fmt.Sprintf("%d of %d records, %d %%", r.done, r.all, r.percent())
	if r.left > 0 {
		s += fmt.Sprintf(", about %v left", max(time.Second, r.left.Round(time.Second)))
	}
	return s
}

// progress is of all partitions that were taken over together, those that are
// read already included. The caller holds the lock.
func (a *attempt) progress() (r recovery) {
	for _, p := range a.partitions {
		done, all := p.store.progress()
		r.done, r.all = r.done+done, r.all+all
	}
	if r.done > 0 {
		r.left = time.Duration(float64(time.Since(a.reading)) * float64(r.all-r.done) / float64(r.done))
	}
	return r
}

// not says what the attempt is doing instead, and what is known of why.
func (a *attempt) not(doing string) error {
	err := fmt.Errorf("group %s: %s", a.group, doing)
	if a.after != nil {
		err = fmt.Errorf("%w, built anew after: %w", err, a.after)
	}
	if a.noted != nil {
		err = fmt.Errorf("%w (consumer group: %w)", err, a.noted)
	}
	return err
}

func (a *attempt) storage(_ string, partition int32) (storage.Storage, error) {
	return &gokaStorage{stores: a.stores, partition: int(partition), logs: a.logs, keeper: a}, nil
}

// update takes a record of the table's log.
func (a *attempt) update(ctx goka.UpdateContext, _ storage.Storage, key string, value []byte) error {
	_, err := a.stores.replay(ctx, key, value)
	if err != nil && a.ctx.Err() == nil {
		a.fail(err)
	}
	return err
}
