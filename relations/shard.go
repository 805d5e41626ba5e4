package relations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidemark/tidemark/internal/pause"
)

// A request is a command on its way through a shard's queue.
type request struct {
	ctx context.Context // of the caller
	cmd Command
	// hides: the command does not set a state but is a HidingCommand.
	hides bool
	// epoch is that of the shard map which routed it here.
	epoch uint32
	done  chan answer // takes exactly one answer, never blocks
}

func (r *request) answer(a answer) { r.done <- a }

// A shard is one database: the queue of its commands and the pool of its
// readers.
type shard struct {
	number  int
	config  Config
	writer  *pgx.ConnConfig
	pool    *pgxpool.Pool
	queue   chan *request
	closing <-chan struct{} // no new commands
	stopped <-chan struct{} // no committer is left
	life    context.Context // ends with the store, and every query with it
	log     *slog.Logger
	metrics *shardMetrics
	// cause is why the last transaction failed, nil after a success.
	cause atomic.Pointer[error]
	// clock changes the database's time; only tests set it.
	clock func(time.Time) time.Time
}

// set waits for the command's turn and its answer, errOtherMap when the shard
// does not serve writers of the map with the request's epoch.
func (s *shard) set(ctx context.Context, asked request) (Result, error) {
	r := &asked
	r.ctx, r.done = ctx, make(chan answer, 1)
	select {
	case <-s.closing:
		return Result{}, ErrClosed
	default:
	}
	select {
	case s.queue <- r:
	case <-ctx.Done():
		return Result{}, s.unavailable(ctx, errors.New("its queue is full"))
	case <-s.closing:
		return Result{}, ErrClosed
	}
	select {
	case a := <-r.done:
		return a.result, a.err
	case <-ctx.Done():
		return Result{}, s.unavailable(ctx, s.lastCause())
	case <-s.stopped:
	}
	select { // the last committer may have answered before it stopped
	case a := <-r.done:
		return a.result, a.err
	default:
		return Result{}, ErrClosed
	}
}

func (s *shard) lastCause() error {
	if cause := s.cause.Load(); cause != nil {
		return *cause
	}
	return errors.New("it has not answered yet")
}

// unavailable is the error of a call that got no answer: the caller's own when
// the caller gave up, else ErrUnavailable.
func (s *shard) unavailable(ctx context.Context, cause error) error {
	if s.life.Err() != nil {
		return ErrClosed
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return fmt.Errorf("relation shard %d: %w", s.number, ctx.Err())
	}
	return fmt.Errorf("relation shard %d: %w: %w", s.number, ErrUnavailable, cause)
}

// readAttempts are enough to get past a pool of connections that were lost.
const readAttempts = 3

// read runs a query that may be repeated on one of the readers' connections.
func (s *shard) read(ctx context.Context, do func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.CommandTimeout)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	var err error
	for range readAttempts {
		var v verdict
		if v, err = s.readOnce(ctx, do); err == nil || v == permanent {
			return err
		}
		if ctx.Err() != nil {
			break
		}
		if v == reconnect {
			s.pool.Reset()
		}
	}
	return s.unavailable(ctx, err)
}

func (s *shard) readOnce(ctx context.Context, do func(context.Context, *pgx.Conn) error) (verdict, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return reconnect, err
	}
	defer conn.Release()
	if err := do(ctx, conn.Conn()); err != nil {
		return classify(err, conn.Conn()), err
	}
	return permanent, nil
}

// keepPartitions makes time partitions ahead until ctx ends: at once, then
// every hour, sooner while it fails.
func (s *shard) keepPartitions(ctx context.Context) {
	const every, retry = time.Hour, 5 * time.Second
	failing := false
	for {
		err := s.read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
			return ensurePartitionsNow(ctx, conn, s.number)
		})
		if err != nil && !failing && ctx.Err() == nil {
			s.log.Warn("time partitions cannot be made ahead", "error", err)
		}
		failing = err != nil
		wait := every
		if failing {
			wait = retry
		}
		if !pause.For(ctx, wait) {
			return
		}
	}
}
