package relations

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// A link is a TCP way to a server that a test can cut, hang and mend.
type link struct {
	server string
	mu     sync.Mutex
	ln     net.Listener
	addr   string
	conns  map[net.Conn]bool
	hang   atomic.Bool // bytes are swallowed
	done   sync.WaitGroup
}

// newLink makes a link that is down; URL of the way over it.
func newLink(t *testing.T, target string) (*link, string) {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &link{server: u.Host, addr: ln.Addr().String(), conns: map[net.Conn]bool{}}
	_ = ln.Close() // the port is ours to listen on later
	t.Cleanup(func() { l.cut(); l.done.Wait() })
	u.Host = l.addr
	return l, u.String()
}

func (l *link) mend(t *testing.T) {
	t.Helper()
	ln, err := net.Listen("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	l.ln = ln
	l.mu.Unlock()
	l.done.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			l.done.Go(func() { l.carry(conn) })
		}
	})
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ln != nil {
		_ = l.ln.Close()
		l.ln = nil
	}
	for conn := range l.conns {
		_ = conn.Close()
	}
}

func (l *link) carry(client net.Conn) {
	server, err := net.Dial("tcp", l.server)
	if err != nil {
		_ = client.Close()
		return
	}
	l.mu.Lock()
	if l.ln == nil {
		_, _ = client.Close(), server.Close()
	}
	l.conns[client], l.conns[server] = true, true
	l.mu.Unlock()
	l.done.Go(func() { l.pump(server, client) })
	l.pump(client, server)
}

func (l *link) pump(from, to net.Conn) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if l.hang.Load() {
			_, _ = io.Copy(io.Discard, from)
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

func TestPostgresAbsentAtStartThenThereThenLost(t *testing.T) {
	urls := migrated(t, 1)
	way, there := newLink(t, urls[0])
	s := openAt(t, []string{there}, func(c *Config) { c.CommandTimeout = 500 * time.Millisecond })

	wantUnavailable := func(when string) {
		t.Helper()
		begun := time.Now()
		_, err := s.Set(context.Background(), command("op-"+when, v9001, topology.Liked))
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %v", when, err)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("%s: the answer took %v, the deadline was 500ms", when, took)
		}
		if _, err := s.States(context.Background(), "u7", topology.Like, []string{"v"}); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: states: %v", when, err)
		}
		if err := s.Ping(context.Background(), 0); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: ping: %v", when, err)
		}
	}
	wantThere := func(when string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() error { return s.Ping(context.Background(), 0) })
		testenv.Eventually(t, 20*time.Second, func() error {
			_, err := s.Set(context.Background(), command("op-"+when, v9001, topology.Liked))
			return err
		})
	}
	wantUnavailable("absent")
	way.mend(t)
	wantThere("there")
	way.cut()
	wantUnavailable("lost")
	way.mend(t)
	wantThere("back")
	way.hang.Store(true)
	wantUnavailable("hanging")
	way.cut()
	way.hang.Store(false)
	way.mend(t)
	wantThere("back again")
	checkHistory(t, s, urls)
}

func TestOneShardAwayConcernsItsUsersOnly(t *testing.T) {
	urls := migrated(t, 2)
	_, away := newLink(t, urls[1])
	s := openAt(t, []string{urls[0], away}, func(c *Config) { c.CommandTimeout = time.Second })
	var answered, unavailable int
	for i := range 8 {
		user := fmt.Sprintf("u%d", i)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		if s.config.Map.Shard(user) == 1 {
			cancel()
			ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
		}
		_, err := s.Set(ctx, command("op", relation(topology.Like, user, "v"), topology.Liked))
		cancel()
		switch {
		case errors.Is(err, ErrUnavailable) && s.config.Map.Shard(user) == 1:
			unavailable++
		case err == nil && s.config.Map.Shard(user) == 0:
			answered++
		default:
			t.Errorf("user of shard %d: %v", s.config.Map.Shard(user), err)
		}
	}
	if answered == 0 || unavailable == 0 {
		t.Errorf("%d answered, %d unavailable", answered, unavailable)
	}
}

