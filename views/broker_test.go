package views

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Sarama's metrics have one goroutine per process that never ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// deployment is a broker whose display table a test writes.
type deployment struct {
	t       *testing.T
	topo    *topology.Topology
	brokers []string
	client  *kgo.Client
	state   string
}

func newDeployment(t *testing.T) *deployment {
	p := &deployment{t: t, topo: smallTopology(t), brokers: testenv.Kafka(t), state: t.TempDir()}
	testenv.CreateTopics(t, p.brokers, p.topo)
	var err error
	if p.client, err = kafkaadmin.Client(p.brokers, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.client.Close)
	return p
}

func (p *deployment) put(key string, row *tidemarkv1.DisplayRow) {
	p.t.Helper()
	value, err := row.MarshalVT()
	if err != nil {
		p.t.Fatal(err)
	}
	r := &kgo.Record{Topic: p.topo.Topic(topology.DisplayTable), Key: []byte(key), Value: value}
	if err := p.client.ProduceSync(p.t.Context(), r).FirstErr(); err != nil {
		p.t.Fatal(err)
	}
}

// follow runs a view until stop.
func (p *deployment) follow(hook func(Update)) (d *Display, stop func()) {
	p.t.Helper()
	d, err := NewDisplay(DisplayConfig{Client: gokakit.Client{Brokers: p.brokers}, Topology: p.topo, StateDir: p.state,
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := d.Count(topology.Like, "V1"); !errors.Is(err, ErrRecovering) {
		p.t.Errorf("before it ran: %v", err)
	}
	if hook != nil {
		d.OnUpdate(hook)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- d.Run(ctx) }()
	testenv.Eventually(p.t, 30*time.Second, d.Ready)
	return d, func() {
		cancel()
		if err := <-done; err != nil {
			p.t.Error(err)
		}
	}
}

func expectCount(t *testing.T, d *Display, id string, active int64, asOf string) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() error {
		c, err := d.Count(topology.Like, id)
		if err == nil && (c.Counts.Raw != active || asOfText(c.AsOf) != asOf) {
			err = fmt.Errorf("%s is %d as of %q, not %d as of %q", id, c.Counts.Raw, asOfText(c.AsOf), active, asOf)
		}
		return err
	})
}

// A view of an empty table is ready, follows what is written, and after a
// restart answers the same, from its own copy and the log behind it.
func TestAViewFollowsTheTableAcrossRestarts(t *testing.T) {
	p := newDeployment(t)
	told := make(chan Update, 100)
	d, stop := p.follow(func(u Update) { told <- u })
	expectCount(t, d, "V1", 0, "")
	p.put("like:V1", snapshot(5, 1))
	for display := range 2 {
		for count := range 3 {
			p.put(topology.ProgressKey(display, count), progressRow(count, 1, 5, 6))
		}
	}
	expectCount(t, d, "V1", 5, "0:5 1:6 ")
	if u := <-told; u.Target != "V1" || u.Counts.Raw != 5 {
		t.Errorf("told %+v", u)
	}
	p.put("like:V1", snapshot(6, 2))
	expectCount(t, d, "V1", 6, "0:5 1:6 ")
	stop()

	p.put("like:V1", snapshot(7, 3))
	p.put("like:V1", snapshot(6, 2)) // what a paused writer appends late
	p.put(topology.ProgressKey(0, 1), progressRow(1, 2, 4, 9))
	p.put(topology.ProgressKey(1, 1), progressRow(1, 2, 4, 9))
	d, stop = p.follow(nil)
	defer stop()
	expectCount(t, d, "V1", 7, "0:4 1:6 ")
	expectCount(t, d, "V2", 0, "0:4 1:6 ")
	if g, err := d.Progress(); err != nil || !g.Complete || g.Unheard != 0 {
		t.Errorf("progress %+v, %v", g, err)
	}
}

func TestNewDisplayNamesWhatIsWrong(t *testing.T) {
	good := DisplayConfig{Client: gokakit.Client{Brokers: []string{"localhost:1"}}, Topology: smallTopology(t), StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)}
	if _, err := NewDisplay(good); err != nil {
		t.Fatal(err)
	}
	for name, breakIt := range map[string]func(*DisplayConfig){
		"brokers": func(c *DisplayConfig) { c.Client.Brokers = nil }, "state": func(c *DisplayConfig) { c.StateDir = "" }, "cache": func(c *DisplayConfig) { c.CacheTargets = -1 },
	} {
		c := good
		breakIt(&c)
		if _, err := NewDisplay(c); err == nil {
			t.Errorf("without %s it was taken", name)
		}
	}
}
