package likers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Heads of these tests are short, and every list that is read is hot.
const (
	testHeadLength = 120 // of hundreds in a list of target hot
	testHotReads   = 60
)

func headGeneration(id uint64) cache.Generation {
	return cache.Generation{Family: cache.Heads, ID: id, Deployment: "test"}
}

func testHeads(c *cache.Client, active func() (cache.Generation, bool)) *HeadsConfig {
	return &HeadsConfig{Cache: c, Active: active, Length: testHeadLength, HotReads: testHotReads, window: 400 * time.Millisecond}
}

// readHot asks for the hot lists again and again, as query processes do.
func readHot(ctx context.Context, l *Likers) {
	for pause.For(ctx, 10*time.Millisecond) {
		for _, kind := range topology.Kinds() {
			for partition := range l.cfg.Reverse.ShardsByPartition(kind, "hot") {
				_, _ = l.List(ListQuery{Generation: l.cfg.Reverse.ID, Kind: kind, Target: "hot", Partition: partition, Limit: 1})
			}
		}
	}
}

// runHeadsChild is a process that keeps heads of generation 1.
func runHeadsChild(ctx context.Context, cfg Config, url string) error {
	client, err := cache.Open(cache.Config{URL: url, Timeout: 2 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	cfg.Heads = testHeads(client, func() (cache.Generation, bool) { return headGeneration(1), true })
	l, err := New(cfg)
	if err != nil {
		return err
	}
	go readHot(ctx, l)
	return l.Run(ctx)
}

// headsRig is traffic, a Redis, and what was read of heads there.
type headsRig struct {
	t       *testing.T
	brokers []string
	topo    *topology.Topology
	cfg     Config
	url     string
	kafka   *kgo.Client
	redis   *cache.Client
	raw     *redis.Client
	active  atomic.Uint64 // id of the generation; 0: none
	traffic *traffic

	mu      sync.Mutex
	samples map[int][]headSample // by partition
}

// headSample is a part as it was read once.
type headSample struct {
	kind topology.Kind
	part cache.HeadPart
}

func newHeadsRig(t *testing.T, url string, seed uint64) *headsRig {
	t.Helper()
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	r := &headsRig{t: t, brokers: brokers, topo: topo, url: url, kafka: producer(t, brokers), cfg: testConfig(brokers, topo, t.TempDir(), 0), samples: map[int][]headSample{}}
	r.traffic = newTraffic(seed, r.cfg.Reverse)
	var err error
	if r.redis, err = cache.Open(cache.Config{URL: url, Timeout: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.redis.Close() })
	o, err := redis.ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	r.raw = redis.NewClient(o)
	t.Cleanup(func() { _ = r.raw.Close() })
	r.begin(1)
	r.cfg.Heads = testHeads(r.redis, func() (cache.Generation, bool) { id := r.active.Load(); return headGeneration(id), id > 0 })
	return r
}

// begin stamps a generation and makes it the active one.
func (r *headsRig) begin(id uint64) {
	r.t.Helper()
	if err := r.redis.Stamp(r.t.Context(), headGeneration(id)); err != nil {
		r.t.Fatal(err)
	}
	r.active.Store(id)
}

// loaded sends traffic while do runs, and waits until all of it is applied by
// those who run then. At the end every part that was ever read must be what the
// table's log says at its offset.
func (r *headsRig) loaded(rate int, do func()) {
	r.t.Helper()
	stop, cancel := context.WithCancel(r.t.Context())
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() { r.traffic.send(r.t, r.kafka, r.topo, rate, stop) })
	running.Go(func() { r.sample(stop) })
	do()
	cancel()
	running.Wait()
}

func (r *headsRig) parts() (parts []cache.HeadRead) {
	for _, kind := range topology.Kinds() {
		for partition := range r.cfg.Reverse.ShardsByPartition(kind, "hot") {
			parts = append(parts, cache.HeadRead{HeadOf: cache.HeadOf{Kind: kind, Target: "hot", Reverse: r.cfg.Reverse.ID, Partition: partition}, Limit: 5000})
		}
	}
	return parts
}

// read reads every part once and says how many there are.
func (r *headsRig) read() (have, all int) {
	parts := r.parts()
	answers := r.redis.Heads(context.Background(), headGeneration(r.active.Load()), parts)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, a := range answers {
		if a.Err == nil {
			have++
			r.samples[parts[i].Partition] = append(r.samples[parts[i].Partition], headSample{parts[i].Kind, a})
		}
	}
	return have, len(parts)
}

// seen counts the parts that were read.
func (r *headsRig) seen() (whole, cut int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, samples := range r.samples {
		for _, s := range samples {
			if s.part.Whole {
				whole++
			} else {
				cut++
			}
		}
	}
	return whole, cut
}

func (r *headsRig) sample(ctx context.Context) {
	for pause.For(ctx, 15*time.Millisecond) {
		r.read()
	}
}

// await waits until every part stands.
func (r *headsRig) await() {
	r.t.Helper()
	testenv.Eventually(r.t, 30*time.Second, func() error {
		if have, all := r.read(); have < all {
			return fmt.Errorf("%d of %d parts stand", have, all)
		}
		return nil
	})
}

// check replays the log of each partition and compares each part that was read
// with the list as it was at its offset; it says how many it compared.
func (r *headsRig) check() (compared int, wrong string) {
	r.t.Helper()
	for partition, samples := range r.samples {
		slices.SortStableFunc(samples, func(a, b headSample) int { return int(a.part.Offset - b.part.Offset) })
		lists := map[topology.Kind]map[string]Entry{}
		for _, kind := range topology.Kinds() {
			lists[kind] = map[string]Entry{}
		}
		replay := r.log(partition)
		for _, s := range samples {
			for len(replay) > 0 && replay[0].Offset <= s.part.Offset {
				r.apply(lists, replay[0])
				replay = replay[1:]
			}
			if d := headDiffers(s.part, lists[s.kind]); d != "" {
				return compared, fmt.Sprintf("partition %d, a part of %v at offset %d, write %d of epoch %d: %s", partition, s.kind, s.part.Offset, s.part.Write, s.part.Epoch, d)
			}
			compared++
		}
	}
	return compared, ""
}

// mustCheck is check where nothing may be wrong.
func (r *headsRig) mustCheck() (compared int) {
	r.t.Helper()
	n, wrong := r.check()
	if wrong != "" {
		r.t.Fatal(wrong)
	}
	r.t.Logf("%d parts compared with the log", n)
	return n
}

// log has the records of a partition of the table.
func (r *headsRig) log(partition int) (records []*kgo.Record) {
	r.t.Helper()
	topic := r.topo.Topic(topology.LikersTable)
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {int32(partition): kgo.NewOffset().AtStart()}}))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	last := int64(-1)
	for _, s := range r.samples[partition] {
		last = max(last, s.part.Offset)
	}
	for len(records) == 0 || records[len(records)-1].Offset < last {
		fetches := cl.PollFetches(r.t.Context())
		if err := fetches.Err(); err != nil {
			r.t.Fatal(err)
		}
		records = append(records, fetches.Records()...)
	}
	return records
}

