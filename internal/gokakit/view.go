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
	// OnUpdate is told of each record of the table after reads see it, one
	// call at a time per partition; optional. It must not block for long.
	OnUpdate   func(key string, value []byte)
	Logger     *slog.Logger
	Registerer prometheus.Registerer // optional
}

// View is a local, always current copy of a whole table.
type View struct {
	cfg    ViewConfig
	table  topology.Stream
	stores *stores
	log    *slog.Logger

	mu        sync.RWMutex
	why       error        // why it does not follow its table; nil while it does
	recovered map[int]bool // partitions read to their end since they were opened
	readable  atomic.Bool  // why is nil and every partition recovered
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
		recovered: map[int]bool{},
		stores:    newStores(s.Topic, cfg.Schema, cfg.StateDir, 0, m, nil, log)}, nil
}

// Run follows the table until ctx ends, through lost brokers and failures; it
// returns nil then.
func (v *View) Run(ctx context.Context) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 100*time.Millisecond, 10*time.Second
	for {
		err := v.follow(ctx)
		if ctx.Err() != nil {
			v.set(errors.New("stopped"))
			return nil
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
	v.readable.Store(v.unready() == nil)
}

func (v *View) mark(partition int, recovered bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.recovered[partition] = recovered
	v.readable.Store(v.unready() == nil)
}

// follow builds goka's view and runs it. Goka never closes the clients that it
// built for a view, so they are kept and closed here.
func (v *View) follow(ctx context.Context) error {
	logs, err := v.cfg.Client.topics()
	if err != nil {
		return err
	}
	defer logs.Close()
	if err := logs.EnsureTableExists(v.table.Topic, v.table.Partitions); err != nil {
		return err
	}
	var consumer sarama.Consumer
	defer func() {
		if consumer != nil {
			_ = consumer.Close()
		}
	}()
	options := []goka.ViewOption{
		goka.WithViewClientID(v.cfg.Client.ClientID),
		goka.WithViewLogger(gokaLog{v.log}),
		goka.WithViewHasher(func() hash.Hash32 { return new(topology.KeyHash) }),
		goka.WithViewTopicManagerBuilder(func([]string) (goka.TopicManager, error) { return unclosed{logs}, nil }),
		goka.WithViewConsumerSaramaBuilder(func(brokers []string, clientID string) (c sarama.Consumer, err error) {
			consumer, err = goka.SaramaConsumerBuilderWithConfig(v.cfg.Client.sarama(""))(brokers, clientID)
			return consumer, err
		}),
		goka.WithViewStorageBuilder(func(_ string, partition int32) (storage.Storage, error) {
			return v.storage(logs, int(partition)), nil
		}),
		goka.WithViewCallback(v.update),
		goka.WithViewBackoffBuilder(func() (goka.Backoff, error) { return goka.NewSimpleBackoff(time.Second, 5*time.Second), nil }),
		goka.WithViewAutoReconnect(),
	}
	g, err := goka.NewView(v.cfg.Client.Brokers, goka.Table(v.table.Topic), rawCodec{}, options...)
	if err != nil {
		return fmt.Errorf("building the view: %w", err)
	}
	v.set(nil)
	if err := g.Run(ctx); err != nil {
		return err
	}
	return errors.New("goka's view stopped by itself")
}

// unclosed is a topic manager that several users share.
type unclosed struct{ *topics }

func (unclosed) Close() error { return nil }

func (v *View) storage(logs *topics, partition int) storage.Storage {
	return &gokaStorage{stores: v.stores, partition: partition, logs: logs,
		opened:    func(*store) {},
		recovered: func(*store) error { v.mark(partition, true); return nil },
		closing:   func(*store) { v.mark(partition, false) }}
}

func (v *View) update(ctx goka.UpdateContext, s storage.Storage, key string, value []byte) error {
	if err := v.stores.update(ctx, s, key, value); err != nil {
		return err
	}
	if v.cfg.OnUpdate != nil {
		v.cfg.OnUpdate(key, value)
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
		if !v.recovered[partition] {
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
