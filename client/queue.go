package client

import (
	"errors"
	"time"
)

// An operation is a command as it travels: none of it changes until it is
// decided.
type operation struct {
	ID      string    `json:"id"`
	Desired State     `json:"desired"`
	Base    *uint64   `json:"base,omitempty"` // nil: no version was known
	At      time.Time `json:"at"`             // of making it
	// mine tells that this process made it, so that At and the age of the
	// operation are by one clock.
	mine bool
}

// A queue is the commands of one relation: what is known, what is in flight,
// and what shall be after that. Its methods are pure: each gives the queue that
// follows, and makes an operation from make where one is needed.
//
//	intent != "" only while flight != nil
type queue struct {
	confirmed *Confirmed
	flight    *operation
	intent    State // "" : none beyond the flight
	err       error
}

// make gives an operation its id and time.
type maker func(desired State, base *uint64) *operation

func (q queue) settled() bool { return q.flight == nil }

// want takes the user's newest wish.
func (q queue) want(s State, make maker) queue {
	q.err = nil
	switch {
	case q.flight == nil:
		// Also when s is the confirmed state: another device may have changed it.
		q.flight = make(s, q.base())
	case q.flight.Desired == s:
		q.intent = ""
	default:
		q.intent = s
	}
	return q
}

func (q queue) base() *uint64 {
	if q.confirmed == nil {
		return nil
	}
	v := q.confirmed.Version
	return &v
}

// observe takes what a query or an answer told.
func (q queue) observe(c Confirmed) queue {
	if q.confirmed == nil || c.Version >= q.confirmed.Version {
		q.confirmed = &c
	}
	return q
}

// decided takes the answer to the flight: the relation as it is now.
func (q queue) decided(c Confirmed, make maker) queue {
	return q.observe(c).land(nil, make)
}

// stale takes the refusal of the flight's base version. A wish newer than the
// flight is sent on top of what is there; of the flight itself policy decides.
func (q queue) stale(c Confirmed, policy ConflictPolicy, make maker) queue {
	wanted := q.flight.Desired
	if q.confirmed != nil && q.flight.Base != nil && *q.flight.Base >= q.confirmed.Version {
		// The newest that is known was judged by the relation itself: should
		// the server's version be lower, then it was set back.
		q.confirmed = &c
	} else {
		q = q.observe(c)
	}
	if q.intent == "" && policy == KeepIntent {
		q.intent = wanted
	}
	return q.land(&ConflictError{Wanted: wanted, Current: *q.confirmed}, make)
}

// refused takes a refusal that the same command would meet again.
func (q queue) refused(err error, make maker) queue {
	var p *Problem
	if errors.As(err, &p) && p.Current != nil {
		q = q.observe(*p.Current)
	}
	return q.land(err, make)
}

// renamed gives the flight, which was never decided, another id.
func (q queue) renamed(make maker) queue {
	q.flight = make(q.flight.Desired, q.flight.Base)
	return q
}

// dropped gives up everything.
func (q queue) dropped(err error) queue {
	q.flight, q.intent, q.err = nil, "", err
	return q
}

// land ends the flight and starts what is still wanted. err says why the
// flight did not bring what it should; it stands when nothing newer is wanted
// and the relation is not as wanted anyway.
func (q queue) land(err error, make maker) queue {
	wanted, next := q.flight.Desired, q.intent
	q.flight, q.intent = nil, ""
	is := State("")
	if q.confirmed != nil {
		is = q.confirmed.State
	}
	switch {
	case next != "" && next != is:
		q.flight = make(next, q.base())
	case next == "" && err != nil && wanted != is:
		q.err = err
	}
	return q
}

func (q queue) view(r Relation) View {
	v := View{Relation: r, Err: q.err, Pending: q.flight != nil, Known: q.confirmed != nil}
	if q.confirmed != nil {
		v.Confirmed, v.State = *q.confirmed, q.confirmed.State
	}
	if q.flight != nil {
		v.State = q.flight.Desired
	}
	if q.intent != "" {
		v.State = q.intent
	}
	return v
}