// apply takes a row; the highest version stands.
func (r *headsRig) apply(lists map[topology.Kind]map[string]Entry, rec *kgo.Record) {
	var row tidemarkv1.LikerRow
	if err := row.UnmarshalVT(rec.Value); err != nil {
		r.t.Fatal(err)
	}
	of := row.GetRelation()
	if of == nil {
		return
	}
	_, rel, err := topology.ParseLikerKey(string(rec.Key))
	if err != nil {
		r.t.Fatal(err)
	}
	if rel.Target != "hot" || of.Version < lists[rel.Kind][rel.User].Version {
		return
	}
	lists[rel.Kind][rel.User] = Entry{User: rel.User, LikedAtUs: of.CurrentLikedAtUs, Version: of.Version} // time 0: in no list
}

func headDiffers(p cache.HeadPart, users map[string]Entry) string {
	var want []Entry
	cut := Entry{User: p.CutUserId, LikedAtUs: p.CutLikedAtUs}
	for _, e := range users {
		if e.LikedAtUs > 0 && (p.Whole || !cut.Before(e)) {
			want = append(want, e)
		}
	}
	slices.SortFunc(want, newest.Compare)
	return entriesDiffer(p.Entries, want)
}

// eachRedis runs a test with the embedded Redis; with tag real, with redis-server
// too.
func eachRedis(t *testing.T, test func(t *testing.T, url string)) {
	for name, start := range redisServers {
		t.Run(name, func(t *testing.T) { test(t, start(t)) })
	}
}

var redisServers = map[string]func(t *testing.T) string{
	"embedded": func(t *testing.T) string { return testenv.Redis(t) },
}

