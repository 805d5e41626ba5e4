package cdc

import (
	"errors"
	"fmt"
	"slices"
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
	StatePaused       State = "paused"        // waits for Resume
	StateStopped      State = "stopped"       // asked to
	StateFailed       State = "failed"        // a person must decide
)

// Status is a snapshot of an emitter.
type Status struct {
	Shard int
	Slot  string
	State State
	Since time.Time // when State was entered
	// Connected: replication runs on this emitter's connection, whose walsender
	// is PID.
	Connected bool
	PID       int
	// Paused is why the emitter was told to hold; "" when it was not.
	Paused string

	// ConfirmedLSN is the position up to which everything is in Kafka, as told
	// to PostgreSQL; while another emitter streams, as the slot says.
	ConfirmedLSN pglogrepl.LSN
	// ServerLSN is the server's end of WAL when it was last asked.
	ServerLSN pglogrepl.LSN
	// LagBytes of WAL are between them; RetainedBytes the slot holds on disk.
	LagBytes, RetainedBytes int64
	// PublishedAt: what committed before is in Kafka, as far as looks at the
	// slot have shown; zero: not known.
	PublishedAt time.Time
	// OldestUnpublished is the age of the oldest row that may not be in Kafka,
	// at most; below 0: not known.
	OldestUnpublished time.Duration
	// OutboxBytes is the outbox's size with its partitions and indexes; 0: not
	// known.
	OutboxBytes int64

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
// else it says what is wrong. A feed that an operator has paused is as it
// should be: Detail says so.
func (s Status) Ready() error {
	switch {
	case s.State == StateStandby || s.State == StatePaused:
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

// Detail is what a person should know of an emitter that is ready.
func (s Status) Detail() string {
	switch s.State {
	case StateStandby:
		return "standing by"
	case StatePaused:
		return fmt.Sprintf("paused: %s; the slot holds %d bytes of WAL", s.Paused, s.RetainedBytes)
	}
	return ""
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
	pid         uint32        // of its walsender
	blocked     time.Duration // of ended sessions
	slotLSN     pglogrepl.LSN // confirmed, as the server says
	serverLSN   pglogrepl.LSN
	retained    int64
	sample      sample    // waits until the position has reached it
	publishedAt time.Time // of the last sample that it has reached
	backlog     Backlog
	backlogAt   time.Time // zero: not known
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
func (b *board) stream(w *window, pid uint32) {
	b.mu.Lock()
	b.window, b.pid = w, pid
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

// sample is a time and where the log ended then or later, so that what
// committed before that time stands below.
type sample struct {
	at  time.Time
	end pglogrepl.LSN
}

// sawSlot takes what the monitor found, and where the log ended, and returns
// the position up to which everything is in Kafka.
func (b *board) sawSlot(now sample, confirmed pglogrepl.LSN, retained int64) pglogrepl.LSN {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serverLSN, b.slotLSN, b.retained = now.end, confirmed, retained
	if b.window != nil {
		confirmed = max(confirmed, b.window.Confirmed())
	}
	if b.sample.at.IsZero() || confirmed >= b.sample.end {
		b.publishedAt, b.sample = b.sample.at, now
	}
	return confirmed
}

// sawBacklog takes what the outbox has beyond the position.
func (b *board) sawBacklog(l Backlog, at time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backlog, b.backlogAt = l, at
}

// oldest is the lesser of two bounds: that of the outbox's rows, and the age
// of what the position is known to have reached.
func (b *board) oldest(now time.Time) time.Duration {
	var bounds []time.Duration
	if !b.backlogAt.IsZero() {
		age := b.backlog.Oldest
		if b.backlog.Rows {
			age += now.Sub(b.backlogAt)
		}
		bounds = append(bounds, age)
	}
	if !b.publishedAt.IsZero() {
		bounds = append(bounds, now.Sub(b.publishedAt))
	}
	if len(bounds) == 0 {
		return -1
	}
	return slices.Min(bounds)
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
		PublishedAt: b.publishedAt, OldestUnpublished: b.oldest(time.Now()), OutboxBytes: b.backlog.Bytes,
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
		s.PID = int(b.pid)
	}
	s.ServerLSN = max(s.ServerLSN, s.ConfirmedLSN)
	s.LagBytes = int64(s.ServerLSN - s.ConfirmedLSN)
	return s
}
