package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/drills/reading"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/overload"
	"github.com/tidemark/tidemark/topology"
)

// LevelLacks is the class of levels of overload, and of ways from one to the next,
// that are not what the manual says.
const LevelLacks oracle.Class = "level-lacks"

// What the shards of an overloaded system read at a time.
const (
	overloadFallbacks  = 12
	overloadFewStates  = 2 // of a quarter of overloadFallbacks, which is 3
	overloadFewLists   = 1
	overloadPool       = 4 // connections of a process to a shard, as by default
	overloadQueryBurst = 90
)

// overloadSettings are such that what is measured does not depend on how fast the
// machine is: what is in flight presses, not latency; and that each level shows.
func overloadSettings(c *config.Config) {
	c.Overload.CommandsInFlight, c.Overload.CommandLatency = 24, 10*time.Second
	c.Overload.PoolWait, c.Overload.CountLag = 10*time.Second, time.Hour
	c.Cache.FallbackReads = overloadFallbacks
	c.RefreshInterval = 400 * time.Millisecond
	c.Limits.Enabled, c.Limits.Commands, c.Limits.Transitions = true, config.CommandLimits{}, config.Limit{}
	c.Limits.Queries = config.QueryLimits{Account: config.Limit{PerMinute: 45 * 60, Burst: overloadQueryBurst}}
}

// web is the process with the API.
func (s *system) web() *role { return s.rolesOf("queries")[0] }

// order sets the level of all processes and waits until they follow.
func (s *system) order(ctx context.Context, l overload.Level) error {
	if err := s.operate(ctx, "overload", "set", l.String(), "--as", "drill", "--reason", "drill"); err != nil {
		return err
	}
	return await(ctx, s.patience, "processes following the order "+l.String(), func() error {
		if err := s.atLevel(ctx, l); err != nil {
			return err
		}
		for _, r := range s.rolesOf("projection") {
			if heard, err := metricOf(ctx, r, "tidemark_overload_heard_level"); err != nil || heard != float64(l) {
				return fmt.Errorf("%s has heard of level %v: %w", r.name, heard, err)
			}
		}
		return nil
	})
}

// free lets the processes decide again, and waits until they are at normal.
func (s *system) free(ctx context.Context) error {
	if err := s.operate(ctx, "overload", "auto", "--as", "drill", "--reason", "drill"); err != nil {
		return err
	}
	return await(ctx, s.patience, "the level being normal", func() error { return s.atLevel(ctx, overload.Normal) })
}

func (s *system) level(ctx context.Context) (overload.Level, error) {
	v, err := metricOf(ctx, s.web(), "tidemark_overload_level")
	return overload.Level(v), err
}

func (s *system) atLevel(ctx context.Context, want overload.Level) error {
	l, err := s.level(ctx)
	if err == nil && l != want {
		err = fmt.Errorf("%s is at %v", s.web().name, l)
	}
	return err
}

func metricOf(ctx context.Context, r *role, name string) (float64, error) {
	all, err := reading.Metrics(ctx, "http://"+r.ops)
	if err != nil {
		return 0, fmt.Errorf("reading the metrics of %s: %w", r.name, err)
	}
	return all[name], nil
}

// as is somebody who asks the API.
func (s *system) as(user, role string) (reading.Client, error) {
	token, err := s.auth.Mint(user, role, time.Hour)
	return reading.Client{BaseURL: "http://" + s.cfg.API.Listen, Token: token}, err
}

