package relations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// A mapBoard is the stored shard map of a test.
type mapBoard struct {
	current atomic.Pointer[topology.ShardMap]
}

func newMapBoard(m topology.ShardMap) *mapBoard {
	b := new(mapBoard)
	b.current.Store(&m)
	return b
}

func (b *mapBoard) load(context.Context) (topology.ShardMap, error) { return *b.current.Load(), nil }

// open starts a store that has the map of now.
func (b *mapBoard) open(t *testing.T, urls []string, change func(*Config)) *Store {
	t.Helper()
	return openAt(t, urls, func(c *Config) {
		c.Map, c.LoadMap = *b.current.Load(), b.load
		if change != nil {
			change(c)
		}
	})
}

// next is m's successor with other slots.
func next(m topology.ShardMap, change func(slots []int)) topology.ShardMap {
	m.ID++
	m.Slots = slices.Clone(m.Slots)
	if change != nil {
		change(m.Slots)
	}
	return m
}

func fenceAll(t *testing.T, urls []string, from, to uint32) {
	t.Helper()
	for shard, url := range urls {
		if err := Fence(context.Background(), url, shard, from, to, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

// A writer that is between its reading and its commit is waited for: the epoch
// does not pass it.
func TestFenceWaitsForAWriterThatPauses(t *testing.T) {
	urls := migrated(t, 1)
	board := newMapBoard(topology.NewShardMap(1, 1))
	s := board.open(t, urls, func(c *Config) { c.Committers = 1 })
	paused, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.shards[0].clock = func(now time.Time) time.Time {
		once.Do(func() { close(paused); <-resume })
		return now
	}
	like := relation(topology.Like, "u7", "V9001")
	done := make(chan error, 1)
	go func() {
		_, err := s.Set(context.Background(), command("op-1", like, topology.Liked))
		done <- err
	}()
	<-paused
	if err := Fence(context.Background(), urls[0], 0, 1, 2, 100*time.Millisecond); !errors.Is(err, ErrFenceBusy) {
		t.Errorf("the epoch was raised past a transaction under way: %v", err)
	}
	close(resume)
	if err := <-done; err != nil {
		t.Error(err)
	}
	fenceAll(t, urls, 1, 2)
	m := next(*board.current.Load(), nil)
	board.current.Store(&m)
	wantResult(t, mustSet(t, s, command("op-2", like, topology.Unliked)), Applied, topology.Unliked, 2)
	checkHistory(t, s, urls)
}

// A writer whose transaction was ended while it paused finds the higher epoch,
// writes nothing under the old map, and goes where the new one says.
func TestFenceRefusesAWriterThatWakesUpLate(t *testing.T) {
	urls := migrated(t, 2)
	first := topology.NewShardMap(1, 2)
	board := newMapBoard(first)
	s := board.open(t, urls, func(c *Config) { c.Committers = 1 })
	const user = "u7"
	old := first.Shard(user)
	paused, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s.shards[old].clock = func(now time.Time) time.Time {
		once.Do(func() { close(paused); <-resume })
		return now
	}
	done := make(chan error, 1)
	go func() {
		_, err := s.Set(context.Background(), command("op-1", relation(topology.Like, user, "V9001"), topology.Liked))
		done <- err
	}()
	<-paused
	_, err := dial(t, urls[old]).Exec(context.Background(), `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE application_name = 'tidemark-relations' AND state = 'idle in transaction' AND datname = current_database()`)
	if err != nil {
		t.Fatal(err)
	}
	fenceAll(t, urls, 1, 2)
	m := next(first, func(slots []int) { slots[first.Contract.Slot(user)] = 1 - old })
	board.current.Store(&m)
	close(resume)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if have := facts(t, s, old); len(have) != 0 {
		t.Errorf("written under the old map: %v", have)
	}
	if have := facts(t, s, 1-old); len(have) != 1 {
		t.Errorf("under the new map: %v", have)
	}
	checkHistory(t, s, urls)
}

// A process that starts with an old map is not ready and writes nothing.
func TestFenceRefusesAnOldProcess(t *testing.T) {
	urls := migrated(t, 1)
	fenceAll(t, urls, 1, 2)
	s := openAt(t, urls, func(c *Config) { c.CommandTimeout = 3 * time.Second })
	_, err := s.Set(context.Background(), command("op-1", relation(topology.Like, "u7", "V9001"), topology.Liked))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "shard map 1") {
		t.Errorf("a command: %v", err)
	}
	if err := s.Ping(context.Background(), 0); err == nil || !strings.Contains(err.Error(), "serves writers of shard map 2") {
		t.Errorf("ping: %v", err)
	}
	if have := facts(t, s, 0); len(have) != 0 || len(outbox(t, urls[0])) != 0 {
		t.Errorf("written: %v", have)
	}
}

func TestFenceEpochRises(t *testing.T) {
	url := migrated(t, 1)[0]
	ctx := context.Background()
	for range 2 { // raising again is no error: whoever was interrupted comes again
		if err := Fence(ctx, url, 0, 1, 2, time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if err := Fence(ctx, url, 0, 1, 3, time.Second); err == nil || !strings.Contains(err.Error(), "is 2, not 1") {
		t.Errorf("from an epoch that is past: %v", err)
	}
	if err := Fence(ctx, url, 0, 2, 1, time.Second); err == nil || !strings.Contains(err.Error(), "cannot go from 2 to 1") {
		t.Errorf("down: %v", err)
	}
	if epoch, err := MapEpoch(ctx, url, 0); err != nil || epoch != 2 {
		t.Errorf("epoch %d, error %v", epoch, err)
	}
}

// moveUsers does what a move of users between two fences has to do: their
// facts and decided commands change the database.
func moveUsers(t *testing.T, urls []string, from, to topology.ShardMap) (moved int) {
	t.Helper()
	ctx := context.Background()
	for shard, url := range urls {
		conn := dial(t, url)
		rows, err := conn.Query(ctx, "SELECT DISTINCT user_id FROM command")
		if err != nil {
			t.Fatal(err)
		}
		users, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, user := range users {
			if from.Shard(user) != shard || to.Shard(user) == shard {
				continue
			}
			moved++
			moveUser(t, conn, dial(t, urls[to.Shard(user)]), user)
		}
	}
	return moved
}

func moveUser(t *testing.T, from, to *pgx.Conn, user string) {
	t.Helper()
	ctx := context.Background()
	for _, table := range []string{"relation", "command"} {
		rows, err := from.Query(ctx, fmt.Sprintf("SELECT to_jsonb(r)::text FROM %s r WHERE user_id = $1", table), user)
		if err != nil {
			t.Fatal(err)
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range all {
			if _, err := to.Exec(ctx, fmt.Sprintf("INSERT INTO %[1]s SELECT * FROM jsonb_populate_record(NULL::%[1]s, $1::jsonb)", table), row); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := from.Exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE user_id = $1", table), user); err != nil {
			t.Fatal(err)
		}
	}
}

// While two processes write, users move between shards again and again. Every
// relation has one fact, and its versions are there once each, on whichever
// shards they were made (I1, I2).
func TestUsersMoveUnderWrites(t *testing.T) {
	const shards, users, rounds = 3, 24, 6
	urls := migrated(t, shards)
	board := newMapBoard(topology.NewShardMap(1, shards))
	stores := []*Store{board.open(t, urls, nil), board.open(t, urls, nil)}
	ctx, stop := context.WithCancel(context.Background())
	var writers sync.WaitGroup
	defer stop()
	decided := make(chan struct{})
	for w := range 8 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(w)))
			for n := 0; ctx.Err() == nil; n++ {
				user := fmt.Sprint("u", rng.IntN(users))
				cmd := command(fmt.Sprintf("op-%d-%d", w, n), relation(topology.Like, user, fmt.Sprint("V", rng.IntN(3))),
					[]topology.State{topology.Unliked, topology.Liked, topology.Disliked}[rng.IntN(3)])
				first, err := stores[w%2].Set(context.Background(), cmd)
				if err != nil {
					t.Errorf("a command: %v", err)
					return
				}
				// A retry by the other process, perhaps after a move, finds the same.
				again, err := stores[1-w%2].Set(context.Background(), cmd)
				if err != nil || !again.Replayed || again.Operation != first.Operation {
					t.Errorf("a retry: %+v after %+v, error %v", again, first, err)
					return
				}
				select {
				case decided <- struct{}{}:
				case <-ctx.Done():
				}
			}
		})
	}
	moved := 0
	for round := range rounds {
		for range 50 {
			select {
			case <-decided:
			case <-time.After(30 * time.Second):
				t.Fatal("no command is decided any more")
			}
		}
		old := *board.current.Load()
		m := next(old, func(slots []int) {
			for i := range slots {
				if (i+round)%2 == 0 {
					slots[i] = (slots[i] + 1) % shards
				}
			}
		})
		fenceAll(t, urls, old.ID, m.ID)
		moved += moveUsers(t, urls, old, m)
		board.current.Store(&m)
	}
	stop()
	writers.Wait()
	if moved < users {
		t.Errorf("only %d users were moved", moved)
	}
	checkMovedHistory(t, stores[0], urls, *board.current.Load())
}

