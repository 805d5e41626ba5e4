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

// BoundedReads are the facts for queries: at the level bound-reads only few reads
// of a shard go on at a time, and the others are refused at once, so that the
// shard has room for commands.
type BoundedReads struct {
	facts RelationReader
	guard *overload.Guard
	shard func(user string) int
	few   []chan struct{} // by shard
}

// NewBoundedReads makes one that lets few reads of each of the shards go on.
func NewBoundedReads(facts RelationReader, guard *overload.Guard, shard func(user string) int, shards, few int) *BoundedReads {
	b := &BoundedReads{facts: facts, guard: guard, shard: shard}
	for range shards {
		b.few = append(b.few, make(chan struct{}, few))
	}
	return b
}

// States reads as RelationReader has it.
func (b *BoundedReads) States(ctx context.Context, user string, kind topology.Kind, targets []string) ([]relations.Fact, error) {
	if b.guard.Level() < overload.BoundReads {
		return b.facts.States(ctx, user, kind, targets)
	}
	shard := b.shard(user)
	select {
	case b.few[shard] <- struct{}{}:
		defer func() { <-b.few[shard] }()
		return b.facts.States(ctx, user, kind, targets)
	default:
		return nil, fmt.Errorf("%w: under overload only %d reads of shard %d go on at a time", relations.ErrUnavailable, cap(b.few[shard]), shard)
	}
}
