package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// A step of a run: the user or the world does something.
type step struct {
	Do       string // set, pause, kill, query, other
	Relation int
	State    int
	Pause    time.Duration
	Cut      int // bytes of the unsynced end that survive a kill
}

// A plan is a whole run, drawn before it begins.
type plan struct {
	Steps    []step
	Faults   []fault
	BadDisk  []int // numbers of writes that fail
	Others   bool  // another device writes, too
	Conflict ConflictPolicy
}

var planned = []Relation{Like("V9001"), Like("a/b?c ..%"), Favorite("."), Follow("赞")}

func pauses() *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.IntRange(0, 12), func(n int) time.Duration {
		return time.Millisecond << n / 2
	})
}

func plans(t *rapid.T) plan {
	others := rapid.Bool().Draw(t, "others")
	do := []string{"set", "set", "set", "set", "pause", "pause", "kill", "query"}
	if others {
		do = append(do, "other")
	}
	oneStep := rapid.Custom(func(t *rapid.T) step {
		return step{
			Do: rapid.SampledFrom(do).Draw(t, "do"), Relation: rapid.IntRange(0, len(planned)-1).Draw(t, "relation"),
			State: rapid.IntRange(0, 2).Draw(t, "state"), Pause: pauses().Draw(t, "pause"), Cut: rapid.IntRange(0, 600).Draw(t, "cut"),
		}
	})
	oneFault := rapid.Custom(func(t *rapid.T) fault {
		f := fault{Before: pauses().Draw(t, "before"), After: pauses().Draw(t, "after")}
		switch rapid.IntRange(0, 9).Draw(t, "fault") {
		case 0, 1:
			f.Drop = true
		case 2:
			f.Lost = true
		case 3:
			f.Again = 1 + 4*pauses().Draw(t, "again")
		case 4:
			f.Status, f.Retry = rapid.SampledFrom([]int{200, 302, 404, 429, 500, 503}).Draw(t, "status"), rapid.SampledFrom([]string{"", "2"}).Draw(t, "retry")
		case 5:
			f.Cut = true
		case 6:
			f.Previous = true
		}
		return f
	})
	return plan{
		Steps:    rapid.SliceOfN(oneStep, 1, 40).Draw(t, "steps"),
		Faults:   rapid.SliceOfN(oneFault, 0, 60).Draw(t, "faults"),
		BadDisk:  rapid.SliceOfN(rapid.IntRange(4, 120), 0, 4).Draw(t, "bad disk"),
		Others:   others,
		Conflict: rapid.SampledFrom([]ConflictPolicy{AcceptServer, KeepIntent}).Draw(t, "conflict"),
	}
}

// Whatever the network and the disk do, and wherever the process is killed,
// the server ends at the user's last intent (S 5.4), each operation is decided
// once (I2), and no version that was confirmed is taken back (A3).
func TestFinalStateIsTheLastIntent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := plans(rt)
		var err error
		synctest.Test(t, func(t *testing.T) {
			r := &run{plan: p, server: newServer(), disk: &memDisk{fail: map[int]bool{}}, wanted: map[Relation][]State{}, sets: map[Relation]int{}, asked: map[Relation]Confirmed{}}
			r.server.faults = slices.Clone(p.Faults)
			for _, n := range p.BadDisk {
				r.disk.fail[n] = true
			}
			err = r.all(t.Context())
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

type run struct {
	plan   plan
	server *server
	disk   *memDisk
	client *Client
	// wanted has per relation the states that may be its last intent: the last
	// that was acknowledged, and those after it that were not.
	wanted map[Relation][]State
	sets   map[Relation]int
	asked  map[Relation]Confirmed // by queries not answered yet

	mu   sync.Mutex          // also for writing client: what its journal had is sent while it opens
	seen map[Relation]uint64 // highest confirmed version that this client told
	back error               // a version was taken back
}

func (r *run) all(ctx context.Context) error {
	defer r.server.underway.Wait()
	if err := r.open(); err != nil {
		return err
	}
	defer func() { // a failed run ends here
		if r.client != nil {
			_ = r.client.Close()
		}
	}()
	for i, s := range r.plan.Steps {
		if err := r.step(s); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
	}
	return r.finish(ctx)
}

func (r *run) open() error {
	c, err := r.server.config().withDefaults()
	if err != nil {
		return err
	}
	c.Conflict, c.compactAt = r.plan.Conflict, 2000
	r.mu.Lock()
	r.seen, r.client = map[Relation]uint64{}, nil
	r.mu.Unlock()
	c.Changed = r.changed
	// A disk that fails while the journal is opened is tried again, as an app
	// would.
	for range 20 {
		opened, failed := start(c, r.disk)
		if err = failed; err == nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.client = opened
			return nil
		}
	}
	return err
}

// changed runs in the drivers: views may be told late, so only the newest
// counts; the client's own view must never be behind it.
func (r *run) changed(v View) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[v.Relation] = max(r.seen[v.Relation], v.Confirmed.Version)
	if r.client == nil {
		return
	}
	if now := r.client.View(v.Relation).Confirmed.Version; now < r.seen[v.Relation] {
		r.back = fmt.Errorf("%v went from version %d back to %d", v.Relation, r.seen[v.Relation], now)
	}
}

