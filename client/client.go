package client

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/tidemark/tidemark/internal/pause"
)

// Client is one user's relations. Its methods are safe for concurrent use.
type Client struct {
	config Config
	slots  chan struct{} // requests under way
	life   context.Context
	end    context.CancelFunc
	// turn serialises what changes a queue: the journal's lines stand in the
	// order of the changes.
	turn    sync.Mutex
	journal *journal

	mu      sync.Mutex // of what follows
	entries map[Relation]*entry
	settled *list.List // of Relation, longest untouched first
	pending int
	drivers sync.WaitGroup
	closed  bool
	quiet   chan struct{} // closed when nothing is pending
}

// An entry is a queue in memory.
type entry struct {
	queue queue
	// done is closed when the queue is settled.
	done chan struct{}
	// place is where it stands among the settled ones; nil while it is not.
	place *list.Element
}

// Open reads the journal and goes on sending what is in it. Close ends it.
func Open(c Config) (*Client, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	if c.Journal == "" {
		return start(c, nil)
	}
	d, err := newOSDisk(c.Journal)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrJournal, err)
	}
	cl, err := start(c, d)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return cl, nil
}

// start makes a client with a journal on d; nil: without one.
func start(c Config, d disk) (*Client, error) {
	cl := &Client{
		config: c, slots: make(chan struct{}, c.MaxInFlight),
		entries: map[Relation]*entry{}, settled: list.New(), quiet: closedChan(),
	}
	cl.life, cl.end = context.WithCancel(context.Background())
	if d == nil {
		return cl, nil
	}
	j, queues, err := openJournal(d, c.User, c.compactAt)
	if err != nil {
		cl.end()
		return nil, err
	}
	cl.journal = j
	for r, q := range queues {
		cl.install(r, q)
	}
	return cl, nil
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// Close stops sending, waits for what is under way to be given up, and leaves
// what is unsettled in the journal. A second call does nothing.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.mu.Unlock()
	c.end()
	c.drivers.Wait()
	c.turn.Lock()
	defer c.turn.Unlock()
	if c.config.ownHTTP {
		c.config.HTTP.CloseIdleConnections()
	}
	return c.journal.close()
}

// Set wants a relation to be in a state: once it returns, View shows the state,
// the wish survives a restart, and it is on its way. After an error nothing of
// this is so; after ErrJournal the wish may be found by the next start.
func (c *Client) Set(r Relation, s State) error {
	if err := r.checkState(s); err != nil {
		return err
	}
	c.turn.Lock()
	q, err := c.toWant(r)
	if err == nil {
		err = c.become(r, q.want(s, c.operation))
	}
	c.turn.Unlock()
	if err == nil {
		c.tell(r)
	}
	return err
}

// toWant is the queue of a relation that gets a wish, if it may have one.
func (c *Client) toWant(r Relation) (queue, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queueOf(r)
	switch {
	case c.closed:
		return q, ErrClosed
	case q.settled() && c.pending >= c.config.MaxPending:
		return q, ErrTooManyPending
	}
	return q, nil
}

// queueOf needs mu.
func (c *Client) queueOf(r Relation) queue {
	if e, ok := c.entries[r]; ok {
		return e.queue
	}
	return queue{}
}

// operation makes an operation. Its id has the time in it, by which a server
// knows one that it no longer remembers.
func (c *Client) operation(desired State, base *uint64) *operation {
	id, err := uuid.NewV7()
	if err != nil {
		panic(err) // of the system's randomness: it does not fail
	}
	return &operation{ID: id.String(), Desired: desired, Base: base, At: time.Now().UTC(), mine: true}
}

// View is what an app shows of a relation now.
func (c *Client) View(r Relation) View {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queueOf(r).view(r)
}

// Observe takes what a query told of a relation. A version lower than the one
// known changes nothing.
func (c *Client) Observe(r Relation, told Confirmed) error {
	if err := r.check(); err != nil {
		return err
	}
	c.turn.Lock()
	c.mu.Lock()
	before := c.queueOf(r)
	c.mu.Unlock()
	q := before.observe(told)
	// What is confirmed needs no line of its own in the journal.
	c.install(r, q)
	c.turn.Unlock()
	if before.view(r) != q.view(r) {
		c.tell(r)
	}
	return nil
}

// Settle waits until nothing of a relation is pending and gives its View and
// the View's error.
func (c *Client) Settle(ctx context.Context, r Relation) (View, error) {
	c.mu.Lock()
	e, ok := c.entries[r]
	done := closedChan()
	if ok {
		done = e.done
	}
	c.mu.Unlock()
	if err := c.wait(ctx, done); err != nil {
		return c.View(r), err
	}
	v := c.View(r)
	return v, v.Err
}

// SetAndSettle is Set and Settle.
func (c *Client) SetAndSettle(ctx context.Context, r Relation, s State) (View, error) {
	if err := c.Set(r, s); err != nil {
		return c.View(r), err
	}
	return c.Settle(ctx, r)
}

// Flush waits until nothing is pending.
func (c *Client) Flush(ctx context.Context) error {
	c.mu.Lock()
	quiet := c.quiet
	c.mu.Unlock()
	return c.wait(ctx, quiet)
}

func (c *Client) wait(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.life.Done():
		return ErrClosed
	}
}

