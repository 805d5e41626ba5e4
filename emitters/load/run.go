package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/internal/pause"
)

// grace is how long requests in flight may still take when a run is ended
// early.
const grace = 5 * time.Second

// Load is a load to run.
type Load struct{ config Config }

// New checks c, or says which of its fields are wrong.
func New(c Config) (*Load, error) {
	c = c.withDefaults()
	if err := c.check(); err != nil {
		return nil, err
	}
	return &Load{c}, nil
}

// Run sends the load and reports, also when it ends with an error. It ends
// after Commands, with the replayed file, or with ctx, which is an error
// unless neither of the two was given.
func (l *Load) Run(ctx context.Context) (Report, error) {
	r, err := newRun(l.config)
	if err != nil {
		return Report{}, err
	}
	defer r.close()
	runErr := r.run(ctx)
	if runErr != nil && ctx.Err() != nil && l.config.Commands == 0 && l.config.Replay == nil {
		runErr = nil
	}
	return r.report(), runErr
}

// run is one run: the scheduler, the workers and what they share.
type run struct {
	config    Config
	source    source
	generator *generator // nil in a replay
	replayer  *replayer  // nil for a generated load
	close     func()

	executor  executor
	relations *relations
	measures  measures
	slots     chan struct{} // one per command that is due and undecided
	ready     chan *command // those whose turn it is

	start, end time.Time
	processor  processorTime
	scheduled  atomic.Int64
	behind     atomic.Int64 // ns that the last hand-over was late
	lastDue    time.Duration
	lastStart  atomic.Int64 // ns from start to the last first attempt
	blocked    blocked
	fail       context.CancelCauseFunc
}

// blocked is the time that the schedule waited for a slot, by what held the
// slots: busy workers, or commands that wait for their relation's turn.
type blocked struct{ workers, order time.Duration }

func newRun(c Config) (*run, error) {
	r := &run{config: c, relations: newRelations(c.Relations), close: func() {}}
	switch {
	case c.Replay != nil:
		replayer, err := openReplay(*c.Replay, c.Commands)
		if err != nil {
			return nil, err
		}
		r.source, r.replayer = replayer, replayer
		r.close = func() { _ = replayer.close() }
	default:
		r.generator = newGenerator(c)
		r.source = r.generator
	}
	r.slots = make(chan struct{}, c.Pending)
	r.ready = make(chan *command, c.Pending)
	client := &client{base: c.BaseURL, http: c.HTTP, timeout: c.Timeout, tokens: tokens{mint: c.Token}}
	if client.http == nil {
		own := newHTTP(c)
		client.http = own
		closeSource := r.close
		r.close = func() { closeSource(); own.CloseIdleConnections() }
	}
	r.executor = executor{config: c, ids: newOperationIDs(c.RunID), client: client, relations: r.relations, measures: &r.measures}
	return r, nil
}

