package gokakit

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lovoo/goka"
	"github.com/lovoo/goka/storage"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/topology"
)

// ProcessorConfig says what a processor does and where it runs.
type ProcessorConfig struct {
	Client   Client
	Topology *topology.Topology
	Group    string // a group of the topology, such as topology.ProjectionGroup
	Schema   Schema // of the group's table; nil when it has none
	Handle   Handler
	// NewOwner makes what accompanies a partition while it is owned; optional.
	NewOwner func(p *Partition) Owner
	// StateDir holds the partitions' stores; needed with a table.
	StateDir string
	// Instance is unique among the group's processes: it makes membership
	// static, so that a restart does not move partitions.
	Instance   string
	HotStandby bool // keep the other partitions' tables warm
	// WriteBehind is how many bytes of acked rows a partition gathers in RAM
	// before it writes them to its store; default 4 MiB.
	WriteBehind int
	Logger      *slog.Logger
	Registerer  prometheus.Registerer // optional

	weak Weakness
	fs   vfs.FS
}

// Processor runs a group's member for ever: when it fails, it is thrown away
// and built anew with backoff, while the process stays up and Ready says why.
type Processor struct {
	cfg     ProcessorConfig
	group   string
	table   string
	metrics *metrics
	stores  *stores // nil without a table
	log     *slog.Logger

	mu      sync.Mutex
	why     error // why it is not running; nil while an attempt runs
	current *attempt
}

// NewProcessor checks the configuration; it does not talk to Kafka yet.
func NewProcessor(cfg ProcessorConfig) (*Processor, error) {
	cfg.Client = cfg.Client.withDefaults()
	if err := cfg.Client.check(); err != nil {
		return nil, err
	}
	g := cfg.Topology.Group(cfg.Group)
	switch {
	case cfg.Handle == nil:
		return nil, fmt.Errorf("group %s: no handler given", g.ID)
	case cfg.Instance == "":
		return nil, fmt.Errorf("group %s: no instance name given", g.ID)
	case (g.Table != "") != (cfg.Schema != nil):
		return nil, fmt.Errorf("group %s: a table needs a schema, and a schema a table", g.ID)
	case g.Table != "" && cfg.StateDir == "":
		return nil, fmt.Errorf("group %s: no state directory given", g.ID)
	}
	m, err := newMetrics(cfg.Registerer, cfg.Group)
	if err != nil {
		return nil, fmt.Errorf("group %s: registering metrics: %w", g.ID, err)
	}
	p := &Processor{cfg: cfg, group: g.ID, metrics: m, log: cfg.Logger.With("component", cfg.Group), why: errors.New("not started")}
	if g.Table != "" {
		p.table = cfg.Topology.Topic(g.Table)
		p.stores = newStores(p.table, cfg.Schema, cfg.StateDir, cfg.WriteBehind, m, cfg.fs, p.log)
		p.stores.opts.weak = cfg.weak
	}
	return p, nil
}

// Weaken switches mechanisms off, for tests and drills that must be able to
// fail. It must be called before Run.
func (p *Processor) Weaken(w Weakness) {
	p.cfg.weak = w
	if p.stores != nil {
		p.stores.opts.weak = w
	}
}

// Ready is nil while the processor consumes, and else says why it does not.
func (p *Processor) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != nil {
		return p.why
	}
	return p.current.ready()
}

