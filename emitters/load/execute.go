package load

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark/tidemark/internal/pause"
)

// Outcomes of commands: each command has exactly one.
const (
	Applied      = "applied"       // the relation has a new version
	NoOp         = "no-op"         // it was in the desired state already
	Resent       = "resent"        // a repeated operation, answered with its result
	StaleRefused = "stale-refused" // a deliberately old base version, refused
	StaleApplied = "stale-applied" // the same, accepted (last commit wins)
	Refused      = "refused"       // any other 4xx
	GaveUp       = "gave-up"       // no answer that decides it after all attempts
	Abandoned    = "abandoned"     // the run was ended before it was decided
)

// Events on the way to an outcome; a command may have many.
const (
	Throttled       = "429"
	Unavailable     = "503"
	ServerError     = "5xx"
	Unauthenticated = "401"
	TimedOut        = "timeout"
	NoAnswer        = "no-answer"  // connection refused, reset or cut
	Refreshed       = "refreshed"  // refused as stale unexpectedly, sent again
	Unreadable      = "unreadable" // 200 without a relation in it
)

// maxReissues is how often a command is sent again as a new operation because
// the relation moved on without this client.
const maxReissues = 3

// executor decides commands, one at a time per worker.
type executor struct {
	config    Config
	ids       operationIDs
	client    *client
	relations *relations
	measures  *measures
	failed    func(error) // ends the run
}

// decide sends a command until its outcome is known or given up. After ctx has
// ended it makes no new attempt; one that is under way goes on with requests.
func (x *executor) decide(ctx, requests context.Context, c *command) {
	r := x.relations.of(c)
	x.prepare(c, r)
	start := time.Now()
	if c.due.IsZero() {
		c.due = start
	}
	outcome := x.exchange(ctx, requests, c, r)
	x.measures.outcomes.add(outcome)
	if outcome == Abandoned || c.due.Before(x.measures.measured) {
		return
	}
	now := time.Now()
	x.measures.latency.add(now.Sub(c.due))
	x.measures.service.add(now.Sub(start))
	x.measures.late.add(start.Sub(c.due))
}

// prepare fixes what the command sends, as the client knows the relation now.
func (x *executor) prepare(c *command, r *relation) {
	if c.resend != nil {
		c.sent = c.resend.sent
		if c.sent.id != "" {
			return
		}
		c.resend = nil // it was never sent: this is the first time
	}
	if c.stale && r.version == 0 {
		c.stale = false // nothing is older than the beginning
	}
	x.fresh(c, r, 0)
	if c.stale {
		c.sent.base--
	}
}

func (x *executor) fresh(c *command, r *relation, reissue int) {
	c.sent = operation{id: x.ids.id(c.number, reissue), desired: c.desired, base: r.version, sequence: c.number}
}

// exchange repeats the command until something decides it.
func (x *executor) exchange(ctx, requests context.Context, c *command, r *relation) string {
	reissues := 0
	for attempt := 1; ; attempt++ {
		known := r.version
		a, size, err := x.client.put(requests, c.relation, c.sent)
		if err != nil {
			x.failed(err)
			return Abandoned
		}
		x.measures.sent.Add(1)
		x.measures.bytes.Add(int64(size))
		if a.status == 0 && requests.Err() != nil {
			return Abandoned
		}
		r.learn(a)
		event, outcome := judge(c, known, a)
		if event == Refreshed {
			if reissues++; reissues <= maxReissues && a.known {
				x.measures.events.add(event)
				x.fresh(c, r, reissues)
				continue
			}
			return Refused
		}
		if event != "" {
			x.measures.events.add(event)
		}
		if outcome != "" {
			return outcome
		}
		if attempt >= x.config.Attempts {
			return GaveUp
		}
		if !x.wait(ctx, attempt, event, a.retryAfter) {
			return Abandoned
		}
		if x.config.FreshRetries {
			c.sent.id = x.ids.id(c.number, maxReissues+attempt)
		}
	}
}

// learn keeps the newest version that an answer told.
func (r *relation) learn(a answer) {
	if a.known && a.version >= r.version {
		r.version = a.version
	}
}

// judge says what an answer means: an outcome when the command is decided,
// else an event after which it is sent again. known is the version that the
// client knew before.
func judge(c *command, known uint64, a answer) (event, outcome string) {
	switch {
	case a.status == 0 && a.timedOut:
		return TimedOut, ""
	case a.status == 0:
		return NoAnswer, ""
	case a.status == http.StatusTooManyRequests:
		return Throttled, ""
	case a.status == http.StatusServiceUnavailable:
		return Unavailable, ""
	case a.status == http.StatusUnauthorized:
		return Unauthenticated, ""
	case a.status == http.StatusRequestTimeout || a.status >= 500:
		return ServerError, ""
	case a.status == http.StatusConflict && a.problem == problemStale:
		return judgeStale(c)
	case a.status >= 300:
		return "", Refused
	}
	if !a.known {
		event = Unreadable
	}
	switch {
	case c.resend != nil:
		return event, Resent
	case c.stale:
		return event, StaleApplied
	case a.known && a.version > known:
		return event, Applied
	}
	return event, NoOp
}

func judgeStale(c *command) (event, outcome string) {
	switch {
	case c.resend != nil:
		return "", Resent // what it was answered the first time
	case c.stale:
		return "", StaleRefused
	}
	return Refreshed, ""
}

// wait pauses before the next attempt: as long as the server asks for, else
// twice as long each time from 20 ms, with jitter, never above MaxBackoff.
func (x *executor) wait(ctx context.Context, attempt int, event string, asked time.Duration) bool {
	if event == Unauthenticated && attempt == 1 {
		return true // the token was dropped; the next one is new
	}
	wait := min(asked, x.config.MaxBackoff)
	if asked == 0 {
		wait = min(20*time.Millisecond<<min(attempt-1, 12), x.config.MaxBackoff)
		wait -= time.Duration(rand.Int64N(int64(wait)/2 + 1))
	}
	start := time.Now()
	defer func() { x.measures.waited.Add(int64(time.Since(start))) }()
	return pause.For(ctx, wait)
}

// measures is what a run counts. measured is when the warm-up ends.
type measures struct {
	measured time.Time
	outcomes tally
	events   tally
	latency  histogram // from due to decided
	service  histogram // from the first attempt to decided
	late     histogram // from due to the first attempt
	waited   atomic.Int64
	sent     atomic.Int64 // requests of commands
	bytes    atomic.Int64 // of their bodies
	busy     atomic.Int64 // workers at work

	reads       tally
	readLatency histogram
	readItems   atomic.Int64
}

// tally counts by name.
type tally struct {
	mu     sync.Mutex
	counts map[string]int64
}

func (t *tally) add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[string]int64{}
	}
	t.counts[name]++
}

// get copies the counts.
func (t *tally) get() map[string]int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := make(map[string]int64, len(t.counts))
	for name, n := range t.counts {
		m[name] = n
	}
	return m
}

func total(counts map[string]int64) (n int64) {
	for _, v := range counts {
		n += v
	}
	return n
}
