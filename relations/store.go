package relations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/topology"
)

// Config says which shards a store has and how it treats commands. Zero values
// take the defaults that are named.
type Config struct {
	URLs []string          // PostgreSQL by shard
	Map  topology.ShardMap // user to shard, as it was last read
	// LoadMap reads the stored map; nil: a shard that serves another map's
	// writers refuses this store's. It is asked when that happens, and every
	// MapInterval, 5 s, for the sake of readers.
	LoadMap     func(context.Context) (topology.ShardMap, error)
	MapInterval time.Duration
	// StaleBase: RejectStale. StaleBaseByKind is instead of it for some kinds.
	StaleBase       StaleBasePolicy
	StaleBaseByKind map[topology.Kind]StaleBasePolicy
	// OperationsKept is how long decided operations are sure to be remembered,
	// as Retention keeps them: 7 days.
	OperationsKept time.Duration
	// CommandTimeout bounds a call that comes without an earlier deadline: 5 s.
	CommandTimeout time.Duration
	// QueueLimit is how many commands may wait per shard before callers do: 4096.
	QueueLimit int
	// BatchLimit is the most commands of one transaction: 256.
	BatchLimit int
	// Committers are the transactions that a shard may have in flight: 2.
	Committers int
	// ReadConns are the connections per shard for queries: 4.
	ReadConns  int
	Logger     *slog.Logger          // nil discards
	Registerer prometheus.Registerer // nil: no metrics
}

func (c Config) withDefaults() (Config, error) {
	if c.StaleBase == "" {
		c.StaleBase = RejectStale
	}
	if c.CommandTimeout == 0 {
		c.CommandTimeout = 5 * time.Second
	}
	if c.OperationsKept == 0 {
		c.OperationsKept = 7 * day
	}
	if c.MapInterval == 0 {
		c.MapInterval = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	number := func(field string, v *int, std, limit int) {
		if *v == 0 {
			*v = std
		}
		if *v < 1 || *v > limit {
			errs = append(errs, fmt.Errorf("%s is %d, not in 1..%d", field, *v, limit))
		}
	}
	number("queue limit", &c.QueueLimit, 4096, 1<<20)
	number("batch limit", &c.BatchLimit, 256, 4096)
	number("committers", &c.Committers, 2, 64)
	number("read connections", &c.ReadConns, 4, 1024)
	if c.CommandTimeout < time.Millisecond {
		errs = append(errs, fmt.Errorf("command timeout is %v, under 1ms", c.CommandTimeout))
	}
	if c.MapInterval < 0 {
		errs = append(errs, fmt.Errorf("map interval is %v, not above 0", c.MapInterval))
	}
	if len(c.URLs) == 0 {
		errs = append(errs, errors.New("there are no PostgreSQL URLs"))
	}
	for _, p := range c.StaleBaseByKind {
		errs = append(errs, p.check())
	}
	if c.OperationsKept < time.Hour {
		errs = append(errs, fmt.Errorf("operations are kept %v, under 1h", c.OperationsKept))
	}
	errs = append(errs, c.StaleBase.check(), c.Map.Check(len(c.URLs)))
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("relation store: %w", err)
	}
	return c, nil
}

func (c Config) rules() rules {
	return rules{staleBase: c.StaleBase, byKind: c.StaleBaseByKind, kept: c.OperationsKept}
}

// Store is the relation shards. Its methods are safe for concurrent use. A
// shard that is away concerns its own users only; connections come back by
// themselves.
type Store struct {
	config  Config
	shards  []*shard
	routing *routing
	closing chan struct{}
	close   sync.Once
	// cancel ends what does not end by itself in Close.
	cancel     context.CancelFunc
	committers sync.WaitGroup
	keepers    sync.WaitGroup
}

// Open starts the committers of every shard. It does not wait for PostgreSQL:
// calls answer ErrUnavailable, and Ping says why, until it is there. ctx is
// only for opening.
func Open(_ context.Context, c Config) (*Store, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Store{config: c, routing: newRouting(c), closing: make(chan struct{}), cancel: cancel}
	stopped := make(chan struct{})
	for number, url := range c.URLs {
		sh, err := newShard(ctx, c, number, url)
		if err != nil {
			cancel()
			s.closePools()
			return nil, err
		}
		sh.closing, sh.stopped = s.closing, stopped
		s.shards = append(s.shards, sh)
	}
	for _, sh := range s.shards {
		s.start(ctx, sh)
	}
	if c.LoadMap != nil {
		s.keepers.Go(func() { s.follow(ctx) })
	}
	go func() { s.committers.Wait(); close(stopped) }()
	return s, nil
}

func newShard(life context.Context, c Config, number int, url string) (*shard, error) {
	writer, err := parseURL(number, url)
	if err != nil {
		return nil, err
	}
	sh := &shard{
		number: number, config: c, writer: writer,
		queue: make(chan *request, c.QueueLimit), life: life,
		log: c.Logger.With("component", "relations", "shard", number),
	}
	waiting := func() float64 { return float64(len(sh.queue)) }
	if sh.metrics, err = newShardMetrics(c.Registerer, number, waiting); err != nil {
		return nil, err
	}
	sh.pool, err = newPool(url, number, c.ReadConns)
	return sh, err
}

func (s *Store) start(ctx context.Context, sh *shard) {
	for range s.config.Committers {
		s.committers.Go(func() { (&committer{shard: sh}).run(ctx) })
	}
	s.keepers.Go(func() { sh.keepPartitions(ctx) })
}

// closeLimit bounds how long Close waits for the commands that it took.
const closeLimit = 4 * time.Second

// Close refuses new commands, answers those that wait, and ends every
// connection. It takes under 5 s, also when PostgreSQL is away; a second call
// does nothing.
func (s *Store) Close() {
	s.close.Do(func() {
		close(s.closing)
		limit := time.AfterFunc(closeLimit, s.cancel)
		s.committers.Wait()
		limit.Stop()
		s.cancel()
		s.keepers.Wait()
		s.closePools()
	})
}

func (s *Store) closePools() {
	for _, sh := range s.shards {
		sh.pool.Close()
	}
}

// of is the shard of a user by the map as this process knows it; writers are
// fenced, readers are late by MapInterval at the most.
func (s *Store) of(user string) *shard { return s.shards[s.routing.current.Load().Shard(user)] }

// Shards is the number of shards.
func (s *Store) Shards() int { return len(s.shards) }

// Set decides a command and returns when its transaction is committed. A
// refused base version is not an error but the outcome Rejected. Errors:
// ErrInvalid; ErrOperationConflict; ErrOperationExpired, with the current
// relation in the result; ErrClosed; ErrUnavailable when the shard
// did not answer by the deadline, and ctx's own error when the caller gave up:
// after these two the command may still be committed, and Operation, or the
// same command again, tells.
func (s *Store) Set(ctx context.Context, cmd Command) (Result, error) {
	if err := cmd.check(); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.CommandTimeout)
	defer cancel()
	return s.set(ctx, request{cmd: cmd})
}

// EnsurePartitions makes every shard's time partitions that should be there at
// now. The store does it by itself; this is for an operator's command.
func (s *Store) EnsurePartitions(ctx context.Context, now time.Time) error {
	var errs []error
	for _, sh := range s.shards {
		errs = append(errs, sh.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return ensurePartitions(ctx, conn, sh.number, now)
		}))
	}
	return errors.Join(errs...)
}
