// Package faultproxy is a way to a TCP server that is slow, is cut, or leads to
// another server when a drill says so.
package faultproxy

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/internal/embedded"
)

// Proxy forwards connections to a server. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	tasks    sync.WaitGroup
	late     atomic.Int64 // nanoseconds by which answers are late
	most     atomic.Int64 // bytes that a connection passes to the server, at most; 0: any number
	cuts     atomic.Int64

	mu    sync.Mutex
	to    string
	links map[*link]bool
	ended bool
}

// link is a connection and its way on.
type link struct{ client, server net.Conn }

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// Start begins to forward to a server, host:port.
func Start(to string) (*Proxy, error) {
	port, err := embedded.FreePort()
	if err != nil {
		return nil, fmt.Errorf("starting a proxy: %w", err)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("starting a proxy: %w", err)
	}
	p := &Proxy{listener: l, to: to, links: map[*link]bool{}}
	p.tasks.Go(p.accept)
	return p, nil
}

// Address is host:port where it listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// LeadTo has every connection end, and new ones lead to another server.
func (p *Proxy) LeadTo(to string) {
	p.mu.Lock()
	p.to = to
	p.mu.Unlock()
	p.Cut()
}

// Slow makes every answer late by so much; 0 ends that. Answers keep their order
// and do not wait for each other.
func (p *Proxy) Slow(late time.Duration) { p.late.Store(int64(late)) }

// CutAfter cuts each connection after it has passed a random number of bytes
// to the server, at most so many: what they were is done, and not answered. 0 ends
// that.
func (p *Proxy) CutAfter(most int64) { p.most.Store(most) }

// Cuts is how many connections CutAfter has cut.
func (p *Proxy) Cuts() int64 { return p.cuts.Load() }

// Cut ends every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Close ends the proxy; a second call does nothing.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.tasks.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.tasks.Go(func() { p.lead(client) })
	}
}

func (p *Proxy) lead(client net.Conn) {
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", to, time.Second)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client, server}
	defer l.close()
	p.mu.Lock()
	current := p.to == to && !p.ended
	if current {
		p.links[l] = true
	}
	p.mu.Unlock()
	if !current { // it leads elsewhere since then
		return
	}
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	var ways sync.WaitGroup
	ways.Go(func() { defer l.close(); p.ask(l) })
	ways.Go(func() { defer l.close(); p.answer(l) })
	ways.Wait()
}

const chunk = 16 << 10

// ask passes on what the client sends.
func (p *Proxy) ask(l *link) {
	buf := make([]byte, chunk)
	var left, most int64 // of a cut that is due
	for {
		n, err := l.client.Read(buf)
		if err != nil {
			return
		}
		if now := p.most.Load(); now != most {
			if most = now; most > 0 {
				left = 1 + rand.Int64N(most)
			}
		}
		if most > 0 && int64(n) >= left {
			_, _ = l.server.Write(buf[:left])
			p.cuts.Add(1)
			return
		}
		left -= int64(n)
		if _, err := l.server.Write(buf[:n]); err != nil {
			return
		}
	}
}

type piece struct {
	due   time.Time
	bytes []byte
}

// answer passes on what the server sends, when it is due.
func (p *Proxy) answer(l *link) {
	pieces := make(chan piece, 1024)
	var passing sync.WaitGroup
	passing.Go(func() {
		defer l.close()
		for piece := range pieces {
			time.Sleep(time.Until(piece.due))
			if _, err := l.client.Write(piece.bytes); err != nil {
				break
			}
		}
		for range pieces { // nobody is there to take them
		}
	})
	defer passing.Wait()
	defer close(pieces)
	for {
		buf := make([]byte, chunk)
		n, err := l.server.Read(buf)
		if n > 0 {
			pieces <- piece{time.Now().Add(time.Duration(p.late.Load())), buf[:n]}
		}
		if err != nil {
			return
		}
	}
}
