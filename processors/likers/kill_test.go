package likers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// A process that runs nothing but likers is this test binary with childEnv set
// to the brokers, childPrefix to the topics' prefix, childDir to its state
// folder and childWeak to the mechanisms that are switched off.
const (
	childEnv    = "TIDEMARK_TEST_LIKERS_BROKERS"
	childPrefix = "TIDEMARK_TEST_LIKERS_PREFIX"
	childDir    = "TIDEMARK_TEST_LIKERS_DIR"
	childWeak   = "TIDEMARK_TEST_LIKERS_WEAK"
	// Of one that keeps heads: where, and its name in the group.
	childRedis    = "TIDEMARK_TEST_LIKERS_REDIS"
	childInstance = "TIDEMARK_TEST_LIKERS_INSTANCE"
)

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := runChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testenv.Main(m)
}

func testTopology(prefix string) *topology.Topology {
	c := topology.DefaultConfig()
	c.Prefix, c.LikerPartitions, c.Shards = prefix, 4, 2
	t, err := topology.New(c)
	if err != nil {
		panic(err)
	}
	return t
}

func testConfig(brokers []string, topo *topology.Topology, dir string, weak gokakit.Weakness) Config {
	return Config{
		Client:   gokakit.Client{Brokers: brokers, Session: 2 * time.Second},
		Topology: topo, Reverse: topology.NewReverseGeneration(1, topo.Config.LikerPartitions, topo.Config.ReverseShards),
		StateDir: dir, Instance: "one", ShowInterval: 20 * time.Millisecond, WriteBehind: 128 << 10, Weakness: weak,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

func runChild() error {
	var weak gokakit.Weakness
	if _, err := fmt.Sscan(os.Getenv(childWeak), &weak); err != nil {
		return err
	}
	cfg := testConfig(strings.Split(os.Getenv(childEnv), ","), testTopology(os.Getenv(childPrefix)), os.Getenv(childDir), weak)
	cfg.Instance = cmp.Or(os.Getenv(childInstance), cfg.Instance)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if url := os.Getenv(childRedis); url != "" {
		return runHeadsChild(ctx, cfg, url)
	}
	l, err := New(cfg)
	if err != nil {
		return err
	}
	return l.Run(ctx)
}

func startChild(t *testing.T, brokers []string, topo *topology.Topology, dir string, weak gokakit.Weakness) *testenv.Child {
	t.Helper()
	return testenv.StartChild(t, childEnv+"="+strings.Join(brokers, ","), childPrefix+"="+topo.Config.Prefix, childDir+"="+dir, fmt.Sprintf("%s=%d", childWeak, weak))
}

// traffic is a stream of changes as at-least-once delivery may bring it: one
// in ten again, and out of order within a window. facts are what holds in the
// end.
type traffic struct {
	rnd     *rand.Rand
	reverse topology.ReverseGeneration
	facts   map[topology.Relation]*tidemarkv1.RelationChange
	window  []*tidemarkv1.RelationChange
	past    []*tidemarkv1.RelationChange
	at      int64
}

func newTraffic(seed uint64, g topology.ReverseGeneration) *traffic {
	return &traffic{rnd: rand.New(rand.NewPCG(seed, 7)), reverse: g, facts: map[topology.Relation]*tidemarkv1.RelationChange{}, at: 1_700_000_000_000_000}
}

func (g *traffic) fresh() *tidemarkv1.RelationChange {
	kind := topology.Kinds()[g.rnd.IntN(3)]
	rel := topology.Relation{Kind: kind, User: fmt.Sprintf("u%d", g.rnd.IntN(3000)), Target: "hot"}
	if g.rnd.IntN(2) == 0 {
		rel.Target = fmt.Sprintf("v%d", g.rnd.IntN(50))
	}
	old := g.facts[rel]
	g.at += int64(g.rnd.IntN(3)) // some at the same time
	c := &tidemarkv1.RelationChange{
		Kind: tidemarkv1.Kind(kind), UserId: rel.User, TargetId: rel.Target, RelationVersion: old.GetRelationVersion() + 1,
		State: tidemarkv1.State(kind.Active()), StateChangedAtUs: g.at, Reverse: g.reverse.Place(rel),
	}
	if topology.State(old.GetState()) == kind.Active() {
		c.State = tidemarkv1.State(kind.Initial())
	}
	g.facts[rel] = c
	return c
}

func (g *traffic) next(more bool) *tidemarkv1.RelationChange {
	if len(g.past) > 100 && g.rnd.IntN(10) == 0 {
		return g.past[g.rnd.IntN(len(g.past))]
	}
	for more && len(g.window) < 200 {
		g.window = append(g.window, g.fresh())
	}
	if len(g.window) == 0 {
		return nil
	}
	i := g.rnd.IntN(len(g.window))
	c := g.window[i]
	g.window[i] = g.window[len(g.window)-1]
	g.window = g.window[:len(g.window)-1]
	if len(g.past) < 5000 {
		g.past = append(g.past, c)
	}
	return c
}

func likerRecord(t testing.TB, topo *topology.Topology, c *tidemarkv1.RelationChange) *kgo.Record {
	rel := topology.Relation{Kind: topology.Kind(c.Kind), User: c.UserId, Target: c.TargetId}
	return &kgo.Record{
		Topic: topo.Topic(topology.LikerChanges), Partition: int32(c.Reverse.Partition),
		Key: []byte(topology.LikerKey(c.Reverse, rel.Key())), Value: changeValue(t, c),
	}
}

func producer(t *testing.T, brokers []string) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// send produces about rate events a second until stop and then what is left in
// the window, so that every fact is in the stream.
func (g *traffic) send(t *testing.T, cl *kgo.Client, topo *topology.Topology, rate int, stop context.Context) {
	start := time.Now()
	for i := 0; ; i++ {
		c := g.next(stop.Err() == nil)
		if c == nil {
			break
		}
		cl.Produce(t.Context(), likerRecord(t, topo, c), func(_ *kgo.Record, err error) {
			if err != nil {
				t.Error(err)
			}
		})
		if ahead := time.Duration(i)*time.Second/time.Duration(rate) - time.Since(start); ahead > 5*time.Millisecond {
			time.Sleep(ahead) // the rate of the load, not a wait for a result
		}
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestListsSurviveKills kills a likers process 15 times under load, half of the
// times within the first 150 ms of work; then, in a process that takes its
// stores over, every list is what the facts say, in order, with every entry's
// time and version (C2, I14, I17).
func TestListsSurviveKills(t *testing.T) {
	if d := killLoop(t, 15, 0); d != "" {
		t.Fatal(d)
	}
}

// The same loop must find differences once a mechanism is switched off; else
// it proves nothing.
func TestKillLoopCanFail(t *testing.T) {
	if testing.Short() || testenv.External() { // only slow acks make the differences certain
		t.Skip("several kill loops, with acks that are slowed down")
	}
	for range 3 {
		if killLoop(t, 12, gokakit.WithoutBarrier) != "" {
			return
		}
	}
	t.Fatal("the kill loop saw no difference")
}

func killLoop(t *testing.T, kills int, weak gokakit.Weakness) string {
	t.Helper()
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	if !testenv.External() {
		testenv.SlowAcks(testenv.Cluster(t, brokers), topo.Topic(topology.LikersTable))
	}
	cl := producer(t, brokers)
	dir := t.TempDir()
	cfg := testConfig(brokers, topo, dir, 0)
	g := newTraffic(uint64(kills)+uint64(weak)<<32, cfg.Reverse)
	sent := make(chan struct{})
	enough, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		defer close(sent)
		g.send(t, cl, topo, 2000, enough)
	}()
	testenv.KillLoop(t, cl, topo.Topic(topology.LikersTable), kills, rand.New(rand.NewPCG(1, 1)), func() *testenv.Child { return startChild(t, brokers, topo, dir, weak) })
	stop()
	<-sent
	l := run(t, cfg)
	awaitCommitted(t, cl, topo)
	return listsDiffer(t, l, g.facts)
}

// run runs likers in this process.
func run(t *testing.T, cfg Config) *Likers {
	t.Helper()
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return l
}

// awaitCommitted waits until the group has committed all of liker-changes.
func awaitCommitted(t *testing.T, cl *kgo.Client, topo *topology.Topology) {
	t.Helper()
	testenv.AwaitCommitted(t, cl, topo.Group(topology.LikersGroup).ID, topo.Topic(topology.LikerChanges))
}

// listsDiffer compares every list, read page by page, with the facts; "" when
// all agree. Lists follow the table within the show interval.
func listsDiffer(t *testing.T, l *Likers, facts map[topology.Relation]*tidemarkv1.RelationChange) string {
	t.Helper()
	want := wantLists(l.cfg.Reverse, facts)
	var wrong string
	deadline := time.Now().Add(10 * time.Second)
	for {
		wrong = ""
		for name, entries := range want {
			have, err := readList(l, name, 7)
			if err != nil {
				wrong = fmt.Sprintf("list %+v: %v", name, err)
			} else if d := entriesDiffer(have, entries); d != "" {
				wrong = fmt.Sprintf("list %+v: %s", name, d)
			}
			if wrong != "" {
				break
			}
		}
		if wrong == "" || time.Now().After(deadline) {
			return wrong
		}
	}
}

// listName names a reverse shard of a target.
type listName struct {
	kind   topology.Kind
	target string
	shard  int
}

// wantLists are all lists that facts imply; those of a known target that have
// nobody in them are empty.
func wantLists(g topology.ReverseGeneration, facts map[topology.Relation]*tidemarkv1.RelationChange) map[listName][]Entry {
	lists := map[listName][]Entry{}
	for rel, f := range facts {
		for shard := range g.Shards() {
			name := listName{rel.Kind, rel.Target, shard}
			lists[name] = append(lists[name], []Entry{}...)
		}
		name := listName{rel.Kind, rel.Target, g.Shard(rel.User)}
		if topology.State(f.State) == rel.Kind.Active() {
			lists[name] = append(lists[name], Entry{User: rel.User, LikedAtUs: f.StateChangedAtUs, Version: f.RelationVersion})
		}
	}
	for name := range maps.Keys(lists) {
		sortEntries(lists[name])
	}
	return lists
}
