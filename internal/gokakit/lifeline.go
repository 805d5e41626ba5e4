package gokakit

import (
	"context"
	"errors"
	"net"
	"sync"
)

// lifeline makes the connections of sarama's clients and can cut all of them:
// sarama knows no context, and a broker that does not answer would hold up a
// stop for its read timeouts.
type lifeline struct {
	ctx  context.Context // ends with the cut
	stop context.CancelFunc
	dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

var errCut = errors.New("connections are cut: the member is stopping")

func (c Client) newLifeline() *lifeline {
	l := &lifeline{dial: c.Access.Dial, conns: map[net.Conn]struct{}{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	return l
}

// Dial makes this a proxy.Dialer.
func (l *lifeline) Dial(network, address string) (net.Conn, error) {
	c, err := l.dial(l.ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, errors.Join(errCut, c.Close())
	}
	held := &heldConn{Conn: c, line: l}
	l.conns[held] = struct{}{}
	return held, nil
}

// cut closes every connection and refuses new ones; a second call does
// nothing.
func (l *lifeline) cut() {
	l.stop()
	l.mu.Lock()
	conns := l.conns
	l.conns = map[net.Conn]struct{}{}
	l.mu.Unlock()
	for c := range conns {
		_ = c.Close()
	}
}

func (l *lifeline) isCut() bool { return l.ctx.Err() != nil }

// heldConn leaves the lifeline when it is closed.
type heldConn struct {
	net.Conn
	line *lifeline
}

func (c *heldConn) Close() error {
	c.line.mu.Lock()
	delete(c.line.conns, c)
	c.line.mu.Unlock()
	return c.Conn.Close()
}
