package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// way is one of several ways to the same answer.
type way struct {
	name string
	ask  func(ctx context.Context, i int) error // the i-th question of a client's
}

const (
	wayClients = 4
	wayTurns   = 7
	wayTurn    = 300 * time.Millisecond
)

// compareWays lets ways take turns, and prints of each the CPU time that a
// question takes of this process and the servers below it, less what they take
// while nobody asks, its ratio to that of the first way, and the median of the
// turns' medians: under other load on the machine the first two move least.
func compareWays(ctx context.Context, ways []way) error {
	nothing := way{"nothing", func(context.Context, int) error { time.Sleep(wayTurn); return nil }}
	var idle turn
	all := make([]turn, len(ways))
	medians := make([][]time.Duration, len(ways))
	for range wayTurns {
		t, err := nothing.turn(ctx)
		if err != nil {
			return err
		}
		idle.add(t)
		for i, w := range ways {
			if t, err = w.turn(ctx); err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			all[i].add(t)
			medians[i] = append(medians[i], t.took[len(t.took)/2])
		}
	}
	background := idle.cpu.Seconds() / idle.wall.Seconds()
	each := func(t turn) float64 {
		return 1e6 * (t.cpu.Seconds() - background*t.wall.Seconds()) / float64(len(t.took))
	}
	for i, w := range ways {
		slices.Sort(medians[i])
		fmt.Printf("      %-44s %5.0f core-µs  %5.2f  %6d µs\n", w.name, each(all[i]), each(all[i])/each(all[0]), medians[i][wayTurns/2].Microseconds())
	}
	return nil
}

// turn is what a way did for a while.
type turn struct {
	took      []time.Duration // each question, sorted
	cpu, wall time.Duration
}

func (t *turn) add(more turn) {
	t.took, t.cpu, t.wall = append(t.took, more.took...), t.cpu+more.cpu, t.wall+more.wall
}

// turn asks one question after the other for a while, by several clients.
func (w way) turn(ctx context.Context) (t turn, err error) {
	before, err := treeCPU()
	if err != nil {
		return t, err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for c := range wayClients {
		wg.Go(func() {
			var mine []time.Duration
			var failed error
			for i := c; failed == nil && (len(mine) == 0 || time.Since(start) < wayTurn); i += wayClients {
				asked := time.Now()
				failed = w.ask(ctx, i)
				mine = append(mine, time.Since(asked))
			}
			mu.Lock()
			defer mu.Unlock()
			t.took, err = append(t.took, mine...), errors.Join(err, failed)
		})
	}
	wg.Wait()
	if err != nil {
		return t, err
	}
	after, err := treeCPU()
	t.cpu, t.wall = after-before, time.Since(start)
	slices.Sort(t.took)
	return t, err
}
