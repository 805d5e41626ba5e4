package drills

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Drill is one exercise.
type Drill struct {
	Name  string
	About string
	Bench Bench
	Cell  Cell
	// Lanes run beside each other; each does its injections in turn, Rounds
	// times each, or draws Rounds of them when Random.
	Lanes  [][]string
	Random bool
	Rounds int
	// Rows of the bug log that the drill answers.
	Rows []string
}

// Bench is where a drill runs.
type Bench string

// The benches.
const (
	Projection Bench = "projection" // synthetic changes, projection and display
	System     Bench = "system"     // everything, commands over HTTP
)

// Cell is how the bench of a drill is set up. A zero field is the default.
type Cell struct {
	Members    int // processes, default 2
	Rate       int // changes (or commands) per second, default 1500
	Relations  int // that the changes are about, default 6000
	Partitions int // count partitions, default 6
	Duplicates float64
	Poison     float64
	HotStandby bool
	// Session is how long a member may be silent, default 2 s, the least.
	Session time.Duration
	// SlowAcks delays every answer to what members produce by up to this, so
	// that a kill meets records under way. Default 40 ms; negative: none.
	SlowAcks time.Duration
	// Brokers of the cluster, default 1; of a real one, all that are named.
	Brokers int
	// OtherVersion starts every second member as the previous version.
	OtherVersion bool
	// Disk is the size of a disk that each member has for itself, in bytes; 0:
	// they share the machine's.
	Disk int64
	// Slow is how long broker-slow lasts, default 30 s.
	Slow time.Duration
	// Likers is how many likers processes a whole system has, default 1.
	Likers int
	// Readers page through lists for as long as a drill on the system bench
	// runs, all commands then being about a few targets. Default 0.
	Readers int
	// LossyAPI puts a proxy before the API that can lose what passes.
	LossyAPI bool
	// Redis of a whole system, default none: then users also ask for their own
	// relations for as long as the drill runs, and queries read the cache.
	Redis RedisSort
	// Overload has a whole system with a Redis be pressed by little, and queries
	// limited.
	Overload bool
	// MaxMemory of a member, in bytes; default 600 MiB.
	MaxMemory int64
}

func (c Cell) withDefaults() Cell {
	or := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	or(&c.Members, 2)
	or(&c.Rate, 1500)
	or(&c.Relations, 6000)
	or(&c.Partitions, 6)
	or(&c.Brokers, 1)
	or(&c.Likers, 1)
	if c.Duplicates == 0 {
		c.Duplicates = 0.10
	}
	if c.Poison == 0 {
		c.Poison = 0.002
	}
	if c.Session == 0 {
		c.Session = 2 * time.Second
	}
	if c.SlowAcks == 0 {
		c.SlowAcks = 40 * time.Millisecond
	}
	if c.Slow == 0 {
		c.Slow = 30 * time.Second
	}
	if c.MaxMemory == 0 {
		c.MaxMemory = 600 << 20
	}
	return c
}

// needsFaults tells whether a drill needs a broker that breaks on demand.
func (d Drill) needsFaults() bool {
	return d.any(func(name string) bool {
		return d.Bench == Projection && injections[name].faults || d.Bench == System && systemInjections[name].faults
	})
}

// needsWorker tells whether a drill needs a Connect worker.
func (d Drill) needsWorker() bool {
	return d.any(func(name string) bool { return d.Bench == System && systemInjections[name].worker })
}

func (d Drill) any(holds func(injection string) bool) bool {
	return slices.ContainsFunc(slices.Concat(d.Lanes...), holds)
}

// Find looks a drill up.
func Find(name string) (Drill, error) {
	for _, d := range Catalogue() {
		if d.Name == name {
			return d, nil
		}
	}
	return Drill{}, fmt.Errorf("there is no drill %q; `tidemark drill list` names them", name)
}

// check refuses a drill that names what does not exist.
func (d Drill) check() error {
	if d.Name == "" || d.About == "" || d.Rounds < 0 || strings.ContainsAny(d.Name, " ,") {
		return fmt.Errorf("drill %q has no proper name, description or rounds", d.Name)
	}
	if !slices.Contains([]Bench{Projection, System}, d.Bench) {
		return fmt.Errorf("drill %s: bench %q is unknown", d.Name, d.Bench)
	}
	for _, lane := range d.Lanes {
		for _, name := range lane {
			if !known(d.Bench, name) {
				return fmt.Errorf("drill %s: injection %q is unknown on bench %s", d.Name, name, d.Bench)
			}
		}
	}
	return nil
}
