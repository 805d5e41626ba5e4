package gokakit

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/testenv"
)

// frost lies over a network: what is sent does not arrive, and nobody is told.
type frost struct {
	mu   sync.Mutex
	thaw chan struct{} // nil while nothing is frozen
}

func (f *frost) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.thaw = make(chan struct{})
}

func (f *frost) melt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.thaw != nil {
		close(f.thaw)
		f.thaw = nil
	}
}

func (f *frost) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address)
	return frostListener{l, f}, err
}

type frostListener struct {
	net.Listener
	frost *frost
}

func (l frostListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &frostConn{Conn: c, frost: l.frost, closed: make(chan struct{})}, nil
}

type frostConn struct {
	net.Conn
	frost  *frost
	once   sync.Once
	closed chan struct{}
}

func (c *frostConn) wait() {
	c.frost.mu.Lock()
	thaw := c.frost.thaw
	c.frost.mu.Unlock()
	if thaw != nil {
		select {
		case <-thaw:
		case <-c.closed:
		}
	}
}

func (c *frostConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wait()
	return n, err
}

func (c *frostConn) Write(p []byte) (int, error) {
	c.wait()
	return c.Conn.Write(p)
}

func (c *frostConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// coldWorld is a world whose broker can fall silent.
func coldWorld(t *testing.T) (*world, *frost) {
	f := new(frost)
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(500*time.Millisecond), kfake.ListenFn(f.listen),
		kfake.BrokerConfigs(map[string]string{"default.replication.factor": "1"}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	t.Cleanup(f.melt)
	return worldAt(t, c.ListenAddrs()), f
}

const stopLimit = 5 * time.Second

// stopped says whether stop returns within the limit.
func stopped(stop func()) error {
	start := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		stop()
	}()
	if !wait(done, stopLimit) {
		return fmt.Errorf("not stopped after %v", time.Since(start))
	}
	return nil
}

// A stop takes less than 5 s with records on their way, whether the broker
// answers or not; what was on its way is done again later.
func TestStopIsBounded(t *testing.T) {
	for name, run := range map[string]func(t *testing.T, weak Weakness) error{
		"broker up": func(t *testing.T, _ Weakness) error {
			w := newWorld(t)
			m := w.start(nil)
			w.ready(m)
			w.send(50)
			if err := stopped(m.stop); err != nil {
				return err
			}
			w.start(nil)
			return orNil(w.counted())
		},
		"broker silent": func(t *testing.T, weak Weakness) error {
			w, f := coldWorld(t)
			gate := make(chan struct{})
			var begun atomic.Int64
			m := w.start(func(c *ProcessorConfig) {
				c.weak = weak
				c.Handle = func(p *Partition, r Record) error {
					begun.Add(1)
					<-gate
					return count(p, r)
				}
			})
			open := sync.OnceFunc(func() { close(gate) })
			t.Cleanup(open)
			w.ready(m)
			w.send(20)
			testenv.Eventually(t, soon, func() error {
				if begun.Load() < 4 {
					return errNotYet
				}
				return nil
			})
			f.freeze()
			open()
			if err := stopped(m.stop); err != nil {
				f.melt()
				m.stop()
				return err
			}
			f.melt()
			w.start(nil)
			return orNil(w.counted())
		},
		"broker silent while it joins": func(t *testing.T, _ Weakness) error {
			w, f := coldWorld(t)
			w.send(5)
			f.freeze()
			m := w.start(nil)
			if err := stopped(m.stop); err != nil {
				return err
			}
			f.melt()
			w.start(nil)
			return orNil(w.counted())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := run(t, 0); err != nil {
				t.Error(err)
			}
			if name == "broker silent" {
				if err := run(t, WithoutBoundedStop); err == nil {
					t.Error("a stop that nothing bounds looks the same")
				}
			}
		})
	}
}

func orNil(difference string) error {
	if difference == "" {
		return nil
	}
	return errors.New(difference)
}

// A processor that loses its broker says so, and goes on when it is back (G08).
func TestSilentBrokerIsNamed(t *testing.T) {
	t.Parallel()
	w, f := coldWorld(t)
	m := w.start(nil)
	w.ready(m)
	w.send(5)
	f.freeze()
	testenv.Eventually(t, soon, func() error {
		if m.Ready() == nil {
			return errors.New("still ready")
		}
		return nil
	})
	if err := m.Ready(); err == nil || !strings.Contains(err.Error(), "kafka") && !strings.Contains(err.Error(), "building anew") {
		t.Errorf("ready says: %v", err)
	}
	f.melt()
	w.send(5)
	if d := w.counted(); d != "" {
		t.Error(d)
	}
	w.ready(m)
}

// Processor and view start before their broker, wait for it by name, and
// survive its restart: the view stays readable and catches up (G09, G28).
func TestBrokerComesAndGoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker := func() *embedded.Kafka {
		k, err := embedded.StartKafka(embedded.KafkaConfig{DataDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	k := broker()
	w := worldAt(t, k.Brokers())
	if err := k.Stop(); err != nil {
		t.Fatal(err)
	}
	m := w.start(nil)
	v := w.view(nil)
	for name, ready := range map[string]func() error{"processor": m.Ready, "view": v.Ready} {
		eventuallyNamed(t, func() error {
			if err := ready(); err != nil {
				return err
			}
			t.Errorf("%s is ready without a broker", name)
			return errNotYet
		}, "kafka")
	}
	k = broker()
	w.ready(m)
	testenv.Eventually(t, soon, v.Ready)
	w.send(5)
	v.shows(w)
	for range 3 {
		if err := k.Stop(); err != nil {
			t.Fatal(err)
		}
		if err := v.difference(w); err != nil {
			t.Errorf("while the broker is away: %v", err)
		}
		k = broker()
		w.send(5)
		if d := w.counted(); d != "" {
			t.Error(d)
		}
		v.shows(w)
	}
	v.stop()
	m.stop()
	if err := k.Stop(); err != nil {
		t.Fatal(err)
	}
}
