package overload

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Load brings the levels one after the other; each takes effect once, and the
// end of the load takes them back.
func TestLoadBringsLevels(t *testing.T) {
	g := NewGuard(2, 8, 8)
	var applied []Level
	d, err := NewController(Config{Guard: g, Apply: func(l Level) { applied = append(applied, l) }})
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if !g.EnterCommand(1) {
			t.Fatal("one of 8 was refused")
		}
	}
	if g.EnterCommand(1) {
		t.Error("a ninth of 8 began")
	}
	if !g.EnterCommand(0) {
		t.Error("a full shard takes another's room")
	}
	now := begun
	for range 20 {
		now = now.Add(time.Second)
		d.look(now)
	}
	if !slices.Equal(applied, []Level{1, 2, 3, 4, 5}) || d.Detail() != "refuse (commands-in-flight)" {
		t.Fatalf("applied %v, detail %q", applied, d.Detail())
	}
	if g.EnterQuery() {
		t.Error("a query began at level refuse")
	}
	for range 8 {
		g.LeaveCommand(1, time.Millisecond)
	}
	for i, want := range []bool{true, true, false} {
		if g.EnterCommand(1) != want {
			t.Errorf("at level refuse, where a quarter of 8 go on, command %d began: %v", i, !want)
		}
	}
	g.LeaveCommand(1, 0)
	g.LeaveCommand(1, 0)
	g.LeaveCommand(0, 0)
	applied = nil
	for range 100 {
		now = now.Add(time.Second)
		d.look(now)
	}
	if !slices.Equal(applied, []Level{4, 3, 2, 1, 0}) || d.Detail() != "normal" {
		t.Errorf("applied %v, detail %q", applied, d.Detail())
	}
}

func TestAnOperatorsLevelWins(t *testing.T) {
	forced := true
	d, err := NewController(Config{Guard: NewGuard(1, 8, 8), Forced: func() (Level, bool) { return BoundReads, forced }})
	if err != nil {
		t.Fatal(err)
	}
	d.look(begun)
	if d.cfg.Guard.Level() != BoundReads || d.Detail() != "bound-reads (set by an operator)" {
		t.Errorf("level %v, detail %q", d.cfg.Guard.Level(), d.Detail())
	}
	forced = false
	d.look(begun.Add(time.Second))
	if d.cfg.Guard.Level() != Normal {
		t.Errorf("afterwards %v", d.cfg.Guard.Level())
	}
}

// Slow commands press though few are in flight.
func TestLatencyPresses(t *testing.T) {
	g := NewGuard(1, 100, 100)
	d, err := NewController(Config{Guard: g, Latency: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	now := begun
	for range 4 {
		for range 100 {
			g.EnterCommand(0)
			g.LeaveCommand(0, 150*time.Millisecond)
		}
		now = now.Add(time.Second)
		d.look(now)
	}
	if g.Level() != SlowDisplay || d.Detail() != "slow-display (command-latency)" {
		t.Errorf("level %v, detail %q", g.Level(), d.Detail())
	}
}

func TestP99(t *testing.T) {
	for d := time.Duration(0); d < 2*time.Second; d = d*5/4 + 10*time.Microsecond {
		if i := at(d); upTo(i) < d || i > 0 && upTo(i-1) > d {
			t.Fatalf("%v is in bucket %d, which is from %v up to %v", d, i, upTo(max(0, i-1)), upTo(i))
		}
	}
	var l latencies
	for range 985 {
		l.add(time.Millisecond)
	}
	for range 15 {
		l.add(300 * time.Millisecond)
	}
	if p := l.p99(); p < 300*time.Millisecond || p > 400*time.Millisecond {
		t.Errorf("p99 %v, want about 300 ms", p)
	}
	if p := l.p99(); p != 0 {
		t.Errorf("p99 %v of nothing", p)
	}
}

// Never more in flight than may be, and no room is lost.
func TestGuardAtOnce(t *testing.T) {
	g := NewGuard(1, 5, 5)
	var all sync.WaitGroup
	var in, most atomic.Int64
	for range 20 {
		all.Go(func() {
			for range 500 {
				if !g.EnterCommand(0) {
					continue
				}
				n := in.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				in.Add(-1)
				g.LeaveCommand(0, 0)
			}
		})
	}
	all.Wait()
	if _, n := g.fullest(); n != 0 || most.Load() > 5 {
		t.Errorf("%d left in flight, %d at most", n, most.Load())
	}
}

// A slow shard gets fewer, until they are answered in time; then more again. The
// others keep their room.
func TestASlowShardHasFewerInFlight(t *testing.T) {
	g := NewGuard(2, 512, 8)
	const perSecond = 400 // what shard 0 does, whatever waits
	for range 10 {
		most := g.shards[0].most.Load()
		for range perSecond {
			g.shards[0].took.add(time.Duration(most) * time.Second / perSecond)
		}
		g.pace(500 * time.Millisecond)
	}
	if most := g.shards[0].most.Load(); most < 100 || most > 200 {
		t.Errorf("%d in flight of a shard that does 400 a second, and half a second is wanted", most)
	}
	if most := g.shards[1].most.Load(); most != 512 {
		t.Errorf("the other shard has %d", most)
	}
	for range 20 {
		g.pace(500 * time.Millisecond)
	}
	if most := g.shards[0].most.Load(); most != 512 {
		t.Errorf("%d afterwards", most)
	}
}

// A signal brings the levels that help against it and no further ones, and keeps
// them; what else presses goes on from there, and comes back to there.
func TestASignalBringsItsLevelsOnly(t *testing.T) {
	g := NewGuard(1, 8, 8)
	lag := 40.0
	var applied []Level
	d, err := NewController(Config{
		Guard: g, Apply: func(l Level) { applied = append(applied, l) },
		More: func() []Signal {
			return []Signal{{Name: "count-lag", Value: lag, Limit: 30, Most: PauseConsumers}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	now := begun
	after := func(seconds int, want string, levels ...Level) {
		t.Helper()
		applied = nil
		for range seconds {
			now = now.Add(time.Second)
			d.look(now)
		}
		if !slices.Equal(applied, levels) || d.Detail() != want {
			t.Errorf("applied %v, detail %q, want %v, %q", applied, d.Detail(), levels, want)
		}
	}
	after(60, "pause-consumers (count-lag)", SlowDisplay, PauseConsumers)
	for range 8 {
		g.EnterCommand(0)
	}
	after(5, "bound-reads (commands-in-flight)", TightLimits, BoundReads)
	for range 8 {
		g.LeaveCommand(0, 0)
	}
	after(60, "pause-consumers (count-lag)", TightLimits, PauseConsumers)
	lag = 1
	after(60, "normal", SlowDisplay, Normal)
}
