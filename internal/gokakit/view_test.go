package gokakit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// watcher is a running view of the projection table.
type watcher struct {
	*View
	stop func()
}

func (w *world) view(change func(*ViewConfig)) *watcher {
	w.t.Helper()
	cfg := ViewConfig{Client: Client{Brokers: w.broker}, Topology: w.topo, Table: topology.ProjectionTable, Schema: tally{},
		StateDir: w.t.TempDir(), Logger: quiet()}
	if change != nil {
		change(&cfg)
	}
	v, err := NewView(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := v.Run(ctx); err != nil {
			w.t.Error(err)
		}
	}()
	view := &watcher{View: v, stop: sync.OnceFunc(func() {
		cancel()
		<-done
	})}
	w.t.Cleanup(view.stop)
	return view
}

// difference compares the view with what was sent.
func (v *watcher) difference(w *world) error {
	for key, version := range w.sent {
		value, err := v.Get(key)
		if err != nil {
			return err
		}
		if c, _ := decodeCell(value); c.version != version {
			return fmt.Errorf("%s has version %d, sent was %d", key, c.version, version)
		}
	}
	return nil
}

func (v *watcher) shows(w *world) {
	w.t.Helper()
	testenv.Eventually(w.t, soon, func() error { return v.difference(w) })
}

// seed writes n keys to each partition of the table.
func (w *world) seed(n int) {
	w.t.Helper()
	for p := range 4 {
		for i := range n {
			key := fmt.Sprintf("%04x|g%d:a%d", p, i%3, i)
			w.sent[key]++
			w.produce(w.table, p, key, cell{w.sent[key], uint64(i), 0, 0}.encode())
		}
	}
}

// Until it has read its table a view answers ErrRecovering, never that there
// is nothing (G19); afterwards it follows, and an empty table is ready at once.
func TestViewWhileRecovering(t *testing.T) {
	t.Parallel()
	run := func(weak Weakness) (early error) {
		w := newWorld(t)
		w.seed(5)
		gate := make(chan struct{})
		open := sync.OnceFunc(func() { close(gate) })
		defer open()
		var held atomic.Bool
		c := w.cluster()
		c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			c.SleepControl(func() { held.Store(true); <-gate })
			return nil, nil, false
		})
		v := w.view(func(c *ViewConfig) { c.weak = weak })
		testenv.Eventually(t, soon, func() error {
			if !held.Load() || v.stores.get(0) == nil {
				return errNotYet
			}
			return nil
		})
		value, early := v.Get("0000|g0:a0")
		if value != nil {
			t.Errorf("before the log is read: %q", value)
		}
		if err := v.Scan(nil); early != nil && !errors.Is(err, ErrRecovering) {
			t.Errorf("scan: %v", err)
		}
		open()
		v.shows(w)
		w.seed(5)
		v.shows(w)
		if value, err := v.Get("0000|none:a"); value != nil || err != nil {
			t.Errorf("a key that is not there: %q, %v", value, err)
		}
		return early
	}
	if err := run(0); !errors.Is(err, ErrRecovering) || !strings.Contains(err.Error(), "partition") {
		t.Errorf("get: %v", err)
	}
	if err := run(WithoutRecoveryGate); errors.Is(err, ErrRecovering) {
		t.Error("without the gate it answers the same")
	}
	w := newWorld(t)
	testenv.Eventually(t, soon, w.view(nil).Ready)
}

