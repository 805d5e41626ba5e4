package relations

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestI1ManyWritersOfOneRelation(t *testing.T) {
	urls := migrated(t, 1)
	stores := []*Store{openAt(t, urls, nil), openAt(t, urls, func(c *Config) { c.BatchLimit = 1 })}
	const writers, each = 64, 10
	var mu sync.Mutex
	versions := map[uint64]string{}
	var group errgroup.Group
	for w := range writers {
		group.Go(func() error {
			for i := range each {
				id := fmt.Sprintf("op-%d-%d", w, i)
				state := []topology.State{topology.Liked, topology.Disliked, topology.Unliked}[(w+i)%3]
				r, err := stores[w%2].Set(context.Background(), command(id, v9001, state))
				if err != nil {
					return err
				}
				if r.Operation.State != state || r.Current.State != state {
					return fmt.Errorf("%s asked for %s and got %+v", id, state, r)
				}
				if r.Operation.Outcome != Applied {
					continue
				}
				mu.Lock()
				other, taken := versions[r.Operation.Version]
				versions[r.Operation.Version] = id
				mu.Unlock()
				if taken {
					return fmt.Errorf("%s and %s both made version %d", id, other, r.Operation.Version)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	rows := outbox(t, urls[0])
	if len(rows) != len(versions) {
		t.Errorf("%d outbox rows for %d versions", len(rows), len(versions))
	}
	if f := facts(t, stores[0], 0)[v9001]; f.Version != uint64(len(versions)) {
		t.Errorf("the fact is version %d after %d transitions", f.Version, len(versions))
	}
	checkHistory(t, stores[0], urls)
}

func TestI1ConcurrentFirstWrites(t *testing.T) {
	urls := migrated(t, 2)
	stores := []*Store{openAt(t, urls, nil), openAt(t, urls, nil), openAt(t, urls, nil)}
	const relations = 60
	var group errgroup.Group
	for i := range relations {
		r := relation(topology.Follow, fmt.Sprintf("u%d", i%7), fmt.Sprintf("t%d", i))
		for w, s := range stores {
			group.Go(func() error {
				_, err := s.Set(context.Background(), command(fmt.Sprintf("op-%d-%d", i, w), r, topology.Following))
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := len(outbox(t, urls[0])) + len(outbox(t, urls[1])); n != relations {
		t.Errorf("%d events for %d first writes", n, relations)
	}
	checkHistory(t, stores[0], urls)
}

func TestI2OneOperationFiredAtOnceAppliesOnce(t *testing.T) {
	urls := migrated(t, 1)
	stores := []*Store{openAt(t, urls, nil), openAt(t, urls, func(c *Config) { c.BatchLimit = 1; c.Committers = 8 })}
	for round := range 10 {
		cmd := command(fmt.Sprintf("op%d", round), v9001, []topology.State{topology.Liked, topology.Unliked}[round%2])
		var firsts sync.Map
		var group errgroup.Group
		for i := range 32 {
			group.Go(func() error {
				r, err := stores[i%2].Set(context.Background(), cmd)
				if err != nil {
					return err
				}
				if !r.Replayed {
					firsts.Store(i, true)
				}
				if r.Operation.Outcome != Applied || r.Operation.Version != uint64(round+1) {
					return fmt.Errorf("answer %d is %+v", i, r.Operation)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		n := 0
		firsts.Range(func(any, any) bool { n++; return true })
		if n != 1 {
			t.Errorf("round %d: %d calls decided the operation", round, n)
		}
	}
	if n := len(outbox(t, urls[0])); n != 10 {
		t.Errorf("%d events for 10 operations", n)
	}
	checkHistory(t, stores[0], urls)
}

func TestA3OneOperationOnManyTargetsAtOnce(t *testing.T) {
	urls := migrated(t, 1)
	stores := []*Store{openAt(t, urls, nil), openAt(t, urls, func(c *Config) { c.BatchLimit = 1; c.Committers = 8 })}
	const rounds, targets = 25, 6
	for round := range rounds {
		var won, refused sync.Map
		var group errgroup.Group
		for i := range targets {
			// Of two users: each has the id for itself.
			r := relation(topology.Like, fmt.Sprintf("u%d", i%2), fmt.Sprintf("v%d-%d", round, i))
			group.Go(func() error {
				_, err := stores[i%2].Set(context.Background(), command(fmt.Sprintf("op%d", round), r, topology.Liked))
				if errors.Is(err, ErrOperationConflict) {
					refused.Store(i, true)
					return nil
				}
				won.Store(i, true)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		if w, r := size(&won), size(&refused); w != 2 || r != targets-2 {
			t.Errorf("round %d: %d targets won and %d were refused", round, w, r)
		}
	}
	if n := len(facts(t, stores[0], 0)); n != 2*rounds {
		t.Errorf("%d facts after %d operations", n, rounds)
	}
	checkHistory(t, stores[0], urls)
}

func size(m *sync.Map) int {
	n := 0
	m.Range(func(any, any) bool { n++; return true })
	return n
}

// hold takes the lock of a relation, as a transaction of another process
// would, until release.
func hold(t *testing.T, url string, r topology.Relation) (release func()) {
	t.Helper()
	tx, err := dial(t, url).Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), "SELECT pg_advisory_xact_lock($1)", lockKey(relationLockSeed, r.AppendKey(nil))); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// enqueueTogether sends commands while the only committer is kept busy, so
// that they go into one batch in this order; it returns their answers.
func enqueueTogether(t *testing.T, s *Store, url string, cmds []Command) []answer {
	t.Helper()
	busy := relation(topology.Follow, "busy", "busy")
	release := hold(t, url, busy)
	var group errgroup.Group
	group.Go(func() error {
		_, err := s.Set(context.Background(), command("busy", busy, topology.Following))
		return err
	})
	lockAwaited(t, url)
	answers := make([]answer, len(cmds))
	for i, cmd := range cmds {
		group.Go(func() error {
			r, err := s.Set(context.Background(), cmd)
			answers[i] = answer{r, err}
			return nil
		})
		testenv.Eventually(t, 10*time.Second, func() error {
			if n := len(s.shards[0].queue); n != i+1 {
				return fmt.Errorf("%d commands wait, want %d", n, i+1)
			}
			return nil
		})
	}
	release()
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return answers
}

// lockAwaited returns when a transaction waits for an advisory lock.
func lockAwaited(t *testing.T, url string) {
	t.Helper()
	conn := dial(t, url)
	testenv.Eventually(t, 10*time.Second, func() error {
		var n int
		err := conn.QueryRow(context.Background(), `
			SELECT count(*) FROM pg_locks
			WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&n)
		if err == nil && n == 0 {
			err = errors.New("nothing waits for a lock")
		}
		return err
	})
}

func TestCommandsOfOneBatchAreDecidedInTheOrderOfArrival(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, func(c *Config) { c.Committers = 1 })
	answers := enqueueTogether(t, s, urls[0], []Command{
		based(command("a", v9001, topology.Liked), 0),
		command("b", v9001, topology.Liked),
		based(command("c", v9001, topology.Disliked), 1),
		command("a", relation(topology.Like, "u7", "other"), topology.Liked),
		based(command("d", v9001, topology.Unliked), 1),
		based(command("a", v9001, topology.Liked), 0),
		command("e", v9001, topology.Unliked),
	})
	for i, want := range []string{
		"APPLIED LIKED v1; now LIKED v1",
		"UNCHANGED LIKED v1; now LIKED v1",
		"APPLIED DISLIKED v2; now DISLIKED v2",
		"conflict",
		"REJECTED DISLIKED v2; now DISLIKED v2",
		"replayed APPLIED LIKED v1; now DISLIKED v2",
		"APPLIED UNLIKED v3; now UNLIKED v3",
	} {
		if got := describe(answers[i]); got != want {
			t.Errorf("answer %d is %q (%v), want %q", i, got, answers[i].err, want)
		}
	}
	// One transaction: one time for all of them.
	var times int
	err := dial(t, urls[0]).QueryRow(context.Background(),
		"SELECT count(DISTINCT created_at) FROM command WHERE operation_id <> 'busy'").Scan(&times)
	if err != nil || times != 1 {
		t.Errorf("the batch was committed in %d transactions (%v)", times, err)
	}
	checkHistory(t, s, urls)
}

func TestARefusedCommandTakesNoNeighbourWithIt(t *testing.T) {
	urls := migrated(t, 1)
	_, err := dial(t, urls[0]).Exec(context.Background(), `
		CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'poison'; END $$;
		CREATE TRIGGER poison BEFORE INSERT ON command FOR EACH ROW WHEN (NEW.target_id = 'poison') EXECUTE FUNCTION poison();`)
	if err != nil {
		t.Fatal(err)
	}
	s := openAt(t, urls, func(c *Config) { c.Committers = 1 })
	var cmds []Command
	for i := range 40 {
		target := fmt.Sprintf("v%d", i)
		if i%13 == 5 {
			target = "poison"
		}
		cmds = append(cmds, command(fmt.Sprintf("op%d", i), relation(topology.Like, "u", target), topology.Liked))
	}
	for i, a := range enqueueTogether(t, s, urls[0], cmds) {
		if poisoned := cmds[i].Relation.Target == "poison"; poisoned != (a.err != nil) {
			t.Errorf("command %d: %v", i, a.err)
		}
		if errors.Is(a.err, ErrUnavailable) {
			t.Errorf("command %d: a refused command is not an unavailable shard: %v", i, a.err)
		}
	}
	checkHistory(t, s, urls)
}

func TestAForeignWriterIsNoticed(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, func(c *Config) { c.Committers = 1 })
	mustSet(t, s, command("a", v9001, topology.Liked))
	conn := dial(t, urls[0])
	// It changes the relation between the store's read and its write, once.
	fired := false
	s.shards[0].clock = func(at time.Time) time.Time {
		if !fired {
			fired = true
			if _, err := conn.Exec(context.Background(), "UPDATE relation SET version = 7"); err != nil {
				t.Error(err)
			}
		}
		return at
	}
	wantResult(t, mustSet(t, s, command("b", v9001, topology.Unliked)), Applied, topology.Unliked, 8)
}

func TestManyUsersAndShardsInParallel(t *testing.T) {
	urls := migrated(t, 4)
	stores := []*Store{openAt(t, urls, nil), openAt(t, urls, nil)}
	var group errgroup.Group
	group.SetLimit(64)
	for i := range 3000 {
		group.Go(func() error {
			r := relation(topology.Like, fmt.Sprintf("u%d", i%97), fmt.Sprintf("v%d", i%5))
			state := []topology.State{topology.Liked, topology.Unliked, topology.Disliked}[i%3]
			_, err := stores[i%2].Set(context.Background(), command(fmt.Sprintf("op%d", i), r, state))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	checkHistory(t, stores[0], urls)
	checkCommands(t, urls, 3000)
}

// checkCommands checks that each operation has one command row, and that the
// applied ones are as many as the events.
func checkCommands(t *testing.T, urls []string, want int) {
	t.Helper()
	var rows, ids, applied, events int
	for _, url := range urls {
		var r, i, a int
		err := dial(t, url).QueryRow(context.Background(), `
			SELECT count(*), count(DISTINCT operation_id), count(*) FILTER (WHERE outcome = 1) FROM command`).Scan(&r, &i, &a)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatal(err)
		}
		rows, ids, applied, events = rows+r, ids+i, applied+a, events+len(outbox(t, url))
	}
	if rows != want || ids != want || applied != events {
		t.Errorf("%d command rows of %d operations, want %d; %d applied, %d events", rows, ids, want, applied, events)
	}
}

// A writer without the locks, such as a person at a console, makes a relation
// after it was read: it is read again, and the neighbours of the batch are
// decided all the same.
func TestARelationThatAnotherWriterMadeMeanwhileIsReadAgain(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, func(c *Config) { c.Committers = 1 })
	ctx := context.Background()
	other, err := dial(t, urls[0]).Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec(ctx, `
		INSERT INTO relation (user_id, kind, target_id, state, version, state_changed_at, last_operation_id, created_at, updated_at)
		VALUES ('u7', 1, 'V9001', 2, 1, now(), 'by hand', now(), now())`); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	group.Go(func() error {
		r, err := s.Set(ctx, command("op", v9001, topology.Liked))
		if err == nil && (r.Operation.Outcome != Unchanged || r.Current.Version != 1) {
			err = fmt.Errorf("decided as %+v", r)
		}
		return err
	})
	watch := dial(t, urls[0])
	testenv.Eventually(t, 10*time.Second, func() error {
		var waiting int
		err := watch.QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'").Scan(&waiting)
		if err == nil && waiting == 0 {
			err = errors.New("nobody waits for the other writer")
		}
		return err
	})
	if err := other.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}
