package cdc

import (
	"context"
	"errors"
	"sync"
)

// errPaused is the cause with which a pause ends a session.
var errPaused = errors.New("paused")

// gate lets sessions begin, or holds them up.
type gate struct {
	mu     sync.Mutex
	closed bool
	why    string
	turn   chan struct{} // closed when the gate opens or closes next
}

func newGate() *gate { return &gate{turn: make(chan struct{})} }

func (g *gate) set(closed bool, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.why = why
	if g.closed != closed {
		g.closed = closed
		close(g.turn)
		g.turn = make(chan struct{})
	}
}

func (g *gate) look() (closed bool, why string, turn <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed, g.why, g.turn
}

// pass waits until the gate is open and returns a context that ends when it
// closes again, or with ctx. held is told once when there is something to wait
// for.
func (g *gate) pass(ctx context.Context, held func(why string)) (context.Context, context.CancelFunc) {
	for told := false; ; {
		closed, why, turn := g.look()
		if closed && !ended(ctx) {
			if !told {
				held(why)
				told = true
			}
			select {
			case <-turn:
			case <-ctx.Done():
			}
			continue
		}
		open, shut := context.WithCancelCause(ctx)
		go func() {
			select {
			case <-turn:
				shut(errPaused)
			case <-open.Done():
			}
		}()
		return open, func() { shut(nil) }
	}
}

// Pause makes the emitter hold: what is on its way to Kafka is finished within
// StopGrace, PostgreSQL is told the acked position, and the slot is given up.
// A later session sends again what was not acked. The slot keeps its WAL
// meanwhile. Run goes on, also if Pause comes before it; why is shown in Status.
func (e *Emitter) Pause(why string) { e.gate.set(true, why) }

// Resume ends a pause.
func (e *Emitter) Resume() { e.gate.set(false, "") }