func newHTTP(c Config) *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, 2*c.Workers
	t.DisableCompression = true
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (r *run) run(ctx context.Context) error {
	ctx, r.fail = context.WithCancelCause(ctx)
	defer r.fail(nil)
	requests, release := outlive(ctx, grace)
	defer release()
	r.executor.failed = r.fail

	r.processor, _ = readProcessorTime()
	r.start = time.Now()
	r.measures.measured = r.start.Add(r.config.WarmUp)
	stopBeside := r.beside(ctx, requests)

	var workers sync.WaitGroup
	for range r.config.Workers {
		workers.Go(func() { r.work(ctx, requests) })
	}
	err := r.schedule(ctx)
	r.drain()
	close(r.ready)
	workers.Wait()
	r.end = time.Now()
	stopBeside()
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// beside starts what runs beside the commands: reads and progress.
func (r *run) beside(ctx, requests context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	if r.config.ReadRate > 0 {
		group.Go(func() { r.read(ctx, requests) })
	}
	if r.config.Progress != nil {
		group.Go(func() { r.tellProgress(ctx) })
	}
	return func() {
		cancel()
		group.Wait()
		if r.config.Progress != nil {
			r.config.Progress(r.progress(0, time.Since(r.start)))
		}
	}
}

// schedule hands over each command when it is due, or as soon after as there
// is a slot. It ends with the source or with ctx.
func (r *run) schedule(ctx context.Context) error {
	for {
		c, due, err := r.source.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		at := r.start.Add(due)
		if due >= 0 && !pause.For(ctx, time.Until(at)) {
			return nil
		}
		if !r.acquire(ctx) {
			return nil
		}
		if due >= 0 {
			c.due, r.lastDue = at, due
			r.behind.Store(int64(time.Since(at)))
		}
		r.scheduled.Add(1)
		if r.relations.submit(c) {
			r.ready <- c
		}
	}
}

// acquire takes a slot and notes what made it wait.
func (r *run) acquire(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	select {
	case r.slots <- struct{}{}:
		return true
	default:
	}
	start := time.Now()
	why := &r.blocked.order
	if r.measures.busy.Load() == int64(r.config.Workers) {
		why = &r.blocked.workers
	}
	defer func() { *why += time.Since(start) }()
	select {
	case r.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// drain waits until every slot is free: all that was handed over is decided.
func (r *run) drain() {
	for range cap(r.slots) {
		r.slots <- struct{}{}
	}
}

// work decides commands, and with each those that wait behind it. After ctx
// has ended it empties the queues without sending.
func (r *run) work(ctx, requests context.Context) {
	for c := range r.ready {
		r.measures.busy.Add(1)
		for c != nil {
			if ctx.Err() == nil {
				storeMax(&r.lastStart, int64(time.Since(r.start)))
				r.executor.decide(ctx, requests, c)
			} else {
				r.measures.outcomes.add(Abandoned)
			}
			c = r.relations.finish(c)
			<-r.slots
		}
		r.measures.busy.Add(-1)
	}
}

func storeMax(v *atomic.Int64, n int64) {
	for old := v.Load(); n > old && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}

// outlive gives a context that ends some time after ctx does.
func outlive(ctx context.Context, by time.Duration) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		t := time.NewTimer(by)
		defer t.Stop()
		select {
		case <-t.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); cancel() }
}

// Progress is a run as it goes.
type Progress struct {
	Elapsed   time.Duration
	Commands  int64 // to send; 0: no end
	Scheduled int64 // handed over
	Decided   int64 // with an outcome
	PerSecond float64
	// Failed are refused, given up or abandoned.
	Failed int64
	// Behind is how late the schedule is.
	Behind time.Duration
}

// String is one line for a log.
func (p Progress) String() string {
	return fmt.Sprintf("%s: %d decided, %.0f/s, %d failed, %s behind", p.Elapsed.Round(time.Second), p.Decided, p.PerSecond, p.Failed, p.Behind.Round(time.Millisecond))
}

func (r *run) progress(before int64, over time.Duration) Progress {
	scheduled := r.scheduled.Load() // first, so that it never seems more is undecided than is
	outcomes := r.measures.outcomes.get()
	p := Progress{
		Elapsed: time.Since(r.start), Commands: r.config.Commands, Scheduled: scheduled,
		Decided: total(outcomes), Failed: failed(outcomes), Behind: time.Duration(r.behind.Load()),
	}
	p.PerSecond = float64(p.Decided-before) / over.Seconds()
	return p
}

func failed(outcomes map[string]int64) int64 {
	return outcomes[Refused] + outcomes[GaveUp] + outcomes[Abandoned]
}

func (r *run) tellProgress(ctx context.Context) {
	tick := time.NewTicker(r.config.ProgressEvery)
	defer tick.Stop()
	var before int64
	last := r.start
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			p := r.progress(before, now.Sub(last))
			before, last = p.Decided, now
			r.config.Progress(p)
		}
	}
}
