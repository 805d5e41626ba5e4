package cdc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
)

// proxy stands between emitter and PostgreSQL and knows where messages of the
// protocol begin, so that a connection can end, or stand still, at an exact
// place of the stream.
type proxy struct {
	t        testing.TB
	listener net.Listener

	// latency is added in each direction, in ns.
	latency atomic.Int64
	// lossPercent of all messages arrive late by a retransmission, and what
	// stands behind them with them, as over TCP.
	lossPercent atomic.Int64

	mu     sync.Mutex
	target string
	open   map[*pipe]bool
	judge  func(change) verdict
	status func(*pipe, pglogrepl.LSN)
	work   sync.WaitGroup
}

// change is a message of the stream on its way to the emitter.
type change struct {
	kind byte // of pgoutput; k: a keepalive
	body []byte
	pipe *pipe
}

// verdict says what becomes of a message.
type verdict int

const (
	pass     verdict = iota
	hold             // passes; nothing behind it does
	withhold         // neither it nor anything behind it passes
)

// pipe is one connection through the proxy. Frozen, it stays open and carries
// nothing more.
type pipe struct {
	client, server *net.TCPConn
	toClient       chan parcel
	toServer       chan parcel
	frozen, closed chan struct{}
	freeze, close  func()
}

// parcel is a message with the time of its arrival.
type parcel struct {
	at   time.Time
	b    []byte
	last bool // the connection ends behind it
}

// throughProxy puts a proxy into the rig's URL.
func (r *rig) throughProxy() *proxy {
	r.t.Helper()
	u, err := url.Parse(r.cfg.URL)
	if err != nil {
		r.t.Fatal(err)
	}
	p := &proxy{t: r.t, target: u.Host, open: map[*pipe]bool{}}
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		r.t.Fatal(err)
	}
	u.Host = p.listener.Addr().String()
	r.cfg.URL = u.String()
	p.work.Go(p.accept)
	r.t.Cleanup(func() {
		_ = p.listener.Close()
		p.each(func(c *pipe) { c.close() })
		p.work.Wait()
	})
	return p
}

// set changes what the proxy does with what it sees.
func (p *proxy) set(judge func(change) verdict, status func(*pipe, pglogrepl.LSN)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge, p.status = judge, status
}

// redirect sends new connections elsewhere.
func (p *proxy) redirect(to string) {
	p.t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = u.Host
}

func (p *proxy) each(f func(*pipe)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		f(c)
	}
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		server, err := net.Dial("tcp", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.connect(client.(*net.TCPConn), server.(*net.TCPConn))
	}
}

func (p *proxy) connect(client, server *net.TCPConn) {
	c := &pipe{
		client: client, server: server, toClient: make(chan parcel, 1024), toServer: make(chan parcel, 1024),
		frozen: make(chan struct{}), closed: make(chan struct{}),
	}
	c.freeze = sync.OnceFunc(func() { close(c.frozen) })
	c.close = sync.OnceFunc(func() { close(c.closed); _, _ = client.Close(), server.Close() })
	p.mu.Lock()
	p.open[c] = true
	p.mu.Unlock()
	p.work.Go(func() { p.fromServer(c) })
	p.work.Go(func() { p.fromClient(c) })
	p.work.Go(func() { c.deliver(client, c.toClient) })
	p.work.Go(func() { c.deliver(server, c.toServer) })
}

// fromServer ends the connection to the emitter behind the server's last
// message.
func (p *proxy) fromServer(c *pipe) {
	from := bufio.NewReaderSize(c.server, 64<<10)
	for {
		b, err := readMessage(from, 1)
		if err != nil {
			c.end()
			return
		}
		v := p.verdict(c, b)
		if v != withhold {
			c.send(c.toClient, p.parcel(b))
		}
		if v != pass {
			return
		}
	}
}

// verdict of a message; anything but a change or a keepalive passes.
func (p *proxy) verdict(c *pipe, b []byte) verdict {
	p.mu.Lock()
	judge := p.judge
	p.mu.Unlock()
	if judge == nil || b[0] != 'd' || len(b) < 6 {
		return pass
	}
	switch data := b[5:]; {
	case data[0] == frameKeepalive:
		return judge(change{kind: frameKeepalive, body: data, pipe: c})
	case data[0] == frameChange && len(data) > 25:
		return judge(change{kind: data[25], body: data[26:], pipe: c})
	}
	return pass
}

func (p *proxy) fromClient(c *pipe) {
	defer c.close()
	from := bufio.NewReader(c.client)
	for header := 0; ; header = 1 { // the first message has no type
		b, err := readMessage(from, header)
		if err != nil {
			return
		}
		p.mu.Lock()
		status := p.status
		p.mu.Unlock()
		if status != nil && header == 1 && b[0] == 'd' && len(b) >= 14 && b[5] == 'r' {
			status(c, pglogrepl.LSN(binary.BigEndian.Uint64(b[6:])))
		}
		c.send(c.toServer, p.parcel(b))
	}
}

// readMessage reads a message whose length stands behind header bytes.
func readMessage(from io.Reader, header int) ([]byte, error) {
	b := make([]byte, header+4)
	if _, err := io.ReadFull(from, b); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(b[header:])) - 4
	if n < 0 || n > 1<<30 {
		return nil, errors.New("not PostgreSQL's protocol")
	}
	b = append(b, make([]byte, n)...)
	_, err := io.ReadFull(from, b[header+4:])
	return b, err
}

func (p *proxy) parcel(b []byte) parcel {
	at := time.Now().Add(time.Duration(p.latency.Load()))
	for again := 200 * time.Millisecond; rand.Int64N(100) < p.lossPercent.Load(); again *= 2 {
		at = at.Add(again)
	}
	return parcel{at: at, b: b}
}

func (c *pipe) send(queue chan parcel, x parcel) {
	select {
	case queue <- x:
	case <-c.closed:
	}
}

// deliver writes parcels when they are due; a frozen pipe swallows them.
func (c *pipe) deliver(to *net.TCPConn, queue chan parcel) {
	for {
		select {
		case <-c.closed:
			return
		case x := <-queue:
			if !c.await(x.at) {
				return
			}
			select {
			case <-c.frozen:
				continue
			default:
			}
			if _, err := to.Write(x.b); err != nil {
				c.close()
				return
			}
			if x.last {
				_ = to.CloseWrite() // what stands before it is read first
				_ = c.server.Close()
			}
		}
	}
}

// await reports false when the connection ends first.
func (c *pipe) await(at time.Time) bool {
	d := time.Until(at)
	if d <= 0 {
		return true
	}
	select {
	case <-time.After(d):
		return true
	case <-c.closed:
		return false
	}
}

// end ends the connection to the emitter behind what it was sent.
func (c *pipe) end() { c.send(c.toClient, parcel{at: time.Now(), last: true}) }

// inject puts a message of the server's into the stream to the emitter.
func (c *pipe) inject(data []byte) {
	b := binary.BigEndian.AppendUint32([]byte{'d'}, uint32(len(data)+4))
	c.send(c.toClient, parcel{at: time.Now(), b: append(b, data...)})
}
