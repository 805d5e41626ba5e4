package cachefloor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// endings are generations that have ended.
type endings struct {
	mu    sync.Mutex
	ended map[uint64]bool
}

func (e *endings) Ended(g cache.Generation) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended[g.ID]
}

func (e *endings) end(id uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended == nil {
		e.ended = map[uint64]bool{}
	}
	e.ended[id] = true
}

// rig is a broker, a Redis and a topology of two shards.
type rig struct {
	t       *testing.T
	topo    *topology.Topology
	brokers []string
	kafka   *kgo.Client
	url     string
	cache   *cache.Client
	raw     *redis.Client
	lives   *endings
	watch   Lives // in place of lives, if set
	dir     string
}

func newRig(t *testing.T) *rig {
	r := &rig{
		t: t, topo: testenv.Topology(t, func(c *topology.Config) { c.Shards = 2 }), brokers: testenv.Kafka(t),
		url: testenv.Redis(t), lives: &endings{}, dir: t.TempDir(),
	}
	testenv.CreateTopics(t, r.brokers, r.topo)
	var err error
	if r.kafka, err = kafkaadmin.Client(r.brokers, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kafka.Close)
	r.cache = r.open(r.url)
	o, err := redis.ParseURL(r.url)
	if err != nil {
		t.Fatal(err)
	}
	r.raw = redis.NewClient(o)
	t.Cleanup(func() { _ = r.raw.Close() })
	return r
}

func (r *rig) open(url string) *cache.Client {
	r.t.Helper()
	c, err := cache.Open(cache.Config{URL: url, Timeout: 5 * time.Second})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

func logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// start runs the processor until stop is called.
func (r *rig) start(c *cache.Client) (stop func()) {
	r.t.Helper()
	lives := r.watch
	if lives == nil {
		lives = r.lives
	}
	f, err := New(Config{
		Client: gokakit.Client{Brokers: r.brokers, Session: 2 * time.Second}, Topology: r.topo, Cache: c, Lives: lives,
		StateDir: r.dir, Instance: "one", Logger: logger(),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	r.t.Cleanup(stop)
	return stop
}

func generation(id uint64) cache.Generation {
	return cache.Generation{Family: cache.Relations, ID: id, Deployment: "d1", Buckets: 1}
}

func like(user, target string, version uint64) cache.Relation {
	state := topology.Liked
	if version%2 == 0 {
		state = topology.Unliked
	}
	return cache.Relation{Relation: topology.Relation{Kind: topology.Like, User: user, Target: target}, State: state, Version: version}
}

func (r *rig) produce(records ...*kgo.Record) {
	r.t.Helper()
	if err := r.kafka.ProduceSync(r.t.Context(), records...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
}

// fact is of shard 1, as all users of these tests are.
func (r *rig) fact(c cache.Relation) *kgo.Record {
	r.t.Helper()
	value, err := (&tidemarkv1.RelationChange{
		Kind: tidemarkv1.Kind(c.Kind), UserId: c.User, TargetId: c.Target, RelationVersion: c.Version, State: tidemarkv1.State(c.State), StateChangedAtUs: 1,
	}).MarshalVT()
	if err != nil {
		r.t.Fatal(err)
	}
	return &kgo.Record{Topic: r.topo.Topic(topology.Facts), Key: []byte(topology.OnPartition(1, c.Key())), Value: value}
}

func (r *rig) handover(generation uint64, c cache.Relation) *kgo.Record {
	return Handover(r.topo, 1, generation, c)
}

// begin stamps a generation and has every partition write it.
func (r *rig) begin(id uint64) {
	r.t.Helper()
	if err := r.cache.Stamp(r.t.Context(), generation(id)); err != nil {
		r.t.Fatal(err)
	}
	r.produce(beginTasks(r.topo, generation(id))...)
	r.settled(topology.CacheTasks)
}

// settled waits until everything in a stream has had its effect.
func (r *rig) settled(stream string) {
	r.t.Helper()
	group, topic := r.topo.Group(topology.CacheFloorGroup).ID, r.topo.Topic(stream)
	r.produce(&kgo.Record{Topic: topic, Key: []byte(topology.OnPartition(0, "~end")), Value: []byte{1}}, &kgo.Record{Topic: topic, Key: []byte(topology.OnPartition(1, "~end")), Value: []byte{1}})
	testenv.AwaitCommitted(r.t, r.kafka, group, topic)
}

// holds is what Redis says of a relation in a generation.
func (r *rig) holds(id uint64, user, target string) cache.Cached {
	r.t.Helper()
	got, err := r.cache.Relations(r.t.Context(), generation(id), topology.Like, user, []string{target})
	if err != nil {
		r.t.Fatal(err)
	}
	return got[0]
}

func (r *rig) wants(id uint64, user, target string, version uint64) {
	r.t.Helper()
	if got := r.holds(id, user, target); got.Version != version || got.Found != (version > 0) {
		r.t.Errorf("generation %d holds %s of %s as %+v, want version %d", id, target, user, got, version)
	}
}

// wantsNone wants Redis to say that there is no such relation.
func (r *rig) wantsNone(id uint64, user, target string) {
	r.t.Helper()
	if got := r.holds(id, user, target); got != (cache.Cached{Found: true, State: topology.Unliked}) {
		r.t.Errorf("generation %d holds %s of %s as %+v, want it not to be", id, target, user, got)
	}
}

func (r *rig) eventually(id uint64, user, target string, version uint64) {
	r.t.Helper()
	testenv.Eventually(r.t, 30*time.Second, func() error {
		got, err := r.cache.Relations(r.t.Context(), generation(id), topology.Like, user, []string{target})
		if err == nil && got[0].Version != version {
			err = fmt.Errorf("Redis holds %+v", got[0])
		}
		return err
	})
}

// inLog waits until the table's log has a key.
func (r *rig) inLog(key string) {
	r.t.Helper()
	cl, err := kafkaadmin.Client(r.brokers, nil, kgo.ConsumeTopics(r.topo.Topic(topology.CacheFloorTable)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), 30*time.Second)
	defer cancel()
	for found := false; !found; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			r.t.Fatalf("the table's log has no %s", key)
		}
		fetches.EachRecord(func(rec *kgo.Record) { found = found || string(rec.Key) == key })
	}
}
