package gokakit

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/cenkalti/backoff/v5"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lovoo/goka"
	"github.com/lovoo/goka/storage"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/topology"
)

// ViewConfig says which table a view follows and where it keeps its copy.
type ViewConfig struct {
	Client   Client
	Topology *topology.Topology
	Table    string // a table of the topology, such as topology.DisplayTable
	Schema   Schema
	StateDir string
	// OnUpdate is told of each record that changed the table, after reads see
	// it, one call at a time per partition; optional. It must not block for
	// long.
	OnUpdate   func(key string, value []byte)
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional

	weak Weakness
	fs   vfs.FS
}

// View is a local, always current copy of a whole table.
type View struct {
	cfg    ViewConfig
	table  topology.Stream
	stores *stores
	log    *slog.Logger

	mu         sync.RWMutex
	why        error          // why it does not follow its table; nil while it does
	partitions map[int]viewed // by number
	readable   atomic.Bool    // why is nil and every partition is read to its end
}

// viewed is a partition of a view.
type viewed struct {
	store     *store // nil when it is not open
	recovered bool   // read to its end since it was opened
}

// ErrRecovering says that a view has not read its table to the end yet: what
// it would answer is not known to be true.
var ErrRecovering = errors.New("the view is still reading its table")

// NewView checks the configuration; it does not talk to Kafka yet.
func NewView(cfg ViewConfig) (*View, error) {
	cfg.Client = cfg.Client.withDefaults()
	if err := cfg.Client.check(); err != nil {
		return nil, err
	}
	s := cfg.Topology.Stream(cfg.Table)
	switch {
	case !s.Table:
		return nil, fmt.Errorf("view of %s: it is a stream, not a table", s.Topic)
	case cfg.Schema == nil:
		return nil, fmt.Errorf("view of %s: no schema given", s.Topic)
	case cfg.StateDir == "":
		return nil, fmt.Errorf("view of %s: no state directory given", s.Topic)
	}
	m, err := newMetrics(cfg.Registerer, "view."+cfg.Table)
	if err != nil {
		return nil, fmt.Errorf("view of %s: registering metrics: %w", s.Topic, err)
	}
	log := cfg.Logger.With("component", "view", "table", s.Topic)
	return &View{cfg: cfg, table: s, log: log, why: errors.New("not started"),
		partitions: map[int]viewed{},
		stores: newStores(s.Topic, s.Partitions, cfg.Schema, cfg.StateDir,
			storeOptions{metrics: m, fs: cfg.fs, weak: cfg.weak}, log)}, nil
}

// Run follows the table until ctx ends, through lost brokers and failures; it
// returns nil then.
func (v *View) Run(ctx context.Context) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 10*time.Second
	v.set(errors.New("connecting to kafka"))
	for {
		start := time.Now()
		err := v.follow(ctx)
		if ctx.Err() != nil {
			v.set(errors.New("stopped"))
			return nil
		}
		if time.Since(start) > time.Minute {
			wait.Reset()
		}
		pause := wait.NextBackOff()
		v.set(fmt.Errorf("building anew after: %w", err))
		v.log.Warn("view failed, building it anew", "error", err, "pause", pause)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (v *View) set(why error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.why = why
	v.judge()
}

// follower is one life of a view, until its first failure.
type follower struct {
	*View
	ctx    context.Context
	cancel context.CancelCauseFunc
	logs   *topics
	line   *lifeline
}

func (v *View) follow(parent context.Context) error {
	f := &follower{View: v, line: v.cfg.Client.newLifeline()}
	f.ctx, f.cancel = context.WithCancelCause(parent)
	defer f.cancel(nil) // ends goka's state observers too
	defer f.line.cut()
	var err error
	if f.logs, err = v.cfg.Client.topics(f.ctx); err != nil {
		return err
	}
	defer f.logs.close()
	if err := f.logs.EnsureTableExists(v.table.Topic, v.table.Partitions); err != nil {
		return err
	}
	// What the view reads with has nothing to finish.
	stop := context.AfterFunc(f.ctx, f.line.cut)
	defer stop()
	return f.run()
}

// run builds goka's view and runs it. Goka never closes the client that it
// built for a view, so it is kept and closed here.
func (f *follower) run() error {
	var consumer sarama.Consumer
	defer func() {
		if consumer != nil {
			_ = consumer.Close()
		}
	}()
	g, err := goka.NewView(f.cfg.Client.Brokers, goka.Table(f.table.Topic), rawCodec{},
		goka.WithViewClientID(f.cfg.Client.ClientID),
		goka.WithViewLogger(gokaLog{f.log}),
		goka.WithViewHasher(func() hash.Hash32 { return new(topology.KeyHash) }),
		goka.WithViewTopicManagerBuilder(func([]string) (goka.TopicManager, error) { return f.logs, nil }),
		goka.WithViewConsumerSaramaBuilder(func(brokers []string, clientID string) (c sarama.Consumer, err error) {
			reader, err := f.cfg.Client.sarama("", f.line)
			if err != nil {
				return nil, err
			}
			consumer, err = goka.SaramaConsumerBuilderWithConfig(reader)(brokers, clientID)
			return consumer, err
		}),
		goka.WithViewStorageBuilder(func(_ string, partition int32) (storage.Storage, error) {
			return &gokaStorage{stores: f.stores, partition: int(partition), logs: f.logs, keeper: f}, nil
		}),
		goka.WithViewCallback(f.update),
		goka.WithViewBackoffBuilder(func() (goka.Backoff, error) { return goka.NewSimpleBackoff(time.Second, 5*time.Second), nil }),
		goka.WithViewAutoReconnect(),
	)
	if err != nil {
		return fmt.Errorf("building the view: %w", oneLine(err))
	}
	f.set(nil)
	err = g.Run(f.ctx)
	if cause := context.Cause(f.ctx); cause != nil {
		return cause
	}
	if err != nil {
		return oneLine(err)
	}
	return errors.New("goka's view stopped by itself")
}

func (f *follower) fail(err error) { f.cancel(err) }

func (f *follower) opened(n int, s *store) { f.hold(n, s) }

// load leaves the whole log to goka: OnUpdate is told of each change.
func (f *follower) load(int, *store) error { return nil }

// recovered must not make a partition readable that is closed, or that is not
// read to its end.
func (f *follower) recovered(n int, s *store) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.partitions[n].store == s && f.ctx.Err() == nil && s.whole() {
		f.partitions[n] = viewed{s, true}
		f.judge()
	}
	return nil
}

