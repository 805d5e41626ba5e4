package relations

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// Errors of the store; test with errors.Is.
var (
	// ErrInvalid says that a call's argument is not acceptable; the message
	// names the field.
	ErrInvalid = errors.New("invalid")
	// ErrOperationConflict says that the user first used the operation id for
	// another kind, target, desired state or base version.
	ErrOperationConflict = errors.New("the operation id is bound to another command: use a new id")
	// ErrOperationNotFound says that the user has no such operation, or that
	// its record has expired.
	ErrOperationNotFound = errors.New("the user has no operation with this id")
	// ErrUnavailable says that a shard did not answer in time. A command's
	// outcome is then unknown until Operation, or a retry with the same
	// operation id, tells.
	ErrUnavailable = errors.New("relation shard is unavailable")
	// ErrClosed says that the store was closed.
	ErrClosed = errors.New("the relation store is closed")
)

// Command asks for an absolute state of a relation, never for a toggle.
type Command struct {
	OperationID string // made by the client, as topology.CheckID allows
	Relation    topology.Relation
	Desired     topology.State // one of the kind's states
	// BaseVersion is the relation version that the client saw, 0 for no
	// relation yet; nil is not judged.
	BaseVersion *uint64
	// Hiding of the relation if the command makes it begin its counted state; in
	// any other state a relation is shown. It was decided before, and is no part
	// of what the operation id is bound to: a retry may come with another, and
	// the first one's result stands.
	Hiding topology.Hiding
}

func (c Command) check() error {
	if err := topology.CheckID(c.OperationID); err != nil {
		return fmt.Errorf("%w: operation id %w", ErrInvalid, err)
	}
	if err := c.Relation.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if c.Desired.Kind() != c.Relation.Kind {
		return fmt.Errorf("%w: state %s is not a state of a %s", ErrInvalid, c.Desired, c.Relation.Kind)
	}
	if c.BaseVersion != nil && *c.BaseVersion > math.MaxInt64 {
		return fmt.Errorf("%w: base version %d is above %d", ErrInvalid, *c.BaseVersion, int64(math.MaxInt64))
	}
	return checkHiding(c.Hiding)
}

func checkHiding(h topology.Hiding) error {
	if err := h.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}

// same tells whether c and d ask for the same thing.
func (c Command) same(d Command) bool {
	if c.Relation != d.Relation || c.Desired != d.Desired || (c.BaseVersion == nil) != (d.BaseVersion == nil) {
		return false
	}
	return c.BaseVersion == nil || *c.BaseVersion == *d.BaseVersion
}

// Outcome is what a command did. Its numbers are stored.
type Outcome uint8

// The outcomes.
const (
	Applied   Outcome = 1 // a transition: next version, one event
	Unchanged Outcome = 2 // already in the desired state: no version, no event
	Rejected  Outcome = 3 // the base version is not the relation's: no version, no event
)

var outcomeNames = [...]string{Applied: "APPLIED", Unchanged: "UNCHANGED", Rejected: "REJECTED"}

// String is the outcome's name.
func (o Outcome) String() string {
	if o < Applied || o > Rejected {
		return fmt.Sprintf("OUTCOME(%d)", uint8(o))
	}
	return outcomeNames[o]
}

// Fact is a relation's current state. A relation that never was has its kind's
// initial state, version 0 and no time.
type Fact struct {
	Relation topology.Relation
	State    topology.State
	Version  uint64 // from 1, without holes
	// StateChangedAt is the time of the last real transition, in microseconds
	// (A6). It rises from transition to transition; a version with the state of
	// the one before keeps it.
	StateChangedAt time.Time
	// Hiding is of the counted state only.
	Hiding topology.Hiding
}

func initialFact(r topology.Relation) Fact { return Fact{Relation: r, State: r.Kind.Initial()} }

// OperationResult is what a command did when it was decided; it never changes.
type OperationResult struct {
	Outcome   Outcome
	State     topology.State // the relation's state after the command
	Version   uint64         // the relation's version after the command
	DecidedAt time.Time
}

// Result answers a command: its own result, and the relation as it is now,
// which for a late retry may be newer (A3).
type Result struct {
	Operation OperationResult
	Current   Fact
	Replayed  bool // the operation had been decided before this call
}

// Operation is a decided command, looked up by its id.
type Operation struct {
	Command Command
	Result  OperationResult
	Current Fact
}

// StaleBasePolicy says what becomes of a command whose base version is not the
// relation's version.
type StaleBasePolicy string

// The policies.
const (
	// RejectStale answers Rejected with the current state.
	RejectStale StaleBasePolicy = "reject"
	// LastCommitWins ignores base versions.
	LastCommitWins StaleBasePolicy = "last-commit-wins"
)

func (p StaleBasePolicy) check() error {
	if p != RejectStale && p != LastCommitWins {
		return fmt.Errorf("stale base policy %q is not %s or %s", string(p), RejectStale, LastCommitWins)
	}
	return nil
}
