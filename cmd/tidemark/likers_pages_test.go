package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/processors/likers"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
	"github.com/tidemark/tidemark/views"
)

// likersRig is a broker, likers processes that come and go, and a query
// process.
type likersRig struct {
	t       *testing.T
	topo    *topology.Topology
	reverse topology.ReverseGeneration
	client  gokakit.Client
	kafka   *kgo.Client
	view    *views.Likers
	heads   *likers.HeadsConfig // nil: none are kept
}

const stableLikers = 1500

func newLikersRig(t *testing.T, weak gokakit.Weakness) *likersRig {
	brokers := testenv.Kafka(t)
	topo := testenv.Topology(t, func(c *topology.Config) { c.Shards, c.LikerPartitions, c.ReverseShards = 1, 6, 16 })
	testenv.CreateTopics(t, brokers, topo)
	r := &likersRig{t: t, topo: topo, reverse: topology.NewReverseGeneration(1, 6, 16), client: gokakit.Client{Brokers: brokers, Session: 2 * time.Second}}
	var err error
	if r.kafka, err = kafkaadmin.Client(brokers, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.kafka.Close)
	if r.view, err = views.NewLikers(views.LikersConfig{Client: r.client, Topology: topo, Reverse: r.reverse, Patience: 500 * time.Millisecond, Weakness: weak}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.view.Close)
	return r
}

// process runs a likers process until stop.
func (r *likersRig) process(instance, dir string) (stop func()) {
	r.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	l, err := likers.New(likers.Config{
		Client: r.client, Topology: r.topo, Reverse: r.reverse, Instance: instance, StateDir: dir,
		ShowInterval: 20 * time.Millisecond, Advertise: listener.Addr().String(), Heads: r.heads, Logger: log,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{l.Run, likers.NewServer(l, likers.ServerConfig{Listener: listener, Logger: log}).Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				r.t.Error(err)
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	r.t.Cleanup(stop)
	return stop
}

func (r *likersRig) change(user string, version uint64, s topology.State, at int64) *kgo.Record {
	return r.changeTo("V1", user, version, s, at)
}

func (r *likersRig) changeTo(target, user string, version uint64, s topology.State, at int64) *kgo.Record {
	rel := topology.Relation{Kind: topology.Like, User: user, Target: target}
	place := r.reverse.Place(rel)
	value, err := (&tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Relation{Relation: &tidemarkv1.RelationChange{
		Kind: tidemarkv1.Kind(rel.Kind), UserId: user, TargetId: rel.Target, RelationVersion: version,
		State: tidemarkv1.State(s), StateChangedAtUs: at, Reverse: place,
	}}}).MarshalVT()
	if err != nil {
		r.t.Fatal(err)
	}
	return &kgo.Record{Topic: r.topo.Topic(topology.LikerChanges), Key: []byte(topology.LikerKey(place, rel.Key())), Value: value}
}

// fill writes the likers who stay.
func (r *likersRig) fill() {
	r.t.Helper()
	var records []*kgo.Record
	for i := range stableLikers {
		records = append(records, r.change(fmt.Sprintf("stable%d", i), 1, topology.Liked, int64(1000+i%700)))
	}
	if err := r.kafka.ProduceSync(r.t.Context(), records...).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
}

// churn has others like and unlike until stop.
func (r *likersRig) churn() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for v := uint64(1); ctx.Err() == nil; v++ {
			for u := range 20 {
				s := topology.Liked
				if v%2 == 0 {
					s = topology.Unliked
				}
				r.kafka.Produce(ctx, r.change(fmt.Sprintf("other%d", u), v, s, int64(1000+u*37)+int64(v)), nil)
			}
			_ = r.kafka.Flush(ctx)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	r.t.Cleanup(stop)
	return stop
}

// walk reads the whole list and asks again where it is told to. in is called
// once, in the middle.
func (r *likersRig) walk(limit int, in func()) (notReady int) {
	r.t.Helper()
	told := map[string]int{}
	q := views.LikersQuery{Kind: topology.Like, Target: "V1", Limit: limit}
	deadline := time.Now().Add(time.Minute)
	for {
		if in != nil && len(told) >= stableLikers/3 {
			in()
			in = nil
		}
		p, err := r.view.Page(r.t.Context(), q)
		if late := new(views.NotReadyError); errors.As(err, &late) && time.Now().Before(deadline) {
			notReady++
			continue // Page itself has waited
		}
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range p.Entries {
			told[e.User]++
		}
		if p.Done {
			break
		}
		q.Frontier, q.Generation = p.Frontier, p.Generation
	}
	for i := range stableLikers {
		if n := told[fmt.Sprintf("stable%d", i)]; n != 1 {
			r.t.Errorf("stable%d was told %d times", i, n)
			return notReady
		}
	}
	return notReady
}

// awaitWhole waits until a page is answered that has everybody behind it.
func (r *likersRig) awaitWhole() {
	r.t.Helper()
	testenv.Eventually(r.t, time.Minute, func() error {
		n := 0
		q := views.LikersQuery{Kind: topology.Like, Target: "V1", Limit: views.MaxLikersPage}
		for {
			p, err := r.view.Page(r.t.Context(), q)
			if err != nil {
				return err
			}
			n += len(p.Entries)
			if p.Done {
				break
			}
			q.Frontier, q.Generation = p.Frontier, p.Generation
		}
		if n < stableLikers {
			return fmt.Errorf("%d of %d", n, stableLikers)
		}
		return nil
	})
}

// While partitions change their owner in the middle of a list, pages come late
// or are refused, and the list is still told whole: nobody who stays is left
// out or told twice.
func TestPagesWhileOwnersMove(t *testing.T) {
	r := newLikersRig(t, 0)
	q := views.LikersQuery{Kind: topology.Like, Target: "V1", Limit: 10}
	notReady := new(views.NotReadyError)
	if p, err := r.view.Page(t.Context(), q); !errors.As(err, &notReady) || p.Done {
		t.Fatalf("without any owner: %+v, %v", p, err)
	}
	r.fill()
	dirs := map[string]string{"a": t.TempDir(), "b": t.TempDir(), "c": t.TempDir()}
	stopA := r.process("a", dirs["a"])
	stopB := r.process("b", dirs["b"])
	r.awaitWhole()
	defer r.churn()()
	var stopC func()
	refused := map[string]int{}
	for _, move := range []struct {
		name string
		do   func()
	}{
		{"nothing moves", func() {}},
		{"a third process joins, with empty stores", func() { stopC = r.process("c", dirs["c"]) }},
		{"one stops, and comes back at another address", func() { stopA(); stopA = r.process("a", dirs["a"]) }},
		{"one stays away, and its session runs out", func() { stopB() }},
		{"all stop, and one takes everything over from the log", func() { stopA(); stopC(); r.process("d", t.TempDir()) }},
	} {
		refused[move.name] = r.walk(23, move.do)
	}
	t.Logf("pages refused: %v", refused)
	if refused["nothing moves"] != 0 {
		t.Errorf("%d pages were refused while nothing moved", refused["nothing moves"])
	}
	if refused["all stop, and one takes everything over from the log"] == 0 {
		t.Error("no page was refused while nobody served the list")
	}
}
