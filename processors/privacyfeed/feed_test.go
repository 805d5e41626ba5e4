package privacyfeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// A process that runs nothing but a feed is this test binary with childEnv set
// to the brokers, childPrefix to the topics' prefix, childURL to the control
// database, and childDies to when it kills itself at an event of account
// "deadly": before or after the database has it, or never.
const (
	childEnv    = "TIDEMARK_TEST_PRIVACY_BROKERS"
	childPrefix = "TIDEMARK_TEST_PRIVACY_PREFIX"
	childURL    = "TIDEMARK_TEST_PRIVACY_URL"
	childDies   = "TIDEMARK_TEST_PRIVACY_DIES"
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

func runChild() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c := topology.DefaultConfig()
	c.Prefix = os.Getenv(childPrefix)
	topo, err := topology.New(c)
	if err != nil {
		return err
	}
	rules, err := privacy.Open(ctx, os.Getenv(childURL))
	if err != nil {
		return err
	}
	defer rules.Close()
	f, err := New(config(strings.Split(os.Getenv(childEnv), ","), topo, func(ctx context.Context, e privacy.Event) (bool, error) {
		a, _ := e.(privacy.Account)
		deadly := func(when string) {
			if a.ID == "deadly" && os.Getenv(childDies) == when {
				time.Sleep(500 * time.Millisecond) // a commit that waits for nothing would be out
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
		deadly("before")
		ok, err := rules.Apply(ctx, e)
		deadly("after")
		return ok, err
	}))
	if err != nil {
		return err
	}
	return f.Run(ctx)
}

func config(brokers []string, topo *topology.Topology, apply func(context.Context, privacy.Event) (bool, error)) Config {
	return Config{Client: gokakit.Client{Brokers: brokers, Session: 2 * time.Second}, Topology: topo, Apply: apply, Instance: "one",
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()}
}

// stage is a broker with a topology, and a control database.
type stage struct {
	t       *testing.T
	topo    *topology.Topology
	brokers []string
	client  *kgo.Client
	url     string
	rules   *privacy.Store
}

func newStage(t *testing.T) *stage {
	s := &stage{t: t, topo: testenv.Topology(t, nil), brokers: testenv.Kafka(t), url: testenv.Postgres(t)}
	testenv.CreateTopics(t, s.brokers, s.topo)
	err := control.Migrate(t.Context(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	if s.rules, err = privacy.Open(context.Background(), s.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.rules.Close)
	if s.client, err = kafkaadmin.Client(s.brokers, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.client.Close)
	return s
}

// start runs a feed until stop, which may be called twice.
func (s *stage) start(apply func(context.Context, privacy.Event) (bool, error)) (f *Feed, stop func()) {
	s.t.Helper()
	f, err := New(config(s.brokers, s.topo, apply))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := f.Run(ctx); err != nil {
			s.t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	s.t.Cleanup(stop)
	return f, stop
}

func (s *stage) send(events ...privacy.Event) {
	s.t.Helper()
	for _, e := range events {
		r := record(s.t, e)
		s.sendRaw(r.Key, r.Value)
	}
}

func (s *stage) sendRaw(key string, value []byte) {
	s.t.Helper()
	r := &kgo.Record{Topic: s.topo.Topic(topology.PrivacyEvents), Key: []byte(key), Value: value}
	if err := s.client.ProduceSync(s.t.Context(), r).FirstErr(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) awaitCommitted() {
	s.t.Helper()
	testenv.AwaitCommitted(s.t, s.client, s.topo.Group(topology.PrivacyGroup).ID, s.topo.Topic(topology.PrivacyEvents))
}

// shows tells whether an account's likes are shown to others.
func (s *stage) shows(account string) bool {
	s.t.Helper()
	ok, err := s.rules.UserList(s.t.Context(), "viewer", account, privacy.Likes)
	if err != nil {
		s.t.Fatal(err)
	}
	return ok
}

func likesOf(id string, version uint64, shown bool) privacy.Account {
	return privacy.Account{ID: id, Version: version, Status: privacy.Active, ShowLikes: shown}
}

// Late and duplicate events change nothing, and what is poison is set aside
// while the rest flows on (I3, B5).
func TestTheNewestVersionStands(t *testing.T) {
	s := newStage(t)
	var applies, stored atomic.Int64
	s.start(func(ctx context.Context, e privacy.Event) (bool, error) {
		applies.Add(1)
		ok, err := s.rules.Apply(ctx, e)
		if ok {
			stored.Add(1)
		}
		return ok, err
	})
	s.send(likesOf("late", 12, false), likesOf("late", 11, true), likesOf("late", 12, false)) // hidden, and stays so
	s.send(likesOf("shown", 11, false), likesOf("shown", 12, true), likesOf("shown", 12, true))
	s.sendRaw("account:poison", []byte("not protobuf"))
	s.sendRaw("account:poison", nil)
	s.sendRaw("account:other", record(t, likesOf("poison", 1, true)).Value)
	s.send(privacy.Block{Blocker: "viewer", Blocked: "shown-to-none", Version: 1, Active: true}, likesOf("shown-to-none", 1, true))
	s.awaitCommitted()
	for account, want := range map[string]bool{"late": false, "shown": true, "poison": false, "shown-to-none": false} {
		if got := s.shows(account); got != want {
			t.Errorf("the likes of %s are shown: %t", account, got)
		}
	}
	if applies.Load() != 8 || stored.Load() != 5 {
		t.Errorf("%d events were applied, %d of them changed something", applies.Load(), stored.Load())
	}
	got := map[quarantine.Reason]int{}
	for _, r := range s.read(topology.Quarantine, 3) {
		var q tidemarkv1.Quarantined
		if err := q.UnmarshalVT(r.Value); err != nil {
			t.Fatal(err)
		}
		if q.Topic != s.topo.Topic(topology.PrivacyEvents) {
			t.Errorf("set aside of %s", q.Topic)
		}
		got[q.Reason]++
	}
	if got[quarantine.MalformedRecord] != 1 || got[quarantine.NullPayload] != 1 || got[quarantine.KeyMismatch] != 1 {
		t.Errorf("set aside: %v", got)
	}
}

func (s *stage) read(stream string, n int) (all []*kgo.Record) {
	s.t.Helper()
	client, err := kafkaadmin.Client(s.brokers, nil, kgo.ConsumeTopics(s.topo.Topic(stream)))
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	testenv.Eventually(s.t, 30*time.Second, func() error {
		ctx, cancel := context.WithTimeout(s.t.Context(), 100*time.Millisecond)
		defer cancel()
		if all = append(all, client.PollFetches(ctx).Records()...); len(all) < n {
			return fmt.Errorf("%d records of %d", len(all), n)
		}
		return nil
	})
	return all
}

// While the database is away nothing is committed, Ready says why, and after
// it everything is applied.
func TestAnOutageLosesNothing(t *testing.T) {
	s := newStage(t)
	var away atomic.Bool
	away.Store(true)
	f, _ := s.start(func(ctx context.Context, e privacy.Event) (bool, error) {
		if away.Load() {
			return false, errors.New("the database is away")
		}
		return s.rules.Apply(ctx, e)
	})
	s.send(likesOf("u", 1, true))
	testenv.Eventually(t, 30*time.Second, func() error {
		if err := f.Ready(); err == nil || !strings.Contains(err.Error(), "the database is away") {
			return errors.Join(errors.New("Ready does not tell of the outage"), err)
		}
		return nil
	})
	away.Store(false)
	s.awaitCommitted()
	if !s.shows("u") {
		t.Error("the event is committed and not applied")
	}
}

// A process that dies right before or right after the database has an event
// leaves it uncommitted, and the next one applies what is left (I17).
func TestKillBetweenApplyAndCommit(t *testing.T) {
	for _, when := range []string{"before", "after"} {
		t.Run(when, func(t *testing.T) {
			s := newStage(t)
			child := func(dies string) *testenv.Child {
				return testenv.StartChild(t, childEnv+"="+strings.Join(s.brokers, ","), childPrefix+"="+s.topo.Config.Prefix, childURL+"="+s.url, childDies+"="+dies)
			}
			c := child(when)
			s.send(likesOf("deadly", 1, true))
			c.Kill(syscall.Signal(0)) // it does that itself
			if has := s.shows("deadly"); has != (when == "after") {
				t.Fatalf("dead %s the write, the database has it: %t", when, has)
			}
			s.send(likesOf("other", 1, true))
			last := child("never")
			defer last.Kill(syscall.SIGTERM)
			s.awaitCommitted()
			for _, account := range []string{"deadly", "other"} {
				if !s.shows(account) {
					t.Errorf("the event of %s is committed and not applied", account)
				}
			}
		})
	}
}