// OnUpdate is told of changes only, a late older record is none, and a restart
// reads only what is new.
func TestViewUpdates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	var told atomic.Int64
	view := func() *watcher {
		told.Store(0)
		return w.view(func(c *ViewConfig) {
			c.StateDir, c.OnUpdate = dir, func(string, []byte) { told.Add(1) }
		})
	}
	v := view()
	w.seed(3)
	v.shows(w)
	key := "0001|g0:a0"
	w.produce(w.table, 1, key, cell{0, 0, 0, 0}.encode())
	w.produce(w.table, 1, key, nil)
	w.produce(w.table, 1, "0001|g0:z", cell{1, 9, 0, 0}.encode())
	w.sent["0001|g0:z"] = 1
	v.shows(w)
	if n := told.Load(); n != 13 {
		t.Errorf("told %d times", n)
	}
	v.stop()
	if err := v.Ready(); !errors.Is(err, ErrRecovering) {
		t.Errorf("a stopped view: %v", err)
	}
	v = view()
	w.seed(1)
	v.shows(w)
	if n := told.Load(); n != 4 {
		t.Errorf("after the restart told %d times", n)
	}
	n := 0
	if err := v.Scan(func(string, []byte) error { n++; return nil }); err != nil || n != 13 {
		t.Errorf("scan: %d values, %v", n, err)
	}
}

// A record that another partitioner has placed is refused by name (G13), and
// one that cannot be read as well.
func TestViewNamesForeignRecords(t *testing.T) {
	t.Parallel()
	for why, r := range map[string]logged{
		"another partitioner":           {"0001|g:a", cell{1, 1, 1, 1}.encode()},
		"changelog record at offset 0:": {"0002|g:a", []byte("?")},
	} {
		w := newWorld(t)
		w.produce(w.table, 2, r.key, r.value)
		v := w.view(nil)
		eventuallyNamed(t, v.Ready, why, w.table+"/2")
	}
}

// A table that is made anew, while a view follows it or while it is stopped,
// is read anew (G14).
func TestViewOfTableMadeAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := t.TempDir()
	start := func() *watcher { return w.view(func(c *ViewConfig) { c.StateDir = dir }) }
	recreate := func() {
		if _, err := w.admin.DeleteTopics(t.Context(), w.table); err != nil {
			t.Fatal(err)
		}
		clear(w.sent)
		testenv.CreateTopics(t, w.broker, w.topo)
		w.connect()
	}
	v := start()
	w.seed(5)
	v.shows(w)
	recreate()
	w.produce(w.table, 0, "0000|new:a", cell{1, 1, 1, 1}.encode())
	w.sent["0000|new:a"] = 1
	gone := func() error {
		if value, err := v.Get("0000|g0:a0"); value != nil || err != nil {
			return fmt.Errorf("the old table's key is %q, %w", value, err)
		}
		return nil
	}
	testenv.Eventually(t, soon, gone)
	v.shows(w)
	v.stop()
	recreate()
	v = start()
	w.seed(2)
	v.shows(w)
	if value, err := v.Get("0000|new:a"); value != nil || err != nil {
		t.Errorf("the old table's key is %q, %v", value, err)
	}
}

func TestViewStopIsBounded(t *testing.T) {
	t.Parallel()
	w, f := coldWorld(t)
	w.seed(3)
	v := w.view(nil)
	v.shows(w)
	f.freeze()
	if err := stopped(v.stop); err != nil {
		t.Error(err)
	}
	v = w.view(nil)
	if err := stopped(v.stop); err != nil {
		t.Error(err)
	}
}

func TestViewConfig(t *testing.T) {
	topo := testTopology(t)
	good := ViewConfig{Client: Client{Brokers: []string{"localhost:1"}}, Topology: topo, Table: topology.DisplayTable, Schema: tally{}, StateDir: t.TempDir(), Logger: quiet()}
	for why, change := range map[string]func(*ViewConfig){
		"no brokers":           func(c *ViewConfig) { c.Client.Brokers = nil },
		"a stream, not a":      func(c *ViewConfig) { c.Table = topology.Facts },
		"no schema given":      func(c *ViewConfig) { c.Schema = nil },
		"no state directory g": func(c *ViewConfig) { c.StateDir = "" },
	} {
		c := good
		change(&c)
		if _, err := NewView(c); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v", why, err)
		}
	}
}
