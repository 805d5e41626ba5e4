package client

import (
	"errors"
	"fmt"
	"time"
)

// Errors of the client; test with errors.Is.
var (
	// ErrInvalid says that an argument or setting is not acceptable.
	ErrInvalid = errors.New("invalid")
	// ErrClosed says that the client was closed.
	ErrClosed = errors.New("the client is closed")
	// ErrTooManyPending says that Config.MaxPending relations are unsettled.
	ErrTooManyPending = errors.New("too many relations are waiting for the server")
	// ErrExpired says that a command was not decided within Config.Lifetime, or
	// came so late that the server no longer tells. Whether it was committed is
	// not known: query the relation.
	ErrExpired = errors.New("the command is too old to be sent again")
	// ErrJournal says that the journal cannot be used; the message says why.
	ErrJournal = errors.New("client journal")
)

// A ConflictError says that the relation was changed elsewhere since the state
// that the user saw, and that the user's change was not made.
type ConflictError struct {
	Wanted  State
	Current Confirmed
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("the relation was changed elsewhere: it is %s at version %d, and %s was not set", e.Current.State, e.Current.Version, e.Wanted)
}

// A Problem is a refusal of the server's (RFC 9457). Decide by Type; docs/api.md
// lists them.
type Problem struct {
	Type       string // urn:tidemark:problem:...; "" when the answer was none of the API's
	Title      string
	Detail     string
	Status     int
	RetryAfter time.Duration // 0: none given
	// Current is the relation as it is, where the refusal tells.
	Current *Confirmed
}

func (p *Problem) Error() string {
	switch {
	case p.Title == "":
		return fmt.Sprintf("the server answered %d", p.Status)
	case p.Detail == "":
		return fmt.Sprintf("%s (%d)", p.Title, p.Status)
	}
	return fmt.Sprintf("%s (%d): %s", p.Title, p.Status, p.Detail)
}

const (
	problemPrefix  = "urn:tidemark:problem:"
	problemStale   = problemPrefix + "stale-base-version"
	problemExpired = problemPrefix + "operation-expired"
	problemReused  = problemPrefix + "idempotency-key-reused"
)
