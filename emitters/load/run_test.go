package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark/tidemark/topology"
)

func runLoad(t *testing.T, c Config) Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(ctx)
	if err != nil {
		t.Fatalf("%v; %+v", err, r)
	}
	return r
}

func expectOutcomes(t *testing.T, r Report, want int64) {
	t.Helper()
	if r.Decided != want || total(r.Outcomes) != want || r.Scheduled != want {
		t.Errorf("%d scheduled, %d decided, outcomes %v; want %d", r.Scheduled, r.Decided, r.Outcomes, want)
	}
}

// Every command has one outcome, and the outcomes are those of the mix.
func TestLikes1AgainstTheContract(t *testing.T) {
	s := newServer(t)
	r := runLoad(t, small(s, nil))
	s.check(t)
	expectOutcomes(t, r, 2000)
	if r.Errors() != 0 || len(r.Events) != 0 {
		t.Errorf("errors %d, events %v", r.Errors(), r.Events)
	}
	if got := r.Outcomes[Resent]; got != r.Made.Resend {
		t.Errorf("%d resent of %d", got, r.Made.Resend)
	}
	if got := r.Outcomes[StaleRefused]; got == 0 || got > r.Made.Stale {
		t.Errorf("%d stale refused of %d", got, r.Made.Stale)
	}
	var versions int64
	for _, f := range s.relations {
		versions += int64(f.version)
	}
	if r.Outcomes[Applied] != versions {
		t.Errorf("%d applied, the server has %d versions", r.Outcomes[Applied], versions)
	}
	if r.Relations < int64(len(s.relations)) || r.Latency.Count != 2000 || r.BodyBytes < 80 || r.Requests < 2000 {
		t.Errorf("report %+v", r)
	}
}

func TestLastCommitWins(t *testing.T) {
	s := newServer(t)
	s.lastCommitWins = true
	r := runLoad(t, small(s, nil))
	s.check(t)
	expectOutcomes(t, r, 2000)
	if r.Outcomes[StaleApplied] == 0 || r.Outcomes[StaleRefused] != 0 || r.Errors() != 0 {
		t.Errorf("outcomes %v", r.Outcomes)
	}
}

// Few relations, many workers: the order within each is kept (seed 5.4), which
// the server checks, and the wait for it is seen as such.
func TestOneUndecidedCommandPerRelation(t *testing.T) {
	s := newServer(t)
	s.before = func(http.ResponseWriter, *http.Request) bool { time.Sleep(200 * time.Microsecond); return false }
	r := runLoad(t, small(s, func(c *Config) {
		c.Users, c.Targets, c.Workers = 2, 2, 32
		c.TargetSkew.Shape = Uniform
		c.Mix.On = 0.5
	}))
	s.check(t)
	expectOutcomes(t, r, 2000)
	if r.Errors() != 0 || len(r.Events) != 0 {
		t.Errorf("errors %d, events %v", r.Errors(), r.Events)
	}
}

// The same seed makes the same history, whatever the server's pace.
func TestSameSeedSameFacts(t *testing.T) {
	facts := func(workers int) map[topology.Relation]fact {
		s := newServer(t)
		runLoad(t, small(s, func(c *Config) { c.Seed, c.Workers, c.Pending = 42, workers, 256 }))
		s.check(t)
		return s.relations
	}
	a, b := facts(1), facts(32)
	if len(a) != len(b) {
		t.Fatalf("%d and %d relations", len(a), len(b))
	}
	for r, f := range a {
		if b[r] != f {
			t.Errorf("%s is %+v and %+v", r.Key(), f, b[r])
		}
	}
}

// A second run does not know the first one's relations: it is refused, learns
// and goes on.
func TestRelationsOfAnEarlierRun(t *testing.T) {
	s := newServer(t)
	runLoad(t, small(s, nil))
	r := runLoad(t, small(s, nil))
	s.check(t)
	expectOutcomes(t, r, 2000)
	if r.Events[Refreshed] == 0 || r.Errors() != 0 {
		t.Errorf("events %v, outcomes %v", r.Events, r.Outcomes)
	}
}

