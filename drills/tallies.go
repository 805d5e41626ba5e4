package drills

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// tallies count what was done to a bench.
type tallies struct {
	mu       sync.Mutex
	injected map[string]int
	kills    int
	pauses   int
	faults   int
	firsts   []time.Duration
	stops    []time.Duration
	notes    []string
}

func newTallies() *tallies { return &tallies{injected: map[string]int{}} }

func (t *tallies) inject(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.injected[name]++
}

func (t *tallies) killed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kills++
}

func (t *tallies) paused() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pauses++
}

func (t *tallies) broke() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.faults++
}

func (t *tallies) first(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.firsts = append(t.firsts, d)
}

func (t *tallies) stopped(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stops = append(t.stops, d)
}

// note keeps what a reader of the report has to know of how the drill was done.
func (t *tallies) note(format string, a ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := fmt.Sprintf(format, a...); !slices.Contains(t.notes, n) {
		t.notes = append(t.notes, n)
	}
}

// fill puts the tallies into a result.
func (t *tallies) fill(r *Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Injected, r.Notes = maps.Clone(t.injected), slices.Clone(t.notes)
	r.Figures.Kills, r.Figures.Pauses, r.Figures.Faults = t.kills, t.pauses, t.faults
	r.Figures.ToFirst, r.Figures.Stop = spread(t.firsts), spread(t.stops)
}