// checkMovedHistory is checkHistory where a relation's versions may lie on
// several shards.
func checkMovedHistory(t *testing.T, s *Store, urls []string, m topology.ShardMap) {
	t.Helper()
	versions := map[string]map[uint64]topology.Event{}
	for _, url := range urls {
		for _, row := range outbox(t, url) {
			of := versions[row.key]
			if of == nil {
				of = map[uint64]topology.Event{}
				versions[row.key] = of
			}
			if _, ok := of[row.event.RelationVersion]; ok {
				t.Errorf("%s has version %d twice", row.key, row.event.RelationVersion)
			}
			of[row.event.RelationVersion] = row.event
		}
	}
	all := map[topology.Relation]Fact{}
	for shard := range urls {
		for r, f := range facts(t, s, shard) {
			if m.Shard(r.User) != shard {
				t.Errorf("%s is on shard %d, the map says %d", r.Key(), shard, m.Shard(r.User))
			}
			if _, ok := all[r]; ok {
				t.Errorf("%s has two facts", r.Key())
			}
			all[r] = f
		}
	}
	for key, of := range versions {
		for n, version := range slices.Sorted(maps.Keys(of)) {
			if version != uint64(n+1) {
				t.Fatalf("%s: version %d after %d", key, version, n)
			}
		}
		r, err := topology.ParseRelationKey(key)
		if err != nil {
			t.Fatal(err)
		}
		last := of[uint64(len(of))]
		if f := all[r]; f.Version != last.RelationVersion || f.State.String() != last.AbsoluteState {
			t.Errorf("%s is %+v, its last event %+v", key, f, last)
		}
	}
	if len(all) != len(versions) {
		t.Errorf("%d facts, %d relations with events", len(all), len(versions))
	}
}