// Forgotten relations cost a refused command, nothing else.
func TestBoundedRelations(t *testing.T) {
	s := newServer(t)
	r := runLoad(t, small(s, func(c *Config) { c.Relations, c.Pending, c.Workers = 64, 32, 8 }))
	s.check(t)
	expectOutcomes(t, r, 2000)
	if r.Errors() != 0 || r.Events[Refreshed] == 0 {
		t.Errorf("events %v, outcomes %v", r.Events, r.Outcomes)
	}
}

// every returns true for each nth call.
func every(n int64) func() bool {
	var calls atomic.Int64
	return func() bool { return calls.Add(1)%n == 0 }
}

// 429, 503, 500, 401, cut connections and lost answers: each is counted, the
// same operation is sent again, and nothing is applied twice (I2).
func TestTroubleOnTheWay(t *testing.T) {
	trouble := func(n int64, status int, retryAfter string) func(w http.ResponseWriter, r *http.Request) bool {
		hit := every(n)
		return func(w http.ResponseWriter, _ *http.Request) bool {
			if !hit() {
				return false
			}
			if retryAfter != "" {
				w.Header().Set("Retry-After", retryAfter)
			}
			w.WriteHeader(status)
			return true
		}
	}
	for _, c := range []struct {
		name, event string
		before      func(w http.ResponseWriter, r *http.Request) bool
		after       func(*http.Request) bool
	}{
		{"429", Throttled, trouble(20, 429, "1"), nil},
		{"503", Unavailable, trouble(20, 503, ""), nil},
		{"500", ServerError, trouble(20, 500, ""), nil},
		{"401", Unauthenticated, trouble(20, 401, ""), nil},
		{"cut before", NoAnswer, func() func(http.ResponseWriter, *http.Request) bool {
			hit := every(20)
			return func(http.ResponseWriter, *http.Request) bool {
				if hit() {
					panic(http.ErrAbortHandler)
				}
				return false
			}
		}(), nil},
		{"answer lost", NoAnswer, nil, func() func(*http.Request) bool {
			hit := every(20)
			return func(*http.Request) bool { return hit() }
		}()},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer(t)
			s.before, s.after = c.before, c.after
			r := runLoad(t, small(s, func(c *Config) { c.Commands, c.MaxBackoff = 500, 5*time.Millisecond }))
			s.check(t)
			expectOutcomes(t, r, 500)
			if r.Events[c.event] < 20 || r.Errors() != 0 || r.Events[Refreshed] != 0 {
				t.Errorf("events %v, outcomes %v", r.Events, r.Outcomes)
			}
			if r.Requests != 500+total(r.Events) {
				t.Errorf("%d requests, events %v", r.Requests, r.Events)
			}
		})
	}
}

// A refused token is made again; a good one is kept.
func TestTokensAreRenewed(t *testing.T) {
	s := newServer(t)
	s.before = func(w http.ResponseWriter, r *http.Request) bool {
		expired := strings.HasSuffix(r.Header.Get("Authorization"), "#1")
		if expired {
			w.WriteHeader(http.StatusUnauthorized)
		}
		return expired
	}
	var mu sync.Mutex
	minted := map[string]int{}
	r := runLoad(t, small(s, func(c *Config) {
		c.Commands, c.Users, c.Workers = 300, 10, 1
		c.Token = func(user string) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			minted[user]++
			return fmt.Sprintf("token of %s#%d", user, minted[user]), nil
		}
	}))
	s.check(t)
	expectOutcomes(t, r, 300)
	if r.Events[Unauthenticated] != int64(len(minted)) || r.Errors() != 0 {
		t.Errorf("events %v, outcomes %v", r.Events, r.Outcomes)
	}
	for user, n := range minted {
		if n != 2 {
			t.Errorf("%d tokens of %s, want 2", n, user)
		}
	}
}

