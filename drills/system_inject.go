package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/drills/faultbroker"
)

// systemInjection is one sort of harm to the whole system.
type systemInjection struct {
	about  string
	faults bool // needs a broker that breaks on demand
	worker bool // needs a real broker with a Connect worker
	do     func(context.Context, *system, *rand.Rand) error
}

var systemInjections = map[string]systemInjection{
	"kill-role":        {about: "kill -9 of the process of any role", do: killRole},
	"kill-every-role":  {about: "kill -9 of every process, one after the other", do: killEveryRole},
	"kill-all":         {about: "kill -9 of all processes at once", do: killAll},
	"pause-role":       {about: "the process of any role paused for up to 12 s", do: pauseRole},
	"restart-role":     {about: "graceful restart of the process of any role", do: restartRole},
	"postgres-restart": {about: "PostgreSQL stopped and started again", do: postgresRestart},
	"postgres-cut":     {about: "every connection to PostgreSQL ended", do: postgresCut},
	"postgres-crash":   {about: "kill -9 of one of PostgreSQL's processes: it recovers as after a crash", do: postgresCrash},
	"walsender-killed": {about: "the replication slots' walsenders ended", do: walsenderKilled},
	"system-broker":    {about: "the broker stopped, killed or paused", faults: true, do: systemBroker},
	"likers-join":      {about: "one likers process more, with nothing on disk", do: likersJoin},
	"likers-leave":     {about: "one likers process less, stopped gracefully, for good", do: likersLeave},
	"likers-restart":   {about: "graceful restart of a likers process", do: likersRestart},
	"likers-kill":      {about: "kill -9 of a likers process, every other time without its local stores", do: likersKill},
	"likers-away":      {about: "kill -9 of a likers process, back when others have its partitions", do: likersAway},
	"likers-kill-all":  {about: "kill -9 of all likers processes", do: likersKillAll},

	"system-connection": {about: "connections to the broker cut, answers lost, packets gone", faults: true, do: systemConnection},

	"lose-answers": {about: "requests and answers of the API lost, cut and doubled for up to 10 s", do: loseAnswers},

	"drop-slot":          {about: "a replication slot dropped under its emitter, made anew by an operator", do: dropSlot},
	"alter-publication":  {about: "the outbox left out of the publication for a while", do: alterPublication},
	"delete-outbox-rows": {about: "outbox rows deleted by hand, counted ones and ones that the feed never brought", do: deleteOutboxRows},
	"truncate-cdc":       {about: "records of cdc lost before intake has read them", do: truncateCDC},
	"failover":           {about: "a synchronous standby without the slots takes over from a crashed primary", do: failover},
	"failover-behind":    {about: "a standby that lacks the newest commits takes over, without the slots", do: failoverBehind},
	"switch-feed":        {about: "from the built-in emitter to Debezium and back, under load", worker: true, do: switchFeed},

	"redis-stop":           {about: "Redis stands still for up to 7 s", do: redisStop},
	"redis-kill":           {about: "kill -9 of Redis, back with nothing in it", do: redisKill},
	"redis-flush":          {about: "Redis emptied", do: redisFlush},
	"redis-slow":           {about: "every answer of Redis 2 s late for up to 8 s", do: redisSlow},
	"redis-full":           {about: "Redis takes no more (maxmemory, noeviction)", do: redisFull},
	"redis-evict":          {about: "Redis forgets what it likes to (maxmemory, allkeys-lru)", do: redisEvict},
	"redis-failover":       {about: "a replica that lacks the last writes takes over from a killed Redis", do: redisFailover},
	"redis-slot-move":      {about: "slots moved between nodes of a Redis Cluster while they are written", do: redisSlotMove},
	"redis-late-task":      {about: "Redis emptied, and old versions handed in while it is filled again and after", do: redisLateTask},
	"redis-old-generation": {about: "a writer wakes, and tasks come, whose cache generation has ended", do: redisOldGeneration},
	"redis-floor-kill":     {about: "kill -9 of every cachefloor process at any time, again and again", do: redisFloorKill},
	"overload-levels":      {about: "each level of overload set by an operator, one after the other", do: overloadLevels},
	"overload-rise":        {about: "a shard stands still until levels have come by themselves", do: overloadRise},
	"overload-redis":       {about: "kill -9 of Redis while a shard is read at its bound", do: overloadRedis},
	"redis-cut":            {about: "connections to Redis cut within what they pass on", do: redisCut},
}

// on does harm to the process of a role that nothing else is being done to.
func (r *role) on(harm func() error) error {
	r.busy.Lock()
	defer r.busy.Unlock()
	return harm()
}

func (s *system) killAndStart(r *role) error {
	return r.on(func() error {
		r.now().Kill()
		s.tallies.killed()
		return r.start()
	})
}

func (s *system) stopAndStart(r *role) error {
	return r.on(func() error {
		took, _ := r.now().Stop(stopPatience)
		s.tallies.stopped(took)
		return r.start()
	})
}

// rolesOf are the processes that run a role.
func (s *system) rolesOf(name string) (all []*role) {
	for _, r := range s.processes() {
		if slices.Contains(r.roles, name) {
			all = append(all, r)
		}
	}
	return all
}

func (s *system) any(rnd *rand.Rand) *role {
	all := s.processes()
	return all[rnd.IntN(len(all))]
}

