package cdc

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

func TestPacedReaderKeepsTheBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // so that pacing takes no time
		want := bytes.Repeat([]byte("0123456789"), 30_000)
		for name, from := range map[string]io.Reader{
			"at once": bytes.NewReader(want), "byte by byte": iotest.OneByteReader(bytes.NewReader(want)), "halves": iotest.HalfReader(bytes.NewReader(want)),
		} {
			got, err := io.ReadAll(newPacedReader(from))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(want), err)
			}
		}
		why := errors.New("why")
		if _, err := newPacedReader(iotest.ErrReader(why)).Read(make([]byte, 1)); !errors.Is(err, why) {
			t.Errorf("error %v", err)
		}
	})
}

// source gives a message of size bytes every gap, or all that gathered.
type source struct {
	gap  time.Duration
	size int
	sent time.Time // up to which messages were read
	n    int       // reads
}

func (s *source) Read(b []byte) (int, error) {
	s.n++
	if s.sent.IsZero() {
		s.sent = time.Now()
	}
	if wait := s.gap - time.Since(s.sent); wait > 0 {
		time.Sleep(wait)
	}
	messages := min(int(time.Since(s.sent)/s.gap), len(b)/s.size)
	s.sent = s.sent.Add(time.Duration(messages) * s.gap)
	return messages * s.size, nil
}

func TestPacedReaderPacesDenseMessagesOnly(t *testing.T) {
	for _, c := range []struct {
		name    string
		gap     time.Duration
		size    int
		atLeast int // reads in a second
		atMost  int
	}{
		{"sparse", 2 * time.Millisecond, 600, 499, 501},
		{"dense", 20 * time.Microsecond, 600, 900, 1100},
		{"small ones only", 100 * time.Microsecond, 30, 5000, 10000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &source{gap: c.gap, size: c.size}
				r := newPacedReader(s)
				b := make([]byte, readBuffer)
				for began := time.Now(); time.Since(began) < time.Second; {
					if _, err := r.Read(b); err != nil {
						t.Fatal(err)
					}
				}
				if s.n < c.atLeast || s.n > c.atMost {
					t.Errorf("%d reads in a second, want %d to %d", s.n, c.atLeast, c.atMost)
				}
			})
		})
	}
}