func (f *follower) closing(n int, _ *store) { f.hold(n, nil) }

// hold notes a partition's store that is not read to the end; nil for none.
func (v *View) hold(n int, s *store) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.partitions[n] = viewed{s, false}
	v.judge()
}

// judge computes readable. The caller holds the lock.
func (v *View) judge() { v.readable.Store(v.unready() == nil) }

func (f *follower) update(ctx goka.UpdateContext, _ storage.Storage, key string, value []byte) error {
	changed, err := f.stores.replay(ctx, key, value)
	if err != nil {
		if f.ctx.Err() == nil {
			f.fail(err)
		}
		return err
	}
	if changed && f.cfg.OnUpdate != nil {
		f.cfg.OnUpdate(key, value)
	}
	return nil
}

// Ready is nil when the view has read its table to the end, and else says what
// it is doing. ErrRecovering is in the chain. A view that loses Kafka later
// stays readable: what it answers grows stale, which its rows tell.
func (v *View) Ready() error {
	if v.readable.Load() {
		return nil
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.unready()
}

func (v *View) unready() error {
	switch {
	case v.why != nil:
		return fmt.Errorf("view of %s: %w: %w", v.table.Topic, ErrRecovering, v.why)
	}
	for partition := range v.table.Partitions {
		if !v.partitions[partition].recovered && !v.cfg.weak.has(WithoutRecoveryGate) {
			return fmt.Errorf("view of %s: partition %d: %w", v.table.Topic, partition, ErrRecovering)
		}
	}
	return nil
}

// Get reads a key's value; nil when there is none. The caller must not change
// it. While the view recovers it answers ErrRecovering, never a value that may
// be old.
func (v *View) Get(key string) ([]byte, error) {
	if err := v.Ready(); err != nil {
		return nil, err
	}
	return v.get(key)
}

func (v *View) get(key string) ([]byte, error) {
	partition, err := topology.PartitionOf(key, v.table.Partitions)
	if err != nil {
		return nil, fmt.Errorf("view of %s: %w", v.table.Topic, err)
	}
	s := v.stores.get(partition)
	if s == nil {
		return nil, fmt.Errorf("view of %s: partition %d: %w", v.table.Topic, partition, ErrRecovering)
	}
	return s.get(key)
}

// Scan visits every value of the table, partition by partition, in key order,
// each partition as of one moment.
func (v *View) Scan(visit func(key string, value []byte) error) error {
	if err := v.Ready(); err != nil {
		return err
	}
	for partition := range v.table.Partitions {
		s := v.stores.get(partition)
		if s == nil {
			return fmt.Errorf("view of %s: partition %d: %w", v.table.Topic, partition, ErrRecovering)
		}
		if err := s.scan(visit); err != nil {
			return err
		}
	}
	return nil
}
