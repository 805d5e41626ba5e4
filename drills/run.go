package drills

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/gokakit"
)

// Options of a run.
type Options struct {
	Seed     uint64
	Rounds   int    // of each drill; 0: the drill's own
	Parallel int    // drills at a time; 0: 1
	Kafka    string // host:port of a real broker; "": the embedded one
	Connect  string // URL of that broker's Connect worker; "": none
	Keep     bool   // keep logs and state of every drill, not only of those that found something
	Dir      string // for logs and state; "": a temporary folder
	Weakness gokakit.Weakness
	// LeaveGaps leaves gaps of the change feed unhealed, so that the drills of
	// the feed must find a difference.
	LeaveGaps bool
	Commit    string
	Verify    Verifier
	// VerifyCache compares a cache, as `tidemark verify --redis` does.
	VerifyCache CacheVerifier
	Progress    io.Writer
	// BrokersCommand ends and starts the brokers of a real cluster: it is run
	// with "kill N", N the id that it has in the cluster, and with "up", which
	// starts what does not run.
	BrokersCommand string
	// Previous is the binary of another version; "": there is none.
	Previous string
}

// Entry is a drill and how many rounds of it.
type Entry struct {
	Drill  string
	Rounds int // 0: the drill's own
}

// Run does the drills and reports. An error means that nothing could be done
// at all.
func Run(ctx context.Context, entries []Entry, o Options) (*Report, error) {
	drills, err := resolve(entries, o)
	if err != nil {
		return nil, err
	}
	dir, err := runDir(o.Dir)
	if err != nil {
		return nil, err
	}
	r := &Report{Started: time.Now().UTC(), Seed: o.Seed, Broker: "embedded", Commit: o.Commit, Results: make([]Result, len(drills)),
		Machine: fmt.Sprintf("%d cores, %s/%s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)}
	if o.Kafka != "" {
		r.Broker = o.Kafka
	}
	p := &printer{out: o.Progress}
	var g errgroup.Group
	g.SetLimit(max(1, o.Parallel))
	for i, d := range drills {
		g.Go(func() error {
			r.Results[i] = runOne(ctx, d, o, filepath.Join(dir, fmt.Sprintf("%02d-%s", i+1, d.Name)), p)
			return nil
		})
	}
	_ = g.Wait()
	r.Seconds = time.Since(r.Started).Seconds()
	r.judge()
	_ = os.Remove(dir) // only if nothing was kept
	return r, ctx.Err()
}

// runDir makes a folder for a run, below base or among temporary files.
func runDir(base string) (string, error) {
	if base != "" {
		if err := os.MkdirAll(base, 0o755); err != nil {
			return "", err
		}
	}
	dir, err := os.MkdirTemp(base, "tidemark-drill-")
	if err != nil {
		return "", err
	}
	return dir, os.Chmod(dir, 0o755) // PostgreSQL runs as another user
}

func resolve(entries []Entry, o Options) ([]Drill, error) {
	var drills []Drill
	for _, e := range entries {
		d, err := Find(e.Drill)
		if err != nil {
			return nil, err
		}
		if e.Rounds > 0 {
			d.Rounds = e.Rounds
		}
		if o.Rounds > 0 {
			d.Rounds = o.Rounds
		}
		if err := d.check(); err != nil {
			return nil, err
		}
		drills = append(drills, d)
	}
	return drills, nil
}

// printer writes progress lines, one at a time.
type printer struct {
	mu  sync.Mutex
	out io.Writer
}

func (p *printer) say(drill, format string, a ...any) {
	if p.out == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "%s %s: %s\n", time.Now().Format("15:04:05"), drill, fmt.Sprintf(format, a...))
}

// runOne does one drill in a folder of its own, which stays when something was
// found or when it is to be kept.
func runOne(ctx context.Context, d Drill, o Options, dir string, p *printer) Result {
	res := Result{Drill: d.Name, Bench: d.Bench, Seed: o.Seed, Injected: map[string]int{}}
	switch {
	case o.Kafka != "" && d.needsFaults():
		res.Verdict, res.Reason = Skipped, "it needs the embedded broker"
		return res
	case d.needsWorker() && (o.Kafka == "" || o.Connect == ""):
		res.Verdict, res.Reason = Skipped, "it needs a real Kafka with a Connect worker (make real-up DEBEZIUM=1): --real-kafka and --connect"
		return res
	}
	start := time.Now()
	findings := new(oracle.Findings)
	say := func(format string, a ...any) { p.say(d.Name, format, a...) }
	err := perform(ctx, d, o, dir, findings, &res, say)
	res.Seconds = time.Since(start).Seconds()
	res.Figures.PerSecond = float64(res.Figures.Events) / res.Seconds
	res.Found, res.Differences = findings.Counts(), findings.Lines()
	var missing missingError
	switch {
	case findings.Total() > 0:
		res.Verdict = Different
	case errors.As(err, &missing):
		res.Verdict = Skipped
	case err != nil:
		res.Verdict = Failed
	default:
		res.Verdict = Equal
	}
	if err != nil {
		res.Reason = err.Error()
	}
	say("%s after %.0f s", res.Verdict, res.Seconds)
	for _, line := range res.Differences[:min(5, len(res.Differences))] {
		say("found %s", line)
	}
	if o.Keep || res.Verdict == Different || res.Verdict == Failed {
		res.Kept = dir
	} else if err := os.RemoveAll(dir); err != nil {
		say("removing its folder: %v", err)
	}
	return res
}

func perform(ctx context.Context, d Drill, o Options, dir string, findings *oracle.Findings, res *Result, say func(string, ...any)) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	logFile, err := os.Create(filepath.Join(dir, "drill.log"))
	if err != nil {
		return err
	}
	defer func() { _ = logFile.Close() }()
	env := environment{harming: new(atomic.Int32), dir: dir, seed: o.Seed, kafka: o.Kafka, connect: o.Connect, findings: findings, tallies: newTallies(), verify: o.Verify, verifyCache: o.VerifyCache,
		patience: 90 * time.Second, quietWithin: 2 * time.Minute, leaveGaps: o.LeaveGaps, weak: o.Weakness,
		log: slog.New(slog.NewTextHandler(logFile, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if o.Weakness != 0 { // what cannot recover will not
		env.patience, env.quietWithin = 20*time.Second, 20*time.Second
	}
	env.brokersCommand, env.previous = o.BrokersCommand, o.Previous
	say("starting, %d rounds, seed %d", d.Rounds, o.Seed)
	s, err := setUp(ctx, d, env)
	var not stuckError
	if errors.As(err, &not) {
		findings.Add(Stuck, "setting up: %v", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	defer s.close()
	err = play(ctx, d, o.Seed, findings, s, say)
	s.fill(res)
	return err
}

func setUp(ctx context.Context, d Drill, env environment) (stage, error) {
	if d.Bench == System {
		return newSystem(ctx, env, d.Cell)
	}
	return newRig(ctx, env, d.Cell)
}
