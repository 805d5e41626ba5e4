package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/tidemark/tidemark/internal/limits"
	"github.com/tidemark/tidemark/internal/overload"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// overloaded refuses before anything was begun. At the level that refuses,
// clients stay away for longer.
func (a *API) overloaded() *Problem {
	p := unavailable(kindOverloaded, "nothing was begun: send the same request again after Retry-After, a command with the same Idempotency-Key")
	if a.guard.Level() >= overload.Refuse {
		p.retryAfter = 5 * time.Second
	}
	return p
}

// inFlight is a command that was let in.
type inFlight struct {
	guard *overload.Guard // nil: nobody counts
	shard int
	begun time.Time
}

func (f inFlight) end() {
	if f.guard != nil {
		f.guard.LeaveCommand(f.shard, time.Since(f.begun))
	}
}

// beginCommand lets a user's command in, if his shard can take it in time.
func (a *API) beginCommand(user string) (inFlight, *Problem) {
	if a.guard == nil {
		return inFlight{}, nil
	}
	shard := a.shard(user)
	if !a.guard.EnterCommand(shard) {
		return inFlight{}, a.overloaded()
	}
	return inFlight{a.guard, shard, time.Now()}, nil
}

// query lets anything else in. Operators get through whatever the level.
func (a *API) query(w http.ResponseWriter, r *http.Request, handle func(http.ResponseWriter, *http.Request) *Problem) *Problem {
	if a.guard != nil && !IdentityOf(r.Context()).HasRole(OperatorRole) {
		if !a.guard.EnterQuery() {
			return a.overloaded()
		}
		defer a.guard.LeaveQuery()
	}
	if p := a.limit(w, r, limits.Queries, ""); p != nil {
		return p
	}
	return handle(w, r)
}

// BoundedReads are the reads of shards for queries: at the level bound-reads only
// few of a shard go on at a time, and the others are refused at once, so that the
// shard has room for commands. A quarter of the few, and at least one, is for
// lists, and for nothing else: neither takes the other's.
type BoundedReads struct {
	guard  *overload.Guard
	shard  func(user string) int
	states []chan struct{} // by shard
	lists  []chan struct{} // by shard
}

// listsShare of the few reads of a shard is for lists.
const listsShare = 4

// FewestReads are the least that BoundedReads has room for: a state and a list.
const FewestReads = 2

// NewBoundedReads makes one that lets few reads, at least FewestReads, of each of
// the shards go on.
func NewBoundedReads(guard *overload.Guard, shard func(user string) int, shards, few int) *BoundedReads {
	b := &BoundedReads{guard: guard, shard: shard}
	few = max(few, FewestReads)
	lists := max(1, few/listsShare)
	for range shards {
		b.states = append(b.states, make(chan struct{}, few-lists))
		b.lists = append(b.lists, make(chan struct{}, lists))
	}
	return b
}

// bounded reads if there is room.
func bounded[T any](b *BoundedReads, rooms []chan struct{}, user string, read func() (T, error)) (none T, err error) {
	if b.guard.Level() < overload.BoundReads {
		return read()
	}
	shard := b.shard(user)
	select {
	case rooms[shard] <- struct{}{}:
		defer func() { <-rooms[shard] }()
		return read()
	default:
		b.guard.Refused()
		return none, fmt.Errorf("%w: under overload only %d such reads of shard %d go on at a time", relations.ErrUnavailable, cap(rooms[shard]), shard)
	}
}

// States bounds reads of states.
func (b *BoundedReads) States(facts RelationReader) RelationReader { return boundedStates{b, facts} }

type boundedStates struct {
	*BoundedReads
	facts RelationReader
}

// States reads as RelationReader has it.
func (s boundedStates) States(ctx context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error) {
	return bounded(s.BoundedReads, s.states, user, func() ([]relations.Fact, error) { return s.facts.States(ctx, user, kind, targets) })
}

// Lists bounds reads of what users are in a state to.
func (b *BoundedReads) Lists(users UserLister) UserLister { return boundedLists{b, users} }

type boundedLists struct {
	*BoundedReads
	users UserLister
}

// List reads as UserLister has it.
func (l boundedLists) List(ctx context.Context, q relations.ListQuery) (relations.ListPage, error) {
	return bounded(l.BoundedReads, l.lists, q.User, func() (relations.ListPage, error) { return l.users.List(ctx, q) })
}