// Run runs until ctx ends; it always returns nil then.
func (p *Processor) Run(ctx context.Context) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 10*time.Second
	for {
		start := time.Now()
		err := p.attempt(ctx)
		if ctx.Err() != nil {
			p.set(nil, errors.New("stopped"))
			return nil
		}
		if time.Since(start) > time.Minute {
			wait.Reset()
		}
		pause := wait.NextBackOff()
		p.set(nil, fmt.Errorf("building anew after: %w", err))
		p.metrics.rebuilds.Inc()
		p.log.Warn("processor failed, building it anew", "error", err, "pause", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (p *Processor) set(a *attempt, why error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.current, p.why = a, why
}

// attempt is one life of the processor, from building to its first failure.
type attempt struct {
	*Processor
	ctx      context.Context
	cancel   context.CancelCauseFunc
	logs     *topics
	goka     *goka.Processor
	producer *producer

	mu         sync.Mutex
	assigned   map[int]bool
	partitions map[int]*Partition
	recovering map[int]bool
}

// stopGrace is how long a stopping processor waits for acks.
const stopGrace = 3 * time.Second

func (p *Processor) attempt(parent context.Context) error {
	a := &attempt{Processor: p, assigned: map[int]bool{}, partitions: map[int]*Partition{}, recovering: map[int]bool{}}
	a.ctx, a.cancel = context.WithCancelCause(parent)
	defer a.cancel(nil)
	var err error
	if a.logs, err = p.cfg.Client.topics(); err != nil {
		return err
	}
	defer a.logs.Close()
	outputs, err := a.outputs()
	if err != nil {
		return err
	}
	if a.producer, err = newProducer(p.cfg.Client, outputs, p.metrics, func(err error) { a.cancel(err) }); err != nil {
		return err
	}
	defer a.producer.Close()
	if a.goka, err = a.build(); err != nil {
		return err
	}
	stop := context.AfterFunc(a.ctx, func() {
		time.AfterFunc(stopGrace, func() { a.producer.fail(errors.New("stopped before every record was acked")) })
	})
	defer stop()
	p.set(a, nil)
	go a.watchLag()
	err = a.goka.Run(a.ctx)
	a.closeStateless()
	if cause := context.Cause(a.ctx); cause != nil {
		err = cause
	}
	if err == nil {
		err = errors.New("goka's processor stopped by itself")
	}
	return err
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

func (a *attempt) build() (*goka.Processor, error) {
	g := a.cfg.Topology.Group(a.cfg.Group)
	var edges []goka.Edge
	for _, in := range g.Inputs {
		edges = append(edges, goka.Input(goka.Stream(a.cfg.Topology.Topic(in)), rawCodec{}, a.consume))
	}
	if a.stores != nil {
		edges = append(edges, goka.Persist(rawCodec{}))
	}
	cfg := a.cfg.Client.sarama(a.cfg.Instance + "." + a.cfg.Group)
	views := a.cfg.Client.sarama("")
	options := []goka.ProcessorOption{
		goka.WithClientID(a.cfg.Client.ClientID),
		goka.WithLogger(gokaLog{a.log}),
		goka.WithHasher(func() hash.Hash32 { return new(topology.KeyHash) }),
		goka.WithNilHandling(goka.NilProcess),
		goka.WithPartitionChannelSize(1000),
		goka.WithTopicManagerBuilder(func([]string) (goka.TopicManager, error) { return a.cfg.Client.topics() }),
		goka.WithConsumerGroupBuilder(goka.ConsumerGroupBuilderWithConfig(cfg)),
		goka.WithConsumerSaramaBuilder(goka.SaramaConsumerBuilderWithConfig(views)),
		goka.WithProducerBuilder(func([]string, string, func() hash.Hash32) (goka.Producer, error) { return a.producer, nil }),
		goka.WithRebalanceCallback(a.assign),
	}
	if a.stores != nil {
		options = append(options, goka.WithStorageBuilder(a.storage), goka.WithUpdateCallback(a.stores.update))
	}
	if a.cfg.HotStandby {
		options = append(options, goka.WithHotStandby())
	}
	p, err := goka.NewProcessor(a.cfg.Client.Brokers, goka.DefineGroup(goka.Group(g.ID), edges...), options...)
	if err != nil {
		return nil, fmt.Errorf("building group %s: %w", g.ID, err)
	}
	return p, nil
}

// rawCodec hands bytes through.
type rawCodec struct{}

func (rawCodec) Encode(v any) ([]byte, error)    { return v.([]byte), nil }
func (rawCodec) Decode(data []byte) (any, error) { return data, nil }

func (a *attempt) fail(err error) {
	a.cancel(err)
	a.producer.fail(err)
}

// consume is goka's callback: it runs the handler and defers the commit behind
// everything that is under way on the partition (I17).
func (a *attempt) consume(ctx goka.Context, m any) {
	done := ctx.DeferCommit()
	if err := a.producer.err(); err != nil {
		done(err)
		return
	}
	p := a.partition(int(ctx.Partition()))
	value, _ := m.([]byte)
	r := Record{Topic: string(ctx.Topic()), Key: ctx.Key(), Value: value, Partition: p.number, Offset: ctx.Offset(), Timestamp: ctx.Timestamp()}
	if err := a.cfg.Handle(p, r); err != nil {
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

func (a *attempt) assign(claims goka.Assignment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.assigned)
	for partition := range claims {
		a.assigned[int(partition)] = true
	}
}

// partition finds a partition, or makes that of a stateless processor.
func (a *attempt) partition(number int) *Partition {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.partitions[number]
	if p == nil {
		p = &Partition{number: number, lane: newLane(a.producer, nil, "", nil)}
		a.partitions[number] = p
	}
	return p
}

func (a *attempt) storage(_ string, partition int32) (storage.Storage, error) {
	n := int(partition)
	return &gokaStorage{
		stores: a.stores, partition: n, logs: a.logs,
		opened:    func(s *store) { a.opened(n, s) },
		recovered: func(s *store) error { return a.recovered(n, s) },
		closing:   func(s *store) { a.closing(n, s) },
	}, nil
}

func (a *attempt) opened(n int, s *store) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := &Partition{number: n, store: s, client: a.cfg.Client, table: a.table}
	if a.cfg.NewOwner != nil {
		p.owner = a.cfg.NewOwner(p)
	}
	p.lane = newLane(a.producer, s, a.table, p.owner)
	a.partitions[n] = p
	a.recovering[n] = true
}

// recovered runs once the log is read to its end; goka also calls it for
// standby partitions and when it was stopped in between, so only an assigned
// partition of a live attempt is owned.
func (a *attempt) recovered(n int, s *store) error {
	a.mu.Lock()
	p := a.partitions[n]
	owned := a.assigned[n] && a.ctx.Err() == nil && p != nil && p.store == s
	delete(a.recovering, n)
	a.mu.Unlock()
	if !owned {
		return nil
	}
	return p.own(a)
}

func (a *attempt) closing(n int, s *store) {
	a.mu.Lock()
	p := a.partitions[n]
	if p == nil || p.store != s {
		a.mu.Unlock()
		return
	}
	delete(a.partitions, n)
	delete(a.recovering, n)
	a.mu.Unlock()
	p.lose()
}

// closeStateless ends the lanes of a processor without a table.
func (a *attempt) closeStateless() {
	a.producer.fail(errors.New("the processor stopped"))
	a.mu.Lock()
	defer a.mu.Unlock()
	for n, p := range a.partitions {
		p.lane.close()
		delete(a.partitions, n)
	}
}

func (a *attempt) ready() error {
	if err := context.Cause(a.ctx); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.recovering); n > 0 {
		return fmt.Errorf("group %s: reading the log of %d partitions", a.group, n)
	}
	if !a.goka.Recovered() {
		return fmt.Errorf("group %s: joining", a.group)
	}
	return nil
}

const lagInterval = 5 * time.Second

// watchLag computes the input lag; goka's own figure is always 0.
func (a *attempt) watchLag() {
	tick := time.NewTicker(lagInterval)
	defer tick.Stop()
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(a.ctx, lagInterval)
		lags, err := a.logs.admin.Lag(ctx, a.group)
		cancel()
		if err != nil {
			continue
		}
		for _, l := range lags[a.group].Lag.Sorted() {
			a.metrics.lag.WithLabelValues(l.Topic, fmt.Sprint(l.Partition)).Set(float64(max(0, l.Lag)))
		}
	}
}
