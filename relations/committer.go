package relations

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/pause"
)

// attemptLimit bounds one transaction with its connecting; a server that does
// not answer at all is given up after it.
const attemptLimit = 10 * time.Second

// A committer turns a shard's queue into transactions, one at a time on its
// own connection. It adds no delay: what arrived while a transaction was in
// flight makes the next one.
type committer struct {
	shard *shard
	conn  *pgx.Conn // nil until connected
	now   time.Time // of the last transaction, by the shard's clock
}

// run serves the queue until the shard closes and the queue is empty; ctx ends
// it at once.
func (c *committer) run(ctx context.Context) {
	defer c.drop()
	for {
		batch := c.take()
		if batch == nil {
			return
		}
		c.commit(ctx, batch)
	}
}

// take waits for a command and takes those behind it, up to the batch limit;
// nil when the shard is closed and nothing waits.
func (c *committer) take() []*request {
	s := c.shard
	var first *request
	select {
	case first = <-s.queue:
	case <-s.closing:
		select {
		case first = <-s.queue:
		default:
			return nil
		}
	}
	batch := append(make([]*request, 0, 16), first)
	for len(batch) < s.config.BatchLimit {
		select {
		case r := <-s.queue:
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// commit answers every request of the batch. What may pass is run again until
// nobody waits for it. What would fail again is halved, so that a command that
// the database refuses takes no neighbour with it, and a batch for whose locks
// the database has no room gets smaller.
func (c *committer) commit(ctx context.Context, batch []*request) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 5*time.Millisecond, 500*time.Millisecond
	for {
		if batch = waiting(batch); len(batch) == 0 {
			return
		}
		answers, v, err := c.attempt(ctx, batch)
		switch {
		case err == nil:
			if c.shard.cause.Swap(nil) != nil {
				c.shard.log.Info("transactions succeed again")
			}
			c.deliver(batch, answers)
			return
		case ctx.Err() != nil:
			c.fail(batch, ErrClosed)
			return
		case (v == permanent || v == tooLarge) && len(batch) > 1:
			c.note(err, v)
			c.commit(ctx, batch[:len(batch)/2])
			c.commit(ctx, batch[len(batch)/2:])
			return
		case v == permanent:
			c.fail(batch, fmt.Errorf("relation shard %d: deciding a command: %w", c.shard.number, err))
			return
		}
		c.note(err, v)
		pause.For(ctx, retry.NextBackOff())
	}
}

// waiting are the requests whose callers still wait. The others are not lost
// without a trace: if an earlier attempt did commit, their operations are
// there.
func waiting(batch []*request) []*request {
	kept := batch[:0]
	for _, r := range batch {
		if r.ctx.Err() == nil {
			kept = append(kept, r)
		}
	}
	return kept
}

func (c *committer) deliver(batch []*request, answers []answer) {
	for i, r := range batch {
		c.shard.metrics.count(r.cmd.Relation.Kind, answers[i])
		r.answer(answers[i])
	}
	c.shard.metrics.batch.Observe(float64(len(batch)))
}

func (c *committer) fail(batch []*request, err error) {
	for _, r := range batch {
		a := answer{err: err}
		c.shard.metrics.count(r.cmd.Relation.Kind, a)
		r.answer(a)
	}
}

// note records why a transaction is run again. That the shard is away is
// logged once, and told to the callers whose time runs out meanwhile.
func (c *committer) note(err error, v verdict) {
	s := c.shard
	s.metrics.retries.WithLabelValues(reason(err, v)).Inc()
	if (v == reconnect || v == noPartition) && s.cause.Swap(&err) == nil {
		s.log.Warn("transactions have to wait", "error", err)
	}
}

// attempt runs the batch in one transaction.
func (c *committer) attempt(ctx context.Context, batch []*request) ([]answer, verdict, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	if c.conn == nil {
		conn, err := connect(ctx, c.shard.writer, c.shard.number)
		if err != nil {
			return nil, reconnect, err
		}
		c.conn = conn
	}
	begun := time.Now()
	answers, err := c.transact(ctx, batch)
	if err == nil {
		c.shard.metrics.seconds.Observe(time.Since(begun).Seconds())
		return answers, 0, nil
	}
	v := classify(err, c.conn)
	c.recover(ctx, v)
	return nil, v, err
}

func (c *committer) transact(ctx context.Context, batch []*request) ([]answer, error) {
	s := c.shard
	l, err := load(ctx, c.conn, batch, s.config.rules())
	if err != nil {
		return nil, fmt.Errorf("locking and reading: %w", err)
	}
	if s.clock != nil {
		l.now = s.clock(l.now)
	}
	l.now = l.now.UTC().Truncate(time.Microsecond)
	c.now = l.now
	answers := make([]answer, len(batch))
	for i, r := range batch {
		if int64(r.epoch) != l.epoch {
			answers[i] = answer{err: errOtherMap}
			continue
		}
		if r.hides {
			answers[i] = l.takeHiding(r.cmd)
			continue
		}
		answers[i] = l.take(r.cmd)
	}
	if err := l.store(ctx, c.conn, s.number); err != nil {
		return nil, fmt.Errorf("writing and committing: %w", err)
	}
	return answers, nil
}

// recover makes the connection usable again, or gives it up.
func (c *committer) recover(ctx context.Context, v verdict) {
	if v == reconnect || c.conn.IsClosed() {
		c.drop()
		return
	}
	if _, err := c.conn.Exec(ctx, "rollback"); err != nil {
		c.drop()
		return
	}
	if v == noPartition {
		if err := ensurePartitions(ctx, c.conn, c.shard.number, c.now); err != nil {
			c.shard.log.Warn("making a missing time partition", "error", err)
			c.drop()
		}
	}
}

func (c *committer) drop() {
	if c.conn != nil {
		discard(c.conn)
		c.conn = nil
	}
}
