// Package breaker keeps a dependency that fails from being asked.
package breaker

import (
	"sync/atomic"
	"time"
)

// Breaker opens after failures in a row for a pause that doubles, with one try
// at the end of each. The zero value is closed.
type Breaker struct {
	failures atomic.Int64
	until    atomic.Int64 // Unix ns; 0: closed
}

const (
	failuresToOpen = 3
	firstPause     = 50 * time.Millisecond
)

// LongestPause is the most that a breaker stays open between two tries.
const LongestPause = time.Second

// Enter says whether to ask. Who does so tells by Leave how it went.
func (b *Breaker) Enter() bool {
	until := b.until.Load()
	if until == 0 {
		return true
	}
	now := time.Now().UnixNano()
	// The one that gets through holds the others off until it has its answer.
	return now >= until && b.until.CompareAndSwap(until, now+int64(LongestPause))
}

// Open says whether the dependency is done without: since it failed, and until
// a try succeeds.
func (b *Breaker) Open() bool { return b.until.Load() != 0 }

// Leave tells how asking went.
func (b *Breaker) Leave(err error) {
	if err == nil {
		b.failures.Store(0)
		b.until.Store(0)
		return
	}
	if n := b.failures.Add(1); n >= failuresToOpen {
		pause := min(firstPause<<min(n-failuresToOpen, 10), LongestPause)
		b.until.Store(time.Now().Add(pause).UnixNano())
	}
}
