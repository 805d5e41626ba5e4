package projection

import (
	"context"
	"fmt"
	"log/slog"
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

// A process that runs nothing but a projection is this test binary with
// childEnv set to the brokers, childPrefix to the topics' prefix, childDir to
// its state folder and childWeak to the mechanisms that are switched off.
const (
	childEnv    = "TIDEMARK_TEST_PROJECTION_BROKERS"
	childPrefix = "TIDEMARK_TEST_PROJECTION_PREFIX"
	childDir    = "TIDEMARK_TEST_PROJECTION_DIR"
	childWeak   = "TIDEMARK_TEST_PROJECTION_WEAK"
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
	c.Prefix, c.CountPartitions, c.DisplayPartitions, c.Shards = prefix, 4, 2, 2
	t, err := topology.New(c)
	if err != nil {
		panic(err)
	}
	return t
}

func testManifest(topo *topology.Topology) topology.Manifest {
	return topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), topo.Config.CountPartitions)
}

func testConfig(brokers []string, topo *topology.Topology, dir string, weak gokakit.Weakness) Config {
	writeBehind := 128 << 10
	if weak != 0 {
		writeBehind = 16 << 10 // a kill must meet rows on disk, to show that they should not be there
	}
	return Config{
		Client:   gokakit.Client{Brokers: brokers, Session: 2 * time.Second},
		Topology: topo, Manifest: testManifest(topo), StateDir: dir, Instance: "one",
		RefreshInterval: 20 * time.Millisecond, WriteBehind: writeBehind, Weakness: weak,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

func runChild() error {
	var weak gokakit.Weakness
	if _, err := fmt.Sscan(os.Getenv(childWeak), &weak); err != nil {
		return err
	}
	p, err := New(testConfig(strings.Split(os.Getenv(childEnv), ","), testTopology(os.Getenv(childPrefix)), os.Getenv(childDir), weak))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return p.Run(ctx)
}

func startChild(t *testing.T, brokers []string, topo *topology.Topology, dir string, weak gokakit.Weakness) *testenv.Child {
	t.Helper()
	return testenv.StartChild(t, childEnv+"="+strings.Join(brokers, ","), childPrefix+"="+topo.Config.Prefix, childDir+"="+dir, fmt.Sprintf("%s=%d", childWeak, weak))
}

// traffic is a stream of changes as at-least-once delivery may bring it: one
// in ten again, and out of order within a window.
type traffic struct {
	rnd    *rand.Rand
	m      topology.Manifest
	facts  map[topology.Relation]*tidemarkv1.RelationChange
	window []*tidemarkv1.RelationChange
	past   []*tidemarkv1.RelationChange
}

func newTraffic(seed uint64, m topology.Manifest) *traffic {
	return &traffic{rnd: rand.New(rand.NewPCG(seed, 7)), m: m, facts: map[topology.Relation]*tidemarkv1.RelationChange{}}
}

func (g *traffic) fresh() *tidemarkv1.RelationChange {
	rel := topology.Relation{Kind: topology.Like, User: fmt.Sprintf("u%d", g.rnd.IntN(3000)), Target: "hot"}
	if g.rnd.IntN(2) == 0 {
		rel.Target = fmt.Sprintf("v%d", g.rnd.IntN(200))
	}
	var version uint64
	if f := g.facts[rel]; f != nil {
		version = f.RelationVersion
	}
	state := []topology.State{topology.Liked, topology.Unliked, topology.Disliked}[g.rnd.IntN(3)]
	c := &tidemarkv1.RelationChange{
		Kind: tidemarkv1.Kind_KIND_LIKE, UserId: rel.User, TargetId: rel.Target, RelationVersion: version + 1,
		State: tidemarkv1.State(state), CommittedAtUs: time.Now().UnixMicro(), Placement: g.m.Place(rel),
	}
	if by := topology.Hidden(g.rnd.IntN(3)); state == topology.Liked && by != topology.Shown {
		c.Hidden, c.HiddenReason = tidemarkv1.Hidden(by), "drill"
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

func bucketRecord(topo *topology.Topology, c *tidemarkv1.RelationChange) *kgo.Record {
	rel := topology.Relation{Kind: topology.Kind(c.Kind), User: c.UserId, Target: c.TargetId}
	value, err := (&tidemarkv1.BucketChange{Body: &tidemarkv1.BucketChange_Relation{Relation: c}}).MarshalVT()
	if err != nil {
		panic(err)
	}
	return &kgo.Record{
		Topic: topo.Topic(topology.BucketChanges), Partition: int32(c.Placement.Partition), Value: value,
		Key: []byte(topology.CountedKey(int(c.Placement.Partition), int(c.Placement.VirtualBucket), rel)),
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
		cl.Produce(t.Context(), bucketRecord(topo, c), func(_ *kgo.Record, err error) {
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

// awaitCommitted waits until the group has committed all of bucket-changes.
func awaitCommitted(t *testing.T, cl *kgo.Client, topo *topology.Topology) {
	t.Helper()
	testenv.AwaitCommitted(t, cl, topo.Group(topology.ProjectionGroup).ID, topo.Topic(topology.BucketChanges))
}

// TestCountsSurviveKills kills a projection 20 times under load, half of the
// times within the first 150 ms of work, and compares every count with its
// facts (C2, I17).
func TestCountsSurviveKills(t *testing.T) {
	if d := killLoop(t, 20, 0); d != "" {
		t.Fatal(d)
	}
}

// The same loop must find differences once a mechanism is switched off; else
// it proves nothing.
func TestKillLoopCanFail(t *testing.T) {
	if testing.Short() || testenv.External() { // only slow acks make the differences certain
		t.Skip("several kill loops, with acks that are slowed down")
	}
	for name, weak := range map[string]gokakit.Weakness{
		"without commit barrier": gokakit.WithoutBarrier,
		"without gated store":    gokakit.WithoutGate,
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				if killLoop(t, 12, weak) != "" {
					return
				}
			}
			t.Fatal("the kill loop saw no difference")
		})
	}
}

func killLoop(t *testing.T, kills int, weak gokakit.Weakness) string {
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	if !testenv.External() {
		testenv.SlowAcks(testenv.Cluster(t, brokers), topo.Topic(topology.ProjectionTable))
	}
	cl := producer(t, brokers)
	g := newTraffic(uint64(kills)+uint64(weak)<<32, testManifest(topo))
	sent := make(chan struct{})
	enough, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		defer close(sent)
		g.send(t, cl, topo, 2000, enough)
	}()
	dir := t.TempDir()
	testenv.KillLoop(t, cl, topo.Topic(topology.ProjectionTable), kills, rand.New(rand.NewPCG(1, uint64(weak))), func() *testenv.Child { return startChild(t, brokers, topo, dir, weak) })
	stop()
	<-sent
	child := startChild(t, brokers, topo, dir, weak)
	awaitCommitted(t, cl, topo)
	defer child.Kill(syscall.SIGTERM)
	return difference(t, cl, brokers, topo, g.facts)
}