// overloadLevels has an operator set each level under load, looks whether it does
// what the manual says, and whether counts go on at it.
func overloadLevels(ctx context.Context, s *system, rnd *rand.Rand) error {
	mark := fmt.Sprintf("o%x-", rnd.Uint32())
	normal, err := s.partials(ctx)
	if err == nil {
		err = s.boundAtShard(ctx, mark+"a", overload.Normal)
	}
	if err != nil {
		return err
	}
	export := ""
	for l := overload.SlowDisplay; l <= overload.Refuse; l++ {
		if err := s.order(ctx, l); err != nil {
			return err
		}
		switch l {
		case overload.SlowDisplay:
			slow, err := s.partials(ctx)
			if err != nil {
				return err
			}
			if slow > 0.7*normal {
				s.findings.Add(LevelLacks, "slow-display: %.0f partial counts a second, %.0f at normal", slow, normal)
			}
			s.tallies.note("at slow-display %.0f partial counts a second, %.0f at normal", slow, normal)
		case overload.PauseConsumers:
			export, err = s.askExport(ctx, mark)
		case overload.TightLimits:
			err = s.tightened(ctx, mark)
		case overload.BoundReads:
			err = s.boundAtShard(ctx, mark+"b", l)
		case overload.Refuse:
			err = s.refusing(ctx, mark)
		}
		if err != nil {
			return err
		}
		if err := s.flowing(ctx); err != nil {
			return fmt.Errorf("at level %v: %w", l, err)
		}
	}
	// Asked for at pause-consumers, four levels ago.
	if state, err := s.exportState(ctx, export); err != nil || state != "QUEUED" {
		s.findings.Add(LevelLacks, "an export that is to wait is %s (%v)", state, err)
	}
	if err := s.free(ctx); err != nil {
		return err
	}
	return await(ctx, s.patience, "the export that has waited being finished", func() error {
		state, err := s.exportState(ctx, export)
		if err == nil && state != "FINISHED" {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})
}

// partials are the partial counts that projection emits a second.
func (s *system) partials(ctx context.Context) (float64, error) {
	const during = 4 * time.Second
	sum := func() (n float64, err error) {
		for _, r := range s.rolesOf("projection") {
			v, err := metricOf(ctx, r, "tidemark_projection_partials_total")
			if err != nil {
				return 0, err
			}
			n += v
		}
		return n, nil
	}
	before, err := sum()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := sleep(ctx, during); err != nil {
		return 0, err
	}
	after, err := sum()
	return (after - before) / time.Since(start).Seconds(), err
}

func (s *system) askExport(ctx context.Context, mark string) (id string, err error) {
	ann, err := s.as("analyst", api.AnalystRole)
	if err != nil {
		return "", err
	}
	var job struct{ ExportID string }
	err = ann.Do(ctx, http.MethodPost, "/v1/exports", mark, map[string]string{"kind": "like", "targetId": markedTarget, "format": "csv", "purpose": "drill"}, &job)
	return job.ExportID, err
}

func (s *system) exportState(ctx context.Context, id string) (string, error) {
	// Operators get through at every level.
	root, err := s.as("root", api.OperatorRole)
	if err != nil {
		return "", err
	}
	var job struct{ State string }
	err = root.Do(ctx, http.MethodGet, "/v1/exports/"+id, "", nil, &job)
	return job.State, err
}

// tightened asks as often as is free at normal.
func (s *system) tightened(ctx context.Context, mark string) error {
	user, err := s.as(mark+"hasty", "")
	if err != nil {
		return err
	}
	asked := atOnce(overloadQueryBurst*2/3, func(int) error {
		_, err := user.Query(ctx, topology.Like, []string{markedTarget}, nil)
		return err
	})
	if asked.refused < overloadQueryBurst/4 || asked.err != nil {
		s.findings.Add(LevelLacks, "tight-limits: of %d queries at once %d were refused, a quarter of %d may be free: %v", overloadQueryBurst*2/3, asked.refused, overloadQueryBurst, asked.err)
	}
	return nil
}

// refusing looks whether queries are refused, but for operators, and commands go
// on.
func (s *system) refusing(ctx context.Context, mark string) error {
	user, err := s.as(mark+"late", "")
	if err != nil {
		return err
	}
	if _, err := user.Query(ctx, topology.Like, []string{markedTarget}, nil); !errors.Is(err, reading.ErrRefused) {
		s.findings.Add(LevelLacks, "refuse: a query: %v", err)
	}
	if _, err := user.Set(ctx, markedTarget, topology.Liked, 0); err != nil {
		return fmt.Errorf("refuse: a command: %w", err)
	}
	root, err := s.as("root", api.OperatorRole)
	if err != nil {
		return err
	}
	if err := root.Do(ctx, http.MethodGet, "/v1/targets/like/"+markedTarget+"/count", "", nil, nil); err != nil {
		s.findings.Add(LevelLacks, "refuse: an operator's query: %v", err)
	}
	return nil
}

// answers of requests at once.
type answers struct {
	answered, refused int
	err               error // neither an answer nor a refusal
}

func atOnce(n int, request func(i int) error) (a answers) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range n {
		all.Go(func() {
			err := request(i)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				a.answered++
			case errors.Is(err, reading.ErrRefused):
				a.refused++
			default:
				a.err = err
			}
		})
	}
	all.Wait()
	return a
}

// heldShard is the shard that is made to stand still.
const heldShard = 0

// usersOf are n users of the held shard.
func (s *system) usersOf(ctx context.Context, mark string, n int) (users []string, err error) {
	shards, err := s.control.ShardMap(ctx)
	if err != nil {
		return nil, err
	}
	for i := 0; len(users) < n; i++ {
		if user := fmt.Sprint(mark, i); shards.Shard(user) == heldShard {
			users = append(users, user)
		}
	}
	return users, nil
}