func TestI2I9ConnectionsKilledUnderLoad(t *testing.T) {
	urls := migrated(t, 2)
	s := openAt(t, urls, nil)
	const writers, each = 24, 60
	ctx, stop := context.WithCancel(context.Background())
	var kills, answers atomic.Int64
	var killer errgroup.Group
	for _, url := range urls {
		conn := dial(t, url)
		killer.Go(func() error {
			for next := int64(0); ctx.Err() == nil; {
				if answers.Load() < next {
					runtime.Gosched()
					continue
				}
				var n int64
				err := conn.QueryRow(context.Background(), `
					SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
					WHERE datname = current_database() AND application_name = 'tidemark-relations' AND state = 'active'`).Scan(&n)
				if err != nil {
					return err
				}
				kills.Add(n)
				if n > 0 { // let them come back and do some work
					next = answers.Load() + 10
				}
			}
			return nil
		})
	}
	acked := make([]map[string]Result, writers)
	var group errgroup.Group
	for w := range writers {
		acked[w] = map[string]Result{}
		group.Go(func() error {
			for i := range each {
				id := fmt.Sprintf("op-%d-%d", w, i)
				r := relation(topology.Like, fmt.Sprintf("u%d", w%5), fmt.Sprintf("v%d", i%4))
				res, err := s.Set(context.Background(), command(id, r, []topology.State{topology.Liked, topology.Unliked}[(w+i)%2]))
				if err != nil {
					return fmt.Errorf("%s: %w", id, err)
				}
				acked[w][id] = res
				answers.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	stop()
	if err := errors.Join(err, killer.Wait()); err != nil {
		t.Fatal(err)
	}
	if kills.Load() == 0 {
		t.Fatal("no connection was killed")
	}
	t.Logf("%d connections killed", kills.Load())
	for w, results := range acked {
		for id, want := range results {
			op, err := s.Operation(context.Background(), fmt.Sprintf("u%d", w%5), id)
			if err != nil || op.Result != want.Operation {
				t.Fatalf("%s was answered with %+v and is %+v (%v)", id, want.Operation, op.Result, err)
			}
		}
	}
	checkHistory(t, s, urls)
	checkCommands(t, urls, writers*each)
}

func TestA4ACommandWhoseCallerLeftMayCommitAndIsFound(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	release := hold(t, urls[0], v9001)
	ctx, leave := context.WithCancel(context.Background())
	left := make(chan error, 1)
	go func() {
		_, err := s.Set(ctx, command("op", v9001, topology.Liked))
		left <- err
	}()
	lockAwaited(t, urls[0])
	leave()
	if err := <-left; !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("the caller that left got %v", err)
	}
	release()
	testenv.Eventually(t, 10*time.Second, func() error {
		op, err := s.Operation(context.Background(), "u7", "op")
		if err == nil && (op.Result.Outcome != Applied || op.Current.Version != 1) {
			t.Fatalf("the operation is %+v", op)
		}
		return err
	})
	r := mustSet(t, s, command("op", v9001, topology.Liked))
	if !r.Replayed {
		t.Error("the command was decided again")
	}
}

func TestAFullQueueHoldsCallersBack(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, func(c *Config) { c.QueueLimit, c.Committers = 1, 1 })
	release := hold(t, urls[0], v9001)
	var group errgroup.Group
	group.Go(func() error {
		_, err := s.Set(context.Background(), command("a", v9001, topology.Liked))
		return err
	})
	lockAwaited(t, urls[0])
	group.Go(func() error {
		_, err := s.Set(context.Background(), command("b", v9001, topology.Liked))
		return err
	})
	testenv.Eventually(t, 10*time.Second, func() error {
		if len(s.shards[0].queue) == 0 {
			return errors.New("the queue is empty")
		}
		return nil
	})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err := s.Set(ctx, command("c", v9001, topology.Liked))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "queue is full") {
		t.Errorf("with a full queue: %v", err)
	}
	release()
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func TestACommandThatNobodyWaitsForIsNotBegun(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, func(c *Config) { c.Committers = 1 })
	release := hold(t, urls[0], v9001)
	var group errgroup.Group
	group.Go(func() error {
		_, err := s.Set(context.Background(), command("a", v9001, topology.Liked))
		return err
	})
	lockAwaited(t, urls[0])
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := s.Set(ctx, command("b", v9001, topology.Unliked)); !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v", err)
	}
	release()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if r := mustSet(t, s, command("c", v9001, topology.Liked)); r.Current.Version != 1 {
		t.Errorf("the command that was given up made version %d", r.Current.Version)
	}
}
