package cdc

import (
	"io"
	"time"
)

// pacedReader reads the replication connection. The server sends every message
// in a packet of its own, and to wake for each costs more than to decode it.
// So while messages come densely the reader lets a millisecond's worth gather
// before it reads; sparse ones are not delayed.
type pacedReader struct {
	from   io.Reader
	buf    []byte
	unread []byte    // of buf
	last   time.Time // when the last read returned
	dense  int       // reads in a row that returned soon after the one before
}

const (
	pace       = time.Millisecond
	denseGap   = pace / 4 // between reads, before they count as dense
	denseReads = 8        // in a row, before the reader paces
	denseBytes = 1 << 10  // in a paced read, for it to go on pacing
	readBuffer = 64 << 10
)

func newPacedReader(from io.Reader) *pacedReader {
	return &pacedReader{from: from, buf: make([]byte, readBuffer)}
}

// Read reads like from, through a buffer.
func (p *pacedReader) Read(b []byte) (int, error) {
	if len(p.unread) == 0 {
		if err := p.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(b, p.unread)
	p.unread = p.unread[n:]
	return n, nil
}

func (p *pacedReader) fill() error {
	paced := p.dense >= denseReads
	if paced {
		time.Sleep(pace)
	}
	n, err := p.from.Read(p.buf)
	p.unread = p.buf[:n]
	now := time.Now()
	switch {
	case n == len(p.buf): // a backlog: there is more already
		p.dense = 0
	case paced && n < denseBytes, !paced && now.Sub(p.last) > denseGap:
		p.dense = 0
	default:
		p.dense++
	}
	p.last = now
	if n > 0 {
		return nil // err, if any, comes again
	}
	return err
}
