package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tidemark/tidemark/internal/ops"
	"github.com/tidemark/tidemark/internal/testenv"
)

func TestIsAway(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, test := range []struct {
		err  error
		want bool
	}{
		{refused, true},
		{fmt.Errorf("asking: %w", refused), true},
		{&net.OpError{Op: "listen", Err: errors.New("in use")}, false},
		{&net.DNSError{}, true},
		{io.ErrUnexpectedEOF, true},
		{context.DeadlineExceeded, true},
		{kerr.CoordinatorNotAvailable, true},
		{kerr.TopicAuthorizationFailed, false},
		{&pgconn.PgError{Code: "57P03"}, true},
		{&pgconn.PgError{Code: "28P01"}, false},
		{&pgconn.PgError{Code: "42P01"}, false},
		{errors.New("topics differ"), false},
		{context.Canceled, false},
	} {
		if got := isAway(test.err); got != test.want {
			t.Errorf("%v: away %v, want %v", test.err, got, test.want)
		}
	}
}

func TestLockFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "below", "lock")
	release, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !isLocked(path) || readPID(path) != os.Getpid() {
		t.Errorf("locked %v by %d", isLocked(path), readPID(path))
	}
	var held heldError
	if _, err := lockFile(path); !errors.As(err, &held) || held.pid != os.Getpid() {
		t.Errorf("second lock: %v", err)
	}
	release()
	if isLocked(path) {
		t.Error("still locked")
	}
	again, err := lockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestReadyWord(t *testing.T) {
	for _, parts := range [][]string{
		{readyLine + "\n"},
		{"\n", readyLine[:5], readyLine[5:] + "\n"},
		{strings.Repeat("x", maxReadyLine+1), "\n" + readyLine + "\n"},
		{"a\nb\n" + readyLine + "\nc\n" + readyLine + "\n"},
	} {
		w := newReadyWord()
		for _, p := range parts {
			if n, err := w.Write([]byte(p)); n != len(p) || err != nil {
				t.Fatal(n, err)
			}
		}
		select {
		case <-w.said:
		default:
			t.Errorf("%q is not heard", clip(strings.Join(parts, "|")))
		}
	}
	w := newReadyWord()
	_, _ = w.Write([]byte("not yet: " + readyLine + "\n" + readyLine))
	select {
	case <-w.said:
		t.Error("heard in the middle of a line, or in an unfinished one")
	default:
	}
}

// A later start says only what takes its time.
func TestSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		s := &steps{say: func(format string, a ...any) { said = append(said, fmt.Sprintf(format, a...)) }}
		s.at("quick")
		time.Sleep(slow / 2)
		s.at("long")
		time.Sleep(2 * slow)
		synctest.Wait()
		s.at("last")
		s.end()
		time.Sleep(2 * slow)
		synctest.Wait()
		s.all = true
		s.at("first start")
		s.at("first start")
		s.end()
		if got := strings.Join(said, ","); got != "long,first start" {
			t.Errorf("said %s", got)
		}
	})
}

func TestScreenWithoutTerminal(t *testing.T) {
	var b bytes.Buffer
	s := newScreen(&b)
	m := s.meter("load", 10)
	m.set(5, "half")
	m.end()
	s.say("done %d", 1)
	if b.String() != "load: half\ndone 1\n" {
		t.Errorf("%q", b.String())
	}
}

// A process whose parts are not there yet is not ready, whatever else is: who asks
// would be sent to an API that does not listen.
func TestNotReadyBeforeItsParts(t *testing.T) {
	p := &process{health: ops.NewHealth(), log: slog.New(slog.DiscardHandler), ready: make(chan struct{})}
	p.health.Set(startComponent, errUnbuilt, "")
	p.health.Set("control", nil, "")
	if all, ready := p.health.Components(); ready {
		t.Errorf("ready with %+v", all)
	}
	var waits atomic.Bool
	waits.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go p.watch(ctx, []actor{{name: "api", ready: func() error {
		if waits.Load() {
			return errors.New("not yet")
		}
		return nil
	}}})
	testenv.Eventually(t, patience, func() error {
		if all, ready := p.health.Components(); ready || len(all) != 2 || all[0].Name != "api" {
			return fmt.Errorf("ready %v with %+v", ready, all)
		}
		return nil
	})
	waits.Store(false)
	select {
	case <-p.ready:
	case <-time.After(patience):
		t.Fatal("it did not become ready")
	}
	if all, ready := p.health.Components(); !ready {
		t.Errorf("not ready with %+v", all)
	}
}