func (r *run) step(s step) error {
	rel := planned[s.Relation]
	states := kinds[rel.Kind].states
	state := states[s.State%len(states)]
	switch s.Do {
	case "set":
		return r.set(rel, state)
	case "pause":
		time.Sleep(s.Pause)
	case "query": // its answer comes as late as the next one is asked
		late, ok := r.asked[rel]
		r.asked[rel] = r.server.at(rel)
		if ok {
			return r.client.Observe(rel, late)
		}
	case "other":
		r.server.write(rel, state)
	case "kill":
		r.disk.kill()
		_ = r.client.Close() // nobody hears what a killed process says
		r.disk = r.disk.after(s.Cut)
		clear(r.asked)
		return r.open()
	}
	return nil
}

func (r *run) set(rel Relation, s State) error {
	r.sets[rel]++
	err := r.client.Set(rel, s)
	if errors.Is(err, ErrJournal) {
		if r.wanted[rel] == nil {
			r.wanted[rel] = []State{kinds[rel.Kind].states[0]}
		}
		r.wanted[rel] = append(r.wanted[rel], s)
		return nil
	}
	if v := r.client.View(rel); err == nil && v.State != s && !r.plan.Others {
		return fmt.Errorf("%v was set to %s, but is shown as %s", rel, s, v.State)
	}
	r.wanted[rel] = []State{s}
	return err
}

func (r *run) finish(ctx context.Context) error {
	r.server.mu.Lock()
	r.server.faults = nil
	r.server.mu.Unlock()
	r.disk.mu.Lock()
	r.disk.fail = nil
	r.disk.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, time.Hour)
	defer cancel()
	if err := r.client.Flush(ctx); err != nil {
		return fmt.Errorf("%d are still pending: %w", r.client.Pending(), err)
	}
	r.server.underway.Wait() // also what came late changes nothing
	for rel, wanted := range r.wanted {
		if err := r.judge(rel, wanted); err != nil {
			return err
		}
	}
	if err := r.client.Close(); err != nil {
		return err
	}
	_, queues, err := openJournal(r.disk, "u7", 1<<20)
	if err == nil && len(queues) > 0 {
		err = fmt.Errorf("the journal still has %v", queues)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.back
}

func (r *run) judge(rel Relation, wanted []State) error {
	is, view := r.server.at(rel), r.client.View(rel)
	if view.Pending {
		return fmt.Errorf("%v is pending after all was flushed", rel)
	}
	if r.plan.Others {
		// The newest commit wins, whoever made it: the client knows it unless
		// another device wrote later.
		if view.Known && view.Confirmed.Version == is.Version && view.State != is.State {
			return fmt.Errorf("%v is shown as %s at version %d, where the server has %s", rel, view.State, is.Version, is.State)
		}
		return nil
	}
	if view.Err != nil {
		return fmt.Errorf("%v was refused though nobody else writes: %w", rel, view.Err)
	}
	if !slices.Contains(wanted, is.State) {
		return fmt.Errorf("%v is %s, the last intent was %v", rel, is.State, wanted)
	}
	if is.Version > uint64(r.sets[rel]) {
		return fmt.Errorf("%v has version %d after %d intents", rel, is.Version, r.sets[rel])
	}
	if view.Known && (view.State != is.State || view.Confirmed.Version != is.Version) {
		return fmt.Errorf("%v is shown as %+v, the server has %+v", rel, view, is)
	}
	return nil
}