func killRole(ctx context.Context, s *system, rnd *rand.Rand) error {
	if err := sleep(ctx, between(rnd, 0, time.Second)); err != nil {
		return err
	}
	if err := s.killAndStart(s.any(rnd)); err != nil {
		return err
	}
	return s.flowing(ctx)
}

func killEveryRole(ctx context.Context, s *system, rnd *rand.Rand) error {
	all := s.processes()
	for _, n := range rnd.Perm(len(all)) {
		if err := s.killAndStart(all[n]); err != nil {
			return err
		}
		if err := s.flowing(ctx); err != nil {
			return fmt.Errorf("after kill -9 of %s: %w", all[n].name, err)
		}
	}
	return nil
}

func killAll(ctx context.Context, s *system, _ *rand.Rand) error {
	for _, r := range s.processes() {
		if err := s.killAndStart(r); err != nil {
			return err
		}
	}
	return s.flowing(ctx)
}

func pauseRole(ctx context.Context, s *system, rnd *rand.Rand) error {
	r := s.any(rnd)
	if err := r.on(func() error {
		r.now().Pause()
		defer r.now().Continue()
		return sleep(ctx, between(rnd, 3*time.Second, 12*time.Second))
	}); err != nil {
		return err
	}
	return s.flowing(ctx)
}

func restartRole(ctx context.Context, s *system, rnd *rand.Rand) error {
	if err := s.stopAndStart(s.any(rnd)); err != nil {
		return err
	}
	return s.flowing(ctx)
}

func postgresRestart(ctx context.Context, s *system, rnd *rand.Rand) error {
	if err := s.postgres.Stop(); err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, 0, 3*time.Second)); err != nil {
		return err
	}
	if err := s.startPostgres(ctx); err != nil {
		return err
	}
	return s.flowing(ctx)
}

// ask has PostgreSQL do something and gives the numbers that it answers.
func (s *system) ask(ctx context.Context, sql string) (numbers []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = await(ctx, 30*time.Second, "asking PostgreSQL", func() error {
		conn, err := pgx.Connect(ctx, s.postgres.URL(controlDatabase))
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		rows, err := conn.Query(ctx, sql)
		if err != nil {
			return err
		}
		numbers, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	})
	return numbers, err
}

var errNobody = errors.New("there was nobody to hit")

// end ends the server processes of a kind, one by one: a server that is asked
// to end all in one statement may begin with the one that asks. It waits until
// there is one to end: a storm's last harm may have ended their clients.
func (s *system) end(ctx context.Context, kind string) error {
	if err := await(ctx, s.patience, "ending a "+kind, func() error {
		pids, err := s.ask(ctx, "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = '"+kind+"'")
		if err != nil {
			return err
		}
		ended := 0
		for _, pid := range pids {
			hit, err := s.ask(ctx, fmt.Sprintf("SELECT pg_terminate_backend(%d)::int", pid))
			if err != nil {
				return err
			}
			ended += hit[0]
		}
		if ended == 0 {
			return errNobody
		}
		return nil
	}); err != nil {
		return err
	}
	return s.flowing(ctx)
}

func postgresCut(ctx context.Context, s *system, _ *rand.Rand) error {
	return s.end(ctx, "client backend")
}

func walsenderKilled(ctx context.Context, s *system, _ *rand.Rand) error {
	return s.end(ctx, "walsender")
}

func postgresCrash(ctx context.Context, s *system, rnd *rand.Rand) error {
	// Clients connect when they need to: there may be none for a moment.
	if err := await(ctx, s.patience, "killing a process of PostgreSQL", func() error {
		pids, err := s.ask(ctx, "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type IN ('walsender', 'client backend')")
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return errNobody
		}
		// A server process of the drill's own PostgreSQL, by the number that it
		// gave a moment ago.
		return syscall.Kill(pids[rnd.IntN(len(pids))], syscall.SIGKILL)
	}); err != nil {
		return err
	}
	s.tallies.killed()
	return s.flowing(ctx)
}

func systemBroker(ctx context.Context, s *system, rnd *rand.Rand) error {
	s.tallies.broke()
	switch p := s.broker.Process(); rnd.IntN(3) {
	case 0:
		p.Pause()
		defer p.Continue()
		if err := sleep(ctx, between(rnd, 3*time.Second, 15*time.Second)); err != nil {
			return err
		}
		p.Continue()
		return s.flowing(ctx)
	case 1:
		p.Kill()
		s.tallies.killed()
	default:
		s.broker.Stop()
	}
	if err := sleep(ctx, between(rnd, 0, 3*time.Second)); err != nil {
		return err
	}
	if err := s.broker.Restart(); err != nil {
		return err
	}
	return s.flowing(ctx)
}

// roleClients is the prefix of the client ids of every role.
const roleClients = "tidemark"

func systemConnection(ctx context.Context, s *system, rnd *rand.Rand) error {
	s.tallies.broke()
	f := []faultbroker.Fault{
		{Kind: faultbroker.Cut, Client: roleClients},
		{Kind: faultbroker.LoseAck, Client: roleClients, Count: 5},
		{Kind: faultbroker.Stall, Client: roleClients},
		{Kind: faultbroker.DelayAck, Client: roleClients, Most: 300 * time.Millisecond},
	}[rnd.IntN(4)]
	i, err := s.broker.Break(ctx, f)
	if err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, time.Second, 12*time.Second)); err != nil {
		return err
	}
	if _, err := s.broker.Heal(ctx, i.ID); err != nil {
		return err
	}
	return s.flowing(ctx)
}
