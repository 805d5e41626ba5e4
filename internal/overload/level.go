package overload

import (
	"fmt"
	"slices"
	"time"
)

// Level says how far a process has gone to keep its commands. Each includes those
// before it.
type Level int32

// The levels, in the order in which they come.
const (
	Normal         Level = iota
	SlowDisplay          // displayed counts are refreshed more rarely
	PauseConsumers       // what can wait, waits: exports, dropping of old partitions, backfills
	TightLimits          // clients may ask for a quarter of what they may else
	BoundReads           // few reads of a shard go on at a time
	Refuse               // queries are refused, and commands beyond a quarter of those that may be in flight
)

var levelNames = []string{"normal", "slow-display", "pause-consumers", "tight-limits", "bound-reads", "refuse"}

// String is the level's name.
func (l Level) String() string {
	if l < 0 || int(l) >= len(levelNames) {
		return fmt.Sprintf("Level(%d)", int32(l))
	}
	return levelNames[l]
}

// ParseLevel reads a level's name.
func ParseLevel(s string) (Level, error) {
	i := slices.Index(levelNames, s)
	if i < 0 {
		return 0, fmt.Errorf("level %q is not one of %v", s, levelNames)
	}
	return Level(i), nil
}

// Rules are when levels change.
type Rules struct {
	// High is the pressure that brings the next level when it has lasted for Rise;
	// below Low for Fall takes one back. Between them nothing changes.
	High, Low  float64
	Rise, Fall time.Duration
}

// DefaultRules rise in seconds and fall slowly: a level that helped takes the
// pressure away that brought it.
func DefaultRules() Rules {
	return Rules{High: 1, Low: 0.6, Rise: 2 * time.Second, Fall: 10 * time.Second}
}

// State is a level, and for how long the pressure has been high or low.
type State struct {
	Level Level
	High  time.Time // since when; zero: it is not
	Low   time.Time
}

// Next is the state after the pressure was measured at now. It goes one level at
// a time, and none comes or goes before the pressure has lasted anew. A clock
// that was set back begins the time anew.
func (s State) Next(pressure float64, now time.Time, r Rules) State {
	switch {
	case pressure >= r.High:
		s.Low = time.Time{}
		if s.High = since(s.High, now); now.Sub(s.High) >= r.Rise {
			s.High = now
			s.Level = min(s.Level+1, Refuse)
		}
	case pressure < r.Low:
		s.High = time.Time{}
		if s.Low = since(s.Low, now); now.Sub(s.Low) >= r.Fall {
			s.Low = now
			s.Level = max(s.Level-1, Normal)
		}
	default:
		s.High, s.Low = time.Time{}, time.Time{}
	}
	return s
}

func since(t, now time.Time) time.Time {
	if t.IsZero() || t.After(now) {
		return now
	}
	return t
}
