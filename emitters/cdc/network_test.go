package cdc

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
)

// proxy stands between emitter and PostgreSQL. Frozen connections stay open
// and carry nothing more; new ones work.
type proxy struct {
	listener net.Listener
	target   string

	mu   sync.Mutex
	open map[*pipe]bool
	work sync.WaitGroup
}

// pipe is one connection through the proxy.
type pipe struct {
	in, out net.Conn
	frozen  chan struct{}
	freeze  func()
}

func (r *rig) throughProxy() *proxy {
	r.t.Helper()
	u, err := url.Parse(r.cfg.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	p := &proxy{target: u.Host, open: map[*pipe]bool{}}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		r.t.Fatal(err)
	}
	u.Host = p.listener.Addr().String()
	r.cfg.URL = u.String()
	p.work.Go(p.accept)
	r.t.Cleanup(func() {
		_ = p.listener.Close()
		p.each(func(c *pipe) { _, _ = c.in.Close(), c.out.Close() })
		p.work.Wait()
	})
	return p
}

func (p *proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = in.Close()
			continue
		}
		c := &pipe{in: in, out: out, frozen: make(chan struct{})}
		c.freeze = sync.OnceFunc(func() { close(c.frozen) })
		p.mu.Lock()
		p.open[c] = true
		p.mu.Unlock()
		p.work.Go(func() { c.copy(in, out) })
		p.work.Go(func() { c.copy(out, in) })
	}
}

// copy passes on what from says until either side ends; frozen, it swallows it.
func (c *pipe) copy(to, from net.Conn) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		select {
		case <-c.frozen:
			if err != nil {
				return
			}
			continue
		default:
		}
		if _, werr := to.Write(b[:n]); err != nil || werr != nil {
			_ = to.Close()
			return
		}
	}
}

func (p *proxy) each(f func(*pipe)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		f(c)
	}
}

// TestSilentConnection: the network swallows everything, no end is told. The
// emitter notices, and goes on when the server has freed the slot.
func TestSilentConnection(t *testing.T) {
	r := newRig(t)
	r.exec(`DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET wal_sender_timeout = ''1s''', current_database()); END$$`)
	r.ensureSlot()
	p := r.throughProxy()
	e := r.start(func(c *Config) { c.Silence = 500 * time.Millisecond })
	r.insert(5)
	r.awaitRows(5)
	// Quiet is not silent: the emitter asks and hears answers.
	end := time.Now().Add(time.Second)
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Restarts != 0 {
			t.Fatalf("an idle connection was given up: %s", s.LastError)
		}
		if time.Now().Before(end) {
			return io.ErrNoProgress
		}
		return nil
	})
	p.each(func(c *pipe) { c.freeze() })
	r.insert(5)
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Restarts == 0 || !strings.Contains(s.LastError, "has sent nothing for") {
			return fmt.Errorf("%d restarts, last error %q", s.Restarts, s.LastError)
		}
		return nil
	})
	checkOrder(t, r.awaitRows(10))
}