// running runs likers, read by a query process.
func (r *headsRig) running() (l *Likers, stopReading func()) {
	l = run(r.t, r.cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var reading sync.WaitGroup
	reading.Go(func() { readHot(ctx, l) })
	stopReading = sync.OnceFunc(func() { cancel(); reading.Wait() })
	r.t.Cleanup(stopReading)
	return l, stopReading
}

// Every part that can be read is the index's own list up to its cut, at the offset
// that it says, while users come, leave and come back above and below the cut,
// late and twice; also while single keys are evicted, and after a flush that
// another generation follows (E5, I8).
func TestE5HeadIsTheIndexAtItsOffset(t *testing.T) {
	eachRedis(t, func(t *testing.T, url string) {
		r := newHeadsRig(t, url, 11)
		_, stopReading := r.running()
		rnd := rand.New(rand.NewPCG(5, 5))
		r.loaded(1500, func() {
			r.await()
			for range 40 { // evictions
				part := r.parts()[rnd.IntN(len(r.parts()))]
				if err := r.raw.Del(t.Context(), headGeneration(1).HeadKey(part.HeadOf).String()).Err(); err != nil {
					t.Error(err)
				}
				pause.For(t.Context(), 20*time.Millisecond)
			}
			r.await()
			if err := r.raw.FlushAll(t.Context()).Err(); err != nil {
				t.Error(err)
			}
			if have, _ := r.read(); have > 0 {
				t.Errorf("a flushed Redis has %d parts", have)
			}
			r.active.Store(0)
			r.begin(2)
			r.await()
			testenv.Eventually(t, time.Minute, func() error {
				if whole, cut := r.seen(); whole+cut < 500 || cut < 200 {
					return fmt.Errorf("%d whole and %d cut parts were read", whole, cut)
				}
				return nil
			})
		})
		awaitCommitted(t, r.kafka, r.topo)
		r.await()
		r.mustCheck()
		stopReading()
		testenv.Eventually(t, 10*time.Second, func() error {
			keys, err := r.raw.Keys(t.Context(), "*:head:*").Result()
			if err == nil && len(keys) > 0 {
				err = fmt.Errorf("lists that have cooled have keys: %v", keys)
			}
			return err
		})
	})
}

// The check finds parts that lack what came before their offset.
func TestHeadCheckCanFail(t *testing.T) {
	r := newHeadsRig(t, testenv.Redis(t), 12)
	r.running()
	r.loaded(500, func() {
		r.await()
		testenv.Eventually(t, 20*time.Second, func() error {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, samples := range r.samples {
				if samples[len(samples)-1].part.Offset > samples[0].part.Offset+100 {
					return nil
				}
			}
			return errors.New("no part has moved on")
		})
	})
	for _, samples := range r.samples {
		samples[0].part.Offset = samples[len(samples)-1].part.Offset
	}
	if _, wrong := r.check(); wrong == "" {
		t.Error("old parts are taken for new ones: the check proves nothing")
	}
}

// A process that keeps heads is killed again and again, between index and Redis
// too; what it left, and what who comes next makes of it, is the list at its
// offset (C2, E5).
func TestE5HeadsSurviveKills(t *testing.T) {
	eachRedis(t, func(t *testing.T, url string) {
		r := newHeadsRig(t, url, 13)
		r.loaded(1500, func() {
			testenv.KillLoop(t, r.kafka, r.topo.Topic(topology.LikersTable), 8, rand.New(rand.NewPCG(2, 2)), func() *testenv.Child { return r.child("one", r.cfg.StateDir) })
		})
		l, _ := r.running()
		awaitCommitted(t, r.kafka, r.topo)
		r.await()
		if d := listsDiffer(t, l, r.traffic.facts); d != "" {
			t.Fatal(d)
		}
		r.mustCheck()
	})
}

func (r *headsRig) child(instance, dir string) *testenv.Child {
	return testenv.StartChild(r.t, childEnv+"="+strings.Join(r.brokers, ","), childPrefix+"="+r.topo.Config.Prefix, childDir+"="+dir, childWeak+"=0",
		childRedis+"="+r.url, childInstance+"="+instance)
}

// An owner that is paused until another one has its partitions, and then wakes,
// writes nothing more (I17).
func TestE5PausedOwnerIsFenced(t *testing.T) {
	eachRedis(t, func(t *testing.T, url string) {
		r := newHeadsRig(t, url, 14)
		old := r.child("old", t.TempDir())
		before := map[int]int64{}
		r.loaded(500, func() {
			r.await()
			for _, p := range r.parts() {
				if a := r.redis.Heads(t.Context(), headGeneration(1), []cache.HeadRead{p})[0]; a.Err == nil {
					before[p.Partition] = a.Epoch
				}
			}
			old.Signal(syscall.SIGSTOP)
			r.running()
			testenv.Eventually(t, 30*time.Second, func() error {
				for _, p := range r.parts() {
					a := r.redis.Heads(t.Context(), headGeneration(1), []cache.HeadRead{p})[0]
					if a.Err != nil {
						return a.Err
					}
					if a.Epoch <= before[p.Partition] {
						return fmt.Errorf("the part on partition %d is the first owner's", p.Partition)
					}
				}
				return nil
			})
			old.Signal(syscall.SIGCONT)
			for range 60 { // while the first owner finds out
				for _, p := range r.parts() {
					if a := r.redis.Heads(t.Context(), headGeneration(1), []cache.HeadRead{p})[0]; a.Err == nil && a.Epoch <= before[p.Partition] {
						t.Fatalf("the paused owner's part stands again on partition %d", p.Partition)
					}
				}
				pause.For(t.Context(), 10*time.Millisecond)
			}
			old.Kill(os.Kill)
			r.await()
		})
		awaitCommitted(t, r.kafka, r.topo)
		r.mustCheck()
	})
}
