package cdc

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
)

// State says what an emitter is doing.
type State string

// The states of an emitter.
const (
	StateIdle         State = "idle"          // Run was not called
	StateConnecting   State = "connecting"    // to PostgreSQL and Kafka
	StateCreatingSlot State = "creating slot" // waits for older transactions
	StateStandby      State = "standby"       // another emitter has the slot
	StateStreaming    State = "streaming"     // rows flow
	StateRetrying     State = "retrying"      // waits before the next try
	StateStopped      State = "stopped"       // asked to
	StateFailed       State = "failed"        // a person must decide
)

// Status is a snapshot of an emitter.
type Status struct {
	Shard int
	Slot  string
	State State
	Since time.Time // when State was entered
	// Connected: replication runs on this emitter's connection.
	Connected bool

	// ConfirmedLSN is the position up to which everything is in Kafka, as told
	// to PostgreSQL; while another emitter streams, as the slot says.
	ConfirmedLSN pglogrepl.LSN
	// ServerLSN is the server's end of WAL when it was last asked.
	ServerLSN pglogrepl.LSN
	// LagBytes of WAL are between them; RetainedBytes the slot holds on disk.
	LagBytes, RetainedBytes int64

	Emitted, Acked uint64 // records since the process started
	UnackedRecords int
	UnackedBytes   int
	// Blocked: the reader waits for Kafka, so PostgreSQL does not send.
	Blocked bool
	// AckedAt is the last acknowledgement while records wait; zero: none wait.
	AckedAt time.Time
	// LastCommit is the commit time of the newest acked record.
	LastCommit time.Time

	// Ignored counts changes that are not passed on: updates, deletes and
	// truncates of the outbox, and anything of another table.
	Ignored uint64
	// OtherShard counts records whose source_shard is not Shard.
	OtherShard uint64
	Restarts   uint64 // sessions that ended with an error

	LastError   string
	LastErrorAt time.Time
}

// stallAfter is how long Kafka may acknowledge nothing while records wait.
const stallAfter = 10 * time.Second

// Ready is nil when the shard's facts flow, or flow through another emitter;
// else it says what is wrong.
func (s Status) Ready() error {
	switch {
	case s.State == StateStandby:
		return nil
	case s.State != StateStreaming && s.LastError != "":
		return fmt.Errorf("shard %d: %s: %s", s.Shard, s.State, s.LastError)
	case s.State != StateStreaming:
		return fmt.Errorf("shard %d: %s", s.Shard, s.State)
	case !s.AckedAt.IsZero() && time.Since(s.AckedAt) > stallAfter:
		err := fmt.Errorf("shard %d: Kafka has acknowledged nothing for %s, %d records wait",
			s.Shard, time.Since(s.AckedAt).Round(time.Second), s.UnackedRecords)
		if s.LastErrorAt.After(s.AckedAt) {
			err = fmt.Errorf("%w: %s", err, s.LastError)
		}
		return err
	}
	return nil
}

// board is what sessions write and Status reads. Counters go on from session
// to session.
type board struct {
	emitted, acked, ackedBytes        atomic.Uint64
	transactions, ignored, otherShard atomic.Uint64
	restarts                          atomic.Uint64
	lastCommitUS                      atomic.Int64 // µs since 1970

	mu          sync.Mutex
	state       State
	since       time.Time
	window      *window       // of the session that streams
	blocked     time.Duration // of ended sessions
	slotLSN     pglogrepl.LSN // confirmed, as the server says
	serverLSN   pglogrepl.LSN
	retained    int64
	lastError   string
	lastErrorAt time.Time
}

func (b *board) enter(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != s {
		b.state, b.since = s, time.Now()
	}
}

func (b *board) note(err error) {
	if err == nil || errors.Is(err, errInterrupted) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lastError, b.lastErrorAt = err.Error(), time.Now()
}

// stream begins a session's streaming.
func (b *board) stream(w *window) {
	b.mu.Lock()
	b.window = w
	b.mu.Unlock()
	b.enter(StateStreaming)
}

// unstream ends it.
func (b *board) unstream() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.window == nil {
		return
	}
	l := b.window.Load()
	b.blocked += l.blocked
	b.slotLSN = max(b.slotLSN, l.confirmed)
	b.window = nil
}

// sawSlot takes what the monitor found.
func (b *board) sawSlot(server, confirmed pglogrepl.LSN, retained int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serverLSN, b.slotLSN, b.retained = server, confirmed, retained
}

func (b *board) blockedTime() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	d := b.blocked
	if b.window != nil {
		d += b.window.Load().blocked
	}
	return d
}

func (b *board) snapshot() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Status{
		State: b.state, Since: b.since, Connected: b.window != nil,
		ConfirmedLSN: b.slotLSN, ServerLSN: b.serverLSN, RetainedBytes: b.retained,
		Ignored: b.ignored.Load(), OtherShard: b.otherShard.Load(), Restarts: b.restarts.Load(),
		LastError: b.lastError, LastErrorAt: b.lastErrorAt,
	}
	// Acked is read before Emitted, so that it is never the larger.
	s.Acked = b.acked.Load()
	s.Emitted = b.emitted.Load()
	if us := b.lastCommitUS.Load(); us != 0 {
		s.LastCommit = time.UnixMicro(us).UTC()
	}
	if b.window != nil {
		l := b.window.Load()
		s.ConfirmedLSN = l.confirmed
		s.UnackedRecords, s.UnackedBytes = l.records, l.bytes
		s.Blocked, s.AckedAt = l.waiting, l.progress
	}
	s.ServerLSN = max(s.ServerLSN, s.ConfirmedLSN)
	s.LagBytes = int64(s.ServerLSN - s.ConfirmedLSN)
	return s
}