// onHeldShard locks the relations of a shard while do runs: who reads or writes
// them waits there.
func (s *system) onHeldShard(ctx context.Context, do func() error) error {
	conn, err := pgx.Connect(ctx, s.cfg.Postgres[heldShard])
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // which gives the lock back
	if _, err := conn.Exec(ctx, "BEGIN; LOCK TABLE relation IN ACCESS EXCLUSIVE MODE"); err != nil {
		return err
	}
	return do()
}

// seenAtShard are the most reads that have waited at the held shard at a time.
type seenAtShard struct{ states, lists int }

// watchShard looks at the held shard all the time until stop is called.
func (s *system) watchShard(ctx context.Context, conn *pgx.Conn) (stop func() (seenAtShard, error)) {
	var seen seenAtShard
	var failed error
	var done atomic.Bool
	var watching sync.WaitGroup
	watching.Go(func() {
		for !done.Load() && failed == nil {
			var states, lists int
			failed = conn.QueryRow(ctx, `
				SELECT count(*) FILTER (WHERE query LIKE '%target_id = ANY%'), count(*) FILTER (WHERE query LIKE '%state = $3%') FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'active' AND query LIKE '%FROM relation r WHERE user_id = $1%'`).Scan(&states, &lists)
			seen.states, seen.lists = max(seen.states, states), max(seen.lists, lists)
		}
	})
	return func() (seenAtShard, error) { done.Store(true); watching.Wait(); return seen, failed }
}

