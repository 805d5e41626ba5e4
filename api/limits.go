package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/tidemark/tidemark/internal/limits"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// limit takes what the request costs its caller, and tells him how his limits
// stand. device is empty where the request tells none. Operators, who are programs
// too that send events of many, are not limited.
func (a *API) limit(w http.ResponseWriter, r *http.Request, sort limits.Sort, device string) *Problem {
	if a.limiter == nil || IdentityOf(r.Context()).HasRole(OperatorRole) {
		return nil
	}
	v := a.limiter.Take(r.Context(), sort, limits.Caller{
		Account: IdentityOf(r.Context()).User, Device: device, Address: a.limiter.Address(r),
	})
	v.WriteHeaders(w.Header())
	if v.OK {
		return nil
	}
	p := newProblem(kindRateLimited, "the limit of the "+v.Limit+" is reached: come again after Retry-After; a command comes with the same Idempotency-Key")
	p.retryAfter = v.RetryAfter()
	return p
}

// refunded is how long giving a token back may take beside the answer.
const refunded = 100 * time.Millisecond

// setLimited decides a command if it may be a transition of its relation. What
// the relation's limit holds off is not begun and not remembered, and answered
// with the relation as it is: no error, so that a client settles on that (A8).
// An operation that was decided before is answered as ever.
func (c commands) setLimited(ctx context.Context, cmd relations.Command) (res relations.Result, held limits.Verdict, err error) {
	held.OK = true
	l := c.api.limiter
	if l == nil {
		res, err = c.store.Set(ctx, cmd)
		return res, held, err
	}
	v := l.TakeTransition(ctx, cmd.Relation)
	if !v.OK {
		_, err = c.store.Operation(ctx, cmd.Relation.User, cmd.OperationID)
		if errors.Is(err, relations.ErrOperationNotFound) {
			res, err = c.current(ctx, cmd.Relation)
			return res, v, err
		}
		if err != nil && !errors.Is(err, relations.ErrOperationExpired) {
			return res, held, err
		}
	}
	res, err = c.store.Set(ctx, cmd)
	if v.OK && isNoTransition(res, err) {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), refunded)
		defer cancel()
		l.GiveTransitionBack(late, cmd.Relation)
	}
	return res, held, err
}

// isNoTransition tells whether a command surely made none. Where that is not
// known its token stays taken.
func isNoTransition(res relations.Result, err error) bool {
	if err != nil {
		return errors.Is(err, relations.ErrOperationConflict) || errors.Is(err, relations.ErrOperationExpired) || errors.Is(err, relations.ErrInvalid)
	}
	return res.Replayed || res.Operation.Outcome != relations.Applied
}

func (c commands) current(ctx context.Context, r topology.Relation) (res relations.Result, err error) {
	facts, err := c.store.States(ctx, r.User, r.Kind, []string{r.Target})
	if err == nil {
		res.Current = facts[0]
	}
	return res, err
}

// outcomeLimited is that of a command which its relation's limit held off.
const outcomeLimited = "LIMITED"

func writeLimited(w http.ResponseWriter, operationID string, current relations.Fact, v limits.Verdict) {
	v.WriteHeaders(w.Header())
	w.Header().Set("Retry-After", strconv.Itoa(int(v.RetryAfter()/time.Second)))
	a := commandAnswer(operationID, relations.Result{Current: current})
	a.OperationResult = OperationResult{
		Outcome: outcomeLimited, State: stateName(current.State), RelationVersion: current.Version, DecidedAt: time.Now().UTC(),
	}
	writeJSON(w, a)
}
