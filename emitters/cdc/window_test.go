package cdc

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/tidemark/tidemark/internal/testenv"
)

func TestWindowBlocksUntilAcked(t *testing.T) {
	for _, c := range []struct {
		name              string
		records, bytes, n int // n records of 10 bytes fit
	}{
		{"by records", 4, 1 << 20, 4},
		{"by bytes", 1 << 20, 45, 4},
		{"a large record alone", 1 << 20, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWindow(7, c.records, c.bytes)
				for range c.n {
					if _, err := w.Reserve(t.Context(), 10); err != nil {
						t.Fatal(err)
					}
				}
				taken := make(chan uint64, 1)
				go func() {
					n, err := w.Reserve(t.Context(), 10)
					if err != nil {
						t.Error(err)
					}
					taken <- n
				}()
				time.Sleep(3 * time.Second) // of the bubble's clock
				synctest.Wait()
				select {
				case n := <-taken:
					t.Fatalf("record %d was let in", n)
				default:
				}
				if l := w.Load(); !l.waiting || l.blocked != 3*time.Second || l.records != c.n || l.confirmed != 7 {
					t.Errorf("load %+v", l)
				}
				for i := range c.n {
					w.Ack(uint64(i), 10, time.Now())
				}
				if n := <-taken; n != uint64(c.n) {
					t.Errorf("number %d, want %d", n, c.n)
				}
				if l := w.Load(); l.waiting || l.records != 1 || l.bytes != 10 || l.blocked != 3*time.Second {
					t.Errorf("load %+v", l)
				}
			})
		})
	}
}

func TestWindowStopsWaitingWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(0, 1, 100)
		if _, err := w.Reserve(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		why := errors.New("why")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { time.Sleep(time.Second); cancel(why) }()
		if _, err := w.Reserve(ctx, 1); !errors.Is(err, why) {
			t.Errorf("error %v, want %v", err, why)
		}
		if l := w.Load(); l.waiting || l.records != 1 {
			t.Errorf("load %+v", l)
		}
	})
}

// One goroutine reserves and marks, another acks, as in a session.
func TestWindowUnderLoad(t *testing.T) {
	w := newWindow(0, 64, 1000)
	const n = 20_000
	numbers := make(chan uint64, 64)
	go func() {
		for number := range numbers {
			w.Ack(number, 30, time.Now())
		}
	}()
	for i := range n {
		number, err := w.Reserve(t.Context(), 30)
		if err != nil {
			t.Fatal(err)
		}
		numbers <- number
		if i%3 == 0 && !w.Mark(pglogrepl.LSN(i+1)) {
			t.Fatalf("mark %d was refused", i+1)
		}
	}
	close(numbers)
	if !w.Mark(n+1) || w.Mark(n+1) {
		t.Error("a new mark was refused or an old one taken")
	}
	testenv.Eventually(t, patience, func() error {
		if got := w.Confirmed(); got != n+1 {
			return fmt.Errorf("confirmed %d, want %d", got, n+1)
		}
		return nil
	})
}
