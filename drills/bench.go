package drills

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/pause"
)

// Classes of findings that the benches themselves make.
const (
	Stuck         oracle.Class = "stuck"          // something did not get over an injection in time
	Died          oracle.Class = "process-died"   // a process ended by itself
	Unnamed       oracle.Class = "reason-missing" // a fault was not named where operators look
	TooMuchMemory oracle.Class = "memory"         // more than the cell allows
	Unquiet       oracle.Class = "not-quiet"      // with all faults healed, the feed did not become quiet
	Contended     oracle.Class = "contended"      // owners were fenced more often than others wrote to their changelogs
	Silent        oracle.Class = "silent-loss"    // lost state was taken for an empty one, or no gap names lost rows
	Misnamed      oracle.Class = "gap-misnamed"   // a gap names rows that came
	GapLeft       oracle.Class = "gap-open"       // a gap is not healed at the end
	Unwarm        oracle.Class = "standby-silent" // no hot standby answered for an owner that was away, or one did that there should not be
	ListDiffers   oracle.Class = "list-differs"   // what the API tells of a list is not what its facts imply
)

// stuckError is a finding, not a failure of the drill.
type stuckError struct{ error }

// missingError says that a drill needs what this machine has not.
type missingError struct{ error }

// stage is a bench while a drill runs on it.
type stage interface {
	// do does one injection.
	do(ctx context.Context, name string, rnd *rand.Rand) error
	// watch looks after what runs until ctx ends: what ends by itself is a
	// finding, and is started again.
	watch(ctx context.Context)
	// judge heals everything, waits for quiet and compares.
	judge(ctx context.Context) error
	// fill puts what was done and seen into the result.
	fill(r *Result)
	// close ends everything; the folder stays.
	close()
}

// play runs a drill's lanes on a stage, then has it judged.
func play(ctx context.Context, d Drill, seed uint64, findings *oracle.Findings, s stage, say func(string, ...any)) error {
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { s.watch(watching) })
	g, lanes := errgroup.WithContext(ctx)
	for n, lane := range d.Lanes {
		rnd := source(seed, fmt.Sprintf("lane %d", n))
		plan := schedule(lane, d.Random, d.Rounds, rnd)
		g.Go(func() error { return inject(lanes, s, plan, rnd, findings, say) })
	}
	err := g.Wait()
	stop()
	watch.Wait()
	if err != nil {
		return err
	}
	say("all is injected: healing, waiting for quiet, comparing")
	return s.judge(ctx)
}

// maxStuck is how many injections of a lane may fail to be got over before the
// rest of it is given up.
const maxStuck = 3

func inject(ctx context.Context, s stage, plan []string, rnd *rand.Rand, findings *oracle.Findings, say func(string, ...any)) error {
	stuck := 0
	for i, name := range plan {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		start := time.Now()
		err := s.do(ctx, name, rnd)
		var not stuckError
		switch {
		case errors.As(err, &not):
			say("%d of %d: %s: %v", i+1, len(plan), name, err)
			findings.Add(Stuck, "%s: %v", name, err)
			if stuck++; stuck == maxStuck {
				return nil
			}
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		default:
			say("%d of %d: %s, %.1f s", i+1, len(plan), name, time.Since(start).Seconds())
		}
	}
	return nil
}

// await looks until cond is nil; when patience ends first, what is wrong is a
// stuckError. Time that ctx excuses does not count.
func await(ctx context.Context, patience time.Duration, what string, cond func() error) error {
	const interval = 20 * time.Millisecond
	tick := time.NewTicker(interval)
	defer tick.Stop()
	excused, _ := ctx.Value(excuse{}).(func() bool)
	left := patience
	for last := time.Now(); ; {
		err := cond()
		if err == nil {
			return nil
		}
		now := time.Now()
		if excused == nil || !excused() {
			left -= now.Sub(last)
		}
		last = now
		if left <= 0 || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return stuckError{fmt.Errorf("%s, not within %v: %w", what, patience, err)}
		}
		select {
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return ctx.Err()
			}
		case <-tick.C:
		}
	}
}

// excuse is the key of a context's function that says whether time counts for
// nothing now.
type excuse struct{}

// harm does harm to the broker, or to something else. Nothing gets over its
// harm while the broker is being harmed beside it: that time is excused.
func (e *environment) harm(ctx context.Context, broker bool, do func(context.Context) error) error {
	if broker {
		e.harming.Add(1)
		defer e.harming.Add(-1)
		return do(ctx)
	}
	return do(context.WithValue(ctx, excuse{}, func() bool { return e.harming.Load() > 0 }))
}

// sleep lets time pass, as part of what is injected.
func sleep(ctx context.Context, d time.Duration) error {
	if !pause.For(ctx, d) {
		return ctx.Err()
	}
	return nil
}

// environment is what a stage is set up in.
type environment struct {
	harming     *atomic.Int32 // injections that harm the broker now
	dir         string        // of this drill
	seed        uint64
	kafka       string // host:port of a real broker; "": embedded
	connect     string // URL of its Connect worker
	findings    *oracle.Findings
	tallies     *tallies
	log         *slog.Logger
	verify      Verifier
	verifyCache CacheVerifier
	patience    time.Duration // for the system to get over an injection
	quietWithin time.Duration // for the feed to become quiet at the end
	leaveGaps   bool          // nobody heals what gaps name
	weak        gokakit.Weakness

	brokersCommand, previous string // see Options
}