func TestTimeoutThenTheSameOperation(t *testing.T) {
	s := newServer(t)
	hit := every(50)
	s.after = func(r *http.Request) bool {
		if hit() {
			<-r.Context().Done() // decided, and the answer is late for ever
		}
		return false
	}
	r := runLoad(t, small(s, func(c *Config) { c.Commands, c.Timeout, c.MaxBackoff = 300, 200*time.Millisecond, time.Millisecond }))
	s.check(t)
	expectOutcomes(t, r, 300)
	if r.Events[TimedOut] < 5 || r.Errors() != 0 {
		t.Errorf("events %v, outcomes %v", r.Events, r.Outcomes)
	}
}

func TestGivesUpAndRefused(t *testing.T) {
	for status, want := range map[int]string{503: GaveUp, 404: Refused, 422: Refused, 400: Refused} {
		s := newServer(t)
		s.before = func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(status); return true }
		r := runLoad(t, small(s, func(c *Config) { c.Commands, c.Attempts, c.MaxBackoff = 50, 3, time.Millisecond }))
		if r.Outcomes[want] != 50 || r.Errors() != 50 {
			t.Errorf("status %d: outcomes %v", status, r.Outcomes)
		}
	}
}

// The latency of an open loop counts from when a command was due: one pause of
// the server shows in all commands that were due meanwhile.
func TestNoCoordinatedOmission(t *testing.T) {
	const pause = 400 * time.Millisecond
	s := newServer(t)
	var once sync.Once
	s.before = func(http.ResponseWriter, *http.Request) bool {
		once.Do(func() { time.Sleep(pause) })
		return false
	}
	r := runLoad(t, small(s, func(c *Config) { c.Rate, c.Commands, c.Workers, c.Users = 500, 400, 1, 100000 }))
	s.check(t)
	// 200 of 400 commands were due in the pause; half of them wait over 200 ms.
	if r.Late.P50 < 1 || r.Latency.P95 < 300 || r.Latency.Max < 390 {
		t.Errorf("latency %v, late %v", r.Latency, r.Late)
	}
	if r.Service.P95 > 100 {
		t.Errorf("service %v does not leave out the wait", r.Service)
	}
}

// A server slower than the rate makes a missed rate, not a lower offer, and
// memory stays bounded: no more than Pending are handed over and undecided.
func TestSlowServerIsReported(t *testing.T) {
	s := newServer(t)
	s.before = func(http.ResponseWriter, *http.Request) bool { time.Sleep(2 * time.Millisecond); return false }
	var most atomic.Int64
	r := runLoad(t, small(s, func(c *Config) {
		c.Rate, c.Commands, c.Workers, c.Pending, c.Users = 5000, 500, 1, 8, 100000
		c.ProgressEvery = time.Millisecond
		c.Progress = func(p Progress) { storeMax(&most, p.Scheduled-p.Decided) }
	}))
	expectOutcomes(t, r, 500)
	if r.OfferedRate != 5000 || r.AchievedRate > 600 || r.MissedRate < 4000 {
		t.Errorf("offered %v, achieved %v, missed %v", r.OfferedRate, r.AchievedRate, r.MissedRate)
	}
	if !strings.HasPrefix(r.LimitedBy, "workers") && !strings.HasPrefix(r.LimitedBy, "processor") {
		t.Errorf("limited by %s", r.LimitedBy)
	}
	if most.Load() > 8 || most.Load() < 4 {
		t.Errorf("%d commands were undecided at once, pending is 8", most.Load())
	}
}