// Pending is how many relations are unsettled.
func (c *Client) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

func (c *Client) tell(r Relation) {
	if c.config.Changed != nil {
		c.config.Changed(c.View(r))
	}
}

// become journals the next state of a queue, then installs it. It needs the
// turn.
func (c *Client) become(r Relation, q queue) error {
	if err := c.journal.append(r, q); err != nil {
		return err
	}
	c.install(r, q)
	if c.journal.long() {
		if err := c.journal.compact(c.unsettled()); err != nil {
			c.config.Logger.Warn("the journal stays long", "error", err)
		}
	}
	return nil
}

func (c *Client) unsettled() map[Relation]queue {
	c.mu.Lock()
	defer c.mu.Unlock()
	live := make(map[Relation]queue, c.pending)
	for r, e := range c.entries {
		if !e.queue.settled() {
			live[r] = e.queue
		}
	}
	return live
}

// install shows the next state of a queue and starts a driver for one that was
// settled. It needs the turn.
func (c *Client) install(r Relation, q queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[r]
	if !ok {
		e = &entry{done: closedChan()}
		c.entries[r] = e
	}
	was := e.queue.settled()
	e.queue = q
	switch {
	case was && !q.settled():
		e.done = make(chan struct{})
		if c.pending++; c.pending == 1 {
			c.quiet = make(chan struct{})
		}
		if e.place != nil {
			c.settled.Remove(e.place)
			e.place = nil
		}
		if !c.closed {
			c.drivers.Go(func() { c.drive(r) })
		}
	case !was && q.settled():
		close(e.done)
		if c.pending--; c.pending == 0 {
			close(c.quiet)
		}
	}
	if q.settled() {
		c.remember(r, e)
	}
}

// remember keeps a settled queue as the newest of them and forgets the oldest
// beyond the limit. It needs mu.
func (c *Client) remember(r Relation, e *entry) {
	if e.place != nil {
		c.settled.MoveToBack(e.place)
		return
	}
	e.place = c.settled.PushBack(r)
	if c.settled.Len() > c.config.MaxSettled {
		oldest := c.settled.Front()
		delete(c.entries, c.settled.Remove(oldest).(Relation))
	}
}

// drive sends the operations of a relation, one after the other, until it is
// settled or the client closes. It ends with the change that settles the
// queue: the next wish starts another one.
func (c *Client) drive(r Relation) {
	retry := c.retry()
	for {
		c.mu.Lock()
		op := c.queueOf(r).flight
		c.mu.Unlock()
		a, ok := c.decide(r, op, retry)
		if !ok {
			return
		}
		settled, ok := c.keep(r, func(q queue) queue { return c.outcome(q, op, a) })
		if !ok {
			return
		}
		c.tell(r)
		switch {
		case settled:
			return
		case a.decided != nil:
			retry.Reset()
		case !pause.For(c.life, retry.NextBackOff()): // not at once after a refusal
			return
		}
	}
}

// decide sends an operation until it is decided; false when the client closed.
func (c *Client) decide(r Relation, op *operation, retry backoff.BackOff) (answer, bool) {
	for {
		if time.Since(op.At) > c.config.Lifetime {
			return answer{expired: true}, true
		}
		a := c.attempt(c.life, r, op)
		switch {
		case c.life.Err() != nil:
			return a, false
		case a.again == nil:
			return a, true
		}
		c.config.Logger.Debug("a command is sent again", "operation", op.ID, "error", a.again)
		if !pause.For(c.life, max(a.wait, retry.NextBackOff())) {
			return a, false
		}
	}
}

func (c *Client) retry() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = c.config.RetryMin, c.config.RetryMax
	return b
}

// outcome is what an answer makes of the queue.
func (c *Client) outcome(q queue, op *operation, a answer) queue {
	switch {
	case a.decided != nil:
		return q.decided(*a.decided, c.operation)
	case a.stale != nil:
		return q.stale(*a.stale, c.config.Conflict, c.operation)
	case a.reused:
		return q.renamed(c.operation)
	case a.expired && a.refused == nil:
		return q.dropped(ErrExpired)
	case a.expired && op.mine:
		// Made a moment ago and too old: this device's clock is behind. It was
		// never decided, and an id without a time is not judged by it.
		return q.renamed(c.timeless)
	case a.expired:
		return q.refused(errors.Join(ErrExpired, a.refused), c.operation)
	}
	return q.refused(a.refused, c.operation)
}

// timeless makes an operation whose id tells no time.
func (c *Client) timeless(desired State, base *uint64) *operation {
	op := c.operation(desired, base)
	op.ID = uuid.NewString()
	return op
}

// keep journals and installs what follows a decision, however long the disk
// makes it wait: nothing is sent before. ok is false when the client closed.
func (c *Client) keep(r Relation, next func(queue) queue) (settled, ok bool) {
	retry := c.retry()
	for {
		q, err := c.follow(r, next)
		if err == nil {
			return q.settled(), true
		}
		c.config.Logger.Warn("an answer cannot be kept", "error", err)
		if !pause.For(c.life, retry.NextBackOff()) {
			return false, false
		}
	}
}

func (c *Client) follow(r Relation, next func(queue) queue) (queue, error) {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	q := c.queueOf(r)
	c.mu.Unlock()
	q = next(q)
	return q, c.become(r, q)
}