// askHeld asks a shard that stands still, and tells what of it came through to
// there and what was answered.
func (s *system) askHeld(ctx context.Context, ask func() answers) (seen seenAtShard, told answers, err error) {
	conn, err := pgx.Connect(ctx, s.cfg.Postgres[heldShard])
	if err != nil {
		return seen, told, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var asking sync.WaitGroup
	err = s.onHeldShard(ctx, func() (err error) {
		stop := s.watchShard(ctx, conn)
		asking.Go(func() { told = ask() })
		err = sleep(ctx, heldFor)
		all, failed := stop()
		seen = all
		return errors.Join(err, failed)
	})
	asking.Wait()
	return seen, told, err
}

// heldFor is less than a read may take, which is 5 s.
const heldFor = 3 * time.Second

// boundAtShard asks a shard that stands still for many states and lists at once:
// below bound-reads all are answered once it goes on, at it few come through, and
// the others are refused.
func (s *system) boundAtShard(ctx context.Context, mark string, l overload.Level) error {
	const each = 10
	users, err := s.usersOf(ctx, mark, 2*each)
	if err != nil {
		return err
	}
	seen, told, err := s.askHeld(ctx, func() answers {
		return atOnce(2*each, func(i int) error {
			user, err := s.as(users[i], "")
			if err != nil {
				return err
			}
			if i%2 == 0 {
				return user.Do(ctx, http.MethodGet, "/v1/me/likes", "", nil, nil)
			}
			// The cache has no version that high, so the shard is asked.
			_, err = user.Query(ctx, topology.Like, []string{markedTarget}, map[string]uint64{markedTarget: 1})
			return err
		})
	})
	if err != nil {
		return err
	}
	s.tallies.note("at level %v a shard that stood still had %d states and %d lists to read at a time, of %d each; %d were refused", l, seen.states, seen.lists, each, told.refused)
	if told.err != nil {
		s.findings.Add(LevelLacks, "%v: neither an answer nor a refusal: %v", l, told.err)
	}
	if l < overload.BoundReads {
		if told.refused > 0 || seen.states+seen.lists <= overloadFewStates+overloadFewLists {
			s.findings.Add(LevelLacks, "%v: %d of %d reads were refused, %+v were at the shard at a time: reads should not be bounded", l, told.refused, 2*each, seen)
		}
		return nil
	}
	s.judgeBound(seen)
	// A user who asks all the time may have the room of states.
	if least := 2*each - overloadFewStates - overloadFewLists; told.refused < least {
		s.findings.Add(LevelLacks, "%v: %d of %d reads were refused, room is for %d", l, told.refused, 2*each, 2*each-least)
	}
	return nil
}

func (s *system) judgeBound(seen seenAtShard) {
	if seen.states > overloadFewStates || seen.lists > overloadFewLists || seen.states == 0 {
		s.findings.Add(LevelLacks, "bound-reads: %+v were at the shard at a time, %d states and %d lists may be", seen, overloadFewStates, overloadFewLists)
	}
}

// overloadRise makes a shard stand still under load until the level has risen by
// itself, and lets it go on: levels fall one by one, each after its time.
func overloadRise(ctx context.Context, s *system, _ *rand.Rand) error {
	if err := await(ctx, s.patience, "the level being normal", func() error { return s.atLevel(ctx, overload.Normal) }); err != nil {
		return err
	}
	if err := s.onHeldShard(ctx, func() error {
		return await(ctx, s.patience, "levels rising by themselves", func() error {
			l, err := s.level(ctx)
			if err == nil && l < overload.PauseConsumers {
				err = fmt.Errorf("it is %v", l)
			}
			return err
		})
	}); err != nil {
		return err
	}
	highest, err := s.level(ctx)
	if err != nil {
		return err
	}
	last, since := highest, time.Time{}
	err = await(ctx, s.patience+time.Duration(highest)*overload.DefaultRules().Fall, "levels falling by themselves", func() error {
		l, err := s.level(ctx)
		if err != nil {
			return err
		}
		switch lasted := time.Since(since); {
		case l > last: // what had waited for the shard still presses
			highest = max(highest, l)
		case l < last-1, l < last && !since.IsZero() && lasted < overload.DefaultRules().Fall-fallSlack:
			s.findings.Add(LevelLacks, "level %v came %v after %v", l, lasted, last)
		}
		if l != last {
			last, since = l, time.Now()
		}
		if l != overload.Normal {
			return fmt.Errorf("it is %v", l)
		}
		return nil
	})
	s.tallies.note("a shard that stood still brought level %v", highest)
	return err
}

// fallSlack is by how much two looks at a level may be off.
const fallSlack = 2 * time.Second

// overloadRedis ends Redis under load: the level rises by itself as far as helps,
// a question is asked of the shard once at a time, and at bound-reads a shard is
// read no more than at any other time.
func overloadRedis(ctx context.Context, s *system, rnd *rand.Rand) error {
	server, lost, err := s.killRedis(ctx)
	if err != nil {
		return err
	}
	if err := await(ctx, s.patience, "the loss of Redis bringing level pause-consumers", func() error { return s.atLevel(ctx, overload.PauseConsumers) }); err != nil {
		return err
	}
	// Long enough for two levels more, were there more than Redis to press.
	if err := sleep(ctx, 5*time.Second); err != nil {
		return err
	}
	if err := s.atLevel(ctx, overload.PauseConsumers); err != nil {
		s.findings.Add(LevelLacks, "without Redis and with little load: %v", err)
	}
	mark := fmt.Sprintf("r%x-", rnd.Uint32())
	if err := s.sharedAtShard(ctx, mark+"a"); err != nil {
		return err
	}
	if err := s.order(ctx, overload.BoundReads); err != nil {
		return err
	}
	if err := s.boundAtShard(ctx, mark+"b", overload.BoundReads); err != nil {
		return err
	}
	if err := server.Start(ctx); err != nil {
		return err
	}
	if err := s.rebuilt(ctx, lost.ID); err != nil {
		return err
	}
	return s.free(ctx)
}

// sharedAtShard has users ask the same several times at once, while nothing can be
// answered: the shard is asked once for each user.
func (s *system) sharedAtShard(ctx context.Context, mark string) error {
	const several, times = 4, 6
	users, err := s.usersOf(ctx, mark, several)
	if err != nil {
		return err
	}
	const shared = `tidemark_cache_fallbacks_total{result="shared"}`
	before, err := metricOf(ctx, s.web(), shared)
	if err != nil {
		return err
	}
	seen, told, err := s.askHeld(ctx, func() answers {
		return atOnce(several*times, func(i int) error {
			user, err := s.as(users[i%several], "")
			if err != nil {
				return err
			}
			_, err = user.Query(ctx, topology.Like, []string{markedTarget}, nil)
			return err
		})
	})
	if err != nil {
		return err
	}
	after, err := metricOf(ctx, s.web(), shared)
	if err != nil {
		return err
	}
	if told.answered != several*times || after-before < several*(times-1) || seen.states > overloadPool {
		s.findings.Add(LevelLacks, "without Redis: of %d users' %d questions %d were answered (%v), %.0f of them by another's read, %d reads were at the shard at a time",
			several, several*times, told.answered, told.err, after-before, seen.states)
	}
	s.tallies.note("without Redis %.0f of %d questions were answered by another's read", after-before, several*times)
	return nil
}
