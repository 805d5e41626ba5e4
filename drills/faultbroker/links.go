package faultbroker

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

// links are the broker's connections, each of which asks here what is to
// happen to a request or its answer.
type links struct {
	mu     sync.Mutex
	faults map[int]*linkFault
	open   map[*link]struct{}
	dead   map[int]bool  // ports of brokers that are down
	healed chan struct{} // closed and made anew when a fault is removed
	rnd    *rand.Rand
}

type linkFault struct {
	Fault
	hit int
}

func newLinks(seed uint64) *links {
	return &links{faults: map[int]*linkFault{}, open: map[*link]struct{}{}, dead: map[int]bool{}, healed: make(chan struct{}), rnd: rand.New(rand.NewPCG(seed, 1))}
}

func (l *links) listen(network, address string) (net.Listener, error) {
	inner, err := net.Listen(network, address)
	if err != nil {
		return nil, err
	}
	return listener{inner, l}, nil
}

type listener struct {
	net.Listener
	links *links
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	k := &link{Conn: c, links: l.links, closed: make(chan struct{})}
	l.links.mu.Lock()
	defer l.links.mu.Unlock()
	if l.links.dead[k.port()] {
		return k, c.Close() // its reader is told so
	}
	l.links.open[k] = struct{}{}
	return k, nil
}

// kill closes every connection to a port, old and new ones, until revive.
func (l *links) kill(port int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead[port] = true
	for k := range l.open {
		if k.port() == port {
			go func() { _ = k.Close() }() // its Close takes the lock
		}
	}
}

func (l *links) revive(port int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.dead, port)
}

func (l *links) add(id int, f Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fault := &linkFault{Fault: f}
	l.faults[id] = fault
	if f.Kind != Cut {
		return
	}
	for k := range l.open {
		if key, client := k.request(); f.hits(key, client) {
			fault.hit++
			go func() { _ = k.Close() }() // its Close takes the lock
		}
	}
}

func (l *links) remove(id int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.faults, id)
	close(l.healed)
	l.healed = make(chan struct{})
}

func (l *links) hitsOf(id int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.faults[id]; f != nil {
		return f.hit
	}
	return 0
}

// verdict is what happens to a request or an answer.
type verdict struct {
	lose  bool
	wait  time.Duration
	stall <-chan struct{} // closed when something was healed; nil: no stall
}

func (l *links) judge(key int16, client string, answer bool) (v verdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range l.faults {
		if !f.hits(key, client) || f.Count > 0 && f.hit >= f.Count {
			continue
		}
		switch {
		case f.Kind == Stall:
			v.stall = l.healed
		case f.Kind == LoseAck && answer:
			v.lose = true
		case f.Kind == DelayAck && answer, f.Kind == DelayWork && !answer:
			v.wait += time.Duration(l.rnd.Int64N(int64(f.Most)))
		default:
			continue
		}
		f.hit++
	}
	return v
}

// link is one connection. kfake handles one request of a connection at a time,
// so an answer belongs to the request that was read last.
type link struct {
	net.Conn
	links  *links
	closed chan struct{}
	once   sync.Once

	head frame // of the reading goroutine only

	mu  sync.Mutex
	key int16
	id  string
}

func (k *link) port() int { return k.LocalAddr().(*net.TCPAddr).Port }

var errLost = errors.New("faultbroker: the answer is lost")

func (k *link) request() (int16, string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.key, k.id
}

// Read hands bytes on; the first bytes of a request are held while a fault
// says so.
func (k *link) Read(b []byte) (int, error) {
	n, err := k.Conn.Read(b)
	if k.head.feed(b[:n]) {
		k.mu.Lock()
		k.key, k.id = k.head.key, k.head.client
		k.mu.Unlock()
		if holdErr := k.hold(false); holdErr != nil {
			return n, holdErr
		}
	}
	return n, err
}

// Write writes an answer, or loses it.
func (k *link) Write(b []byte) (int, error) {
	if err := k.hold(true); err != nil {
		return 0, err
	}
	return k.Conn.Write(b)
}

// hold waits as long as faults say.
func (k *link) hold(answer bool) error {
	for {
		key, client := k.request()
		v := k.links.judge(key, client, answer)
		if v.lose {
			_ = k.Close()
			return errLost
		}
		if v.wait > 0 {
			select {
			case <-k.closed:
				return net.ErrClosed
			case <-time.After(v.wait):
			}
		}
		if v.stall == nil {
			return nil
		}
		select {
		case <-k.closed:
			return net.ErrClosed
		case <-v.stall:
		}
	}
}

// Close closes the connection; a second call does nothing.
func (k *link) Close() (err error) {
	k.once.Do(func() {
		close(k.closed)
		err = k.Conn.Close()
		k.links.mu.Lock()
		defer k.links.mu.Unlock()
		delete(k.links.open, k)
	})
	return err
}

// frame follows the requests in a stream of bytes: four bytes of length, then
// key, version, correlation id and client id, then what is not looked at.
type frame struct {
	head   []byte
	known  bool // key and client have been read
	left   int  // bytes of the frame that are still to come, once known
	key    int16
	client string
}

const fixedHead = 4 + 2 + 2 + 4 + 2 // up to the client id's length

// feed takes bytes as they come and says whether a request's head was
// completed by them.
func (f *frame) feed(b []byte) (completed bool) {
	for len(b) > 0 {
		if f.known {
			n := min(f.left, len(b))
			f.left -= n
			b = b[n:]
			if f.left == 0 {
				f.known, f.head = false, f.head[:0]
			}
			continue
		}
		f.head = append(f.head, b[0])
		b = b[1:]
		if f.parse() {
			completed = true
			if f.left == 0 {
				f.known, f.head = false, f.head[:0]
			}
		}
	}
	return completed
}

// parse reads the head once it is whole.
func (f *frame) parse() bool {
	if len(f.head) < fixedHead {
		return false
	}
	id := max(0, int(int16(binary.BigEndian.Uint16(f.head[fixedHead-2:]))))
	if len(f.head) < fixedHead+id {
		return false
	}
	f.key = int16(binary.BigEndian.Uint16(f.head[4:]))
	f.client = string(f.head[fixedHead:])
	f.left = max(0, int(binary.BigEndian.Uint32(f.head))+4-len(f.head))
	f.known = true
	return true
}