func TestRateIsKept(t *testing.T) {
	s := newServer(t)
	var last Progress
	r := runLoad(t, small(s, func(c *Config) {
		c.Rate, c.Commands, c.ReadRate, c.Users = 1000, 500, 200, 100000
		c.Progress, c.ProgressEvery = func(p Progress) { last = p }, 50*time.Millisecond
	}))
	s.check(t)
	expectOutcomes(t, r, 500)
	if r.Duration < 0.45 {
		t.Errorf("500 commands at 1,000/s took %v s", r.Duration)
	}
	if last.Decided != 500 || last.Commands != 500 || !strings.Contains(last.String(), "500 decided") {
		t.Errorf("last progress %+v", last)
	}
	if n := r.Reads.Outcomes["200"]; n < 50 || float64(n) > 200*r.Duration+2 || r.Reads.Latency.Count < 50 || r.Reads.ItemsPerRead < 1.5 {
		t.Errorf("reads %+v", r.Reads)
	}
	var b bytes.Buffer
	if err := r.WriteTable(&b); err != nil || !strings.Contains(b.String(), "1000/s offered") || !strings.Contains(b.String(), "limited by") {
		t.Errorf("table %v:\n%s", err, &b)
	}
}

func TestWarmUpIsNotMeasured(t *testing.T) {
	s := newServer(t)
	r := runLoad(t, small(s, func(c *Config) { c.Rate, c.Commands, c.WarmUp = 1000, 300, 200*time.Millisecond }))
	expectOutcomes(t, r, 300)
	if r.Latency.Count < 90 || r.Latency.Count > 110 {
		t.Errorf("%d measured, want the last 100", r.Latency.Count)
	}
}

// A run ends soon after its context, and nothing is left undecided unseen.
func TestEndsWithItsContext(t *testing.T) {
	for name, commands := range map[string]int64{"without an end": 0, "with an end": 1_000_000} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l, err := New(small(s, func(c *Config) {
				c.Commands, c.ProgressEvery = commands, time.Millisecond
				c.Progress = func(p Progress) {
					if p.Decided > 200 {
						cancel()
					}
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			r, err := l.Run(ctx)
			if (err == nil) != (commands == 0) || (err != nil && !errors.Is(err, context.Canceled)) {
				t.Errorf("error %v", err)
			}
			s.check(t)
			if total(r.Outcomes) != r.Scheduled || r.Decided <= 200 {
				t.Errorf("%d scheduled, outcomes %v", r.Scheduled, r.Outcomes)
			}
		})
	}
}

// After its context a run tries nothing again, so that a server that has gone
// away does not hold it.
func TestNoAttemptAfterTheEnd(t *testing.T) {
	s := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.before = func(w http.ResponseWriter, _ *http.Request) bool {
		cancel()
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	l, err := New(small(s, func(c *Config) { c.Commands, c.Attempts = 0, 1_000_000 }))
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	r, err := l.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > grace {
		t.Errorf("ended after %v", took)
	}
	if r.Outcomes[Abandoned] != r.Scheduled || r.Requests > r.Scheduled {
		t.Errorf("%d scheduled, %d requests, outcomes %v", r.Scheduled, r.Requests, r.Outcomes)
	}
}

func TestTokenErrorEndsTheRun(t *testing.T) {
	s := newServer(t)
	broken := errors.New("no key")
	l, err := New(small(s, func(c *Config) { c.Token = func(string) (string, error) { return "", broken } }))
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(t.Context())
	if !errors.Is(err, broken) || r.Decided != 0 {
		t.Errorf("error %v, report %+v", err, r)
	}
}

func TestNewNamesWrongFields(t *testing.T) {
	_, err := New(Config{
		BaseURL: "localhost:8080", Rate: -1, Workers: -1, Users: 1,
		Mix: Mix{On: 2, Resend: 0.7, Switch: 0.7}, TargetSkew: Skew{Shape: "pareto"},
		Replay: &Replay{Path: "log.txt", Speed: -1},
	})
	for _, part := range []string{"base URL", "token", "rate is -1", "workers", "users is 1", "on is 2", "resend + stale base + switch", "weights", `"pareto"`, "log.txt", "speed -1"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error does not name %q: %v", part, err)
		}
	}
}
