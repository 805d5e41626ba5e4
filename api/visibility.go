package api

import (
	"context"
	"errors"

	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// Visibility decides, by what events said last, which targets take new relations
// from whom, and whose counts are shown to whom; *privacy.Snapshot is one.
type Visibility interface {
	MayBegin(ctx context.Context, r topology.Relation) (privacy.Verdict, error)
	// Withdrawn answers by place in targets; nil stands for none.
	Withdrawn(ctx context.Context, viewer string, kind topology.Kind, targets []string) ([]privacy.Withdrawal, error)
}

// refused is the problem of a command that would begin a relation which may not
// be (I7). One that ends a relation is never refused: what one has, one can take
// back, whatever became of the target.
//
// A retry of an operation that was decided before is not refused either, since
// its answer tells what is committed (A3).
func (c commands) refused(ctx context.Context, cmd relations.Command) *Problem {
	if c.api.visibility == nil || cmd.Desired == cmd.Relation.Kind.Initial() {
		return nil
	}
	verdict, err := c.api.visibility.MayBegin(ctx, cmd.Relation)
	if err == nil && verdict == privacy.Allowed {
		return nil
	}
	return c.unlessDecided(ctx, cmd, func() *Problem {
		switch {
		case err != nil:
			return c.api.undecided(ctx, err)
		case verdict == privacy.NoAccount:
			return newProblem(kindAccountInactive, "nothing was committed for this operation id: a closed or banned account begins no relations; it may end those it has")
		}
		return newProblem(kindTargetUnknown, "nothing was committed for this operation id: for you there is no such video or user; why is not told. A relation that you have can be ended")
	})
}

// unlessDecided is the problem of a command that may not be begun, unless its
// operation was decided before.
func (c commands) unlessDecided(ctx context.Context, cmd relations.Command, problem func() *Problem) *Problem {
	_, err := c.store.Operation(ctx, cmd.Relation.User, cmd.OperationID)
	switch {
	case err == nil || errors.Is(err, relations.ErrOperationExpired):
		return nil
	case !errors.Is(err, relations.ErrOperationNotFound):
		return c.api.storeProblem(ctx, err, "the command may or may not be committed: send it again with the same Idempotency-Key")
	}
	return problem()
}

func (a *API) undecided(ctx context.Context, err error) *Problem {
	a.quiet.warn(ctx, "what holds for targets cannot be asked", err)
	return unavailable(kindPrivacyUnavailable, "what holds for this target cannot be asked now: try again")
}

// withdrawals are, by place, why counts are not shown; nil when all are.
type withdrawals []privacy.Withdrawal

func (a *API) withdrawn(ctx context.Context, kind topology.Kind, targets []string) (withdrawals, *Problem) {
	if a.visibility == nil {
		return nil, nil
	}
	w, err := a.visibility.Withdrawn(ctx, IdentityOf(ctx).User, kind, targets)
	if err != nil {
		return nil, a.undecided(ctx, err)
	}
	return w, nil
}

// reason is what a client is told of a withdrawal; empty: nothing.
func (w withdrawals) reason(at int) string {
	if w == nil || w[at] == privacy.CountHidden {
		return ""
	}
	return string(w[at])
}

// count is c, or that of a target to which nobody ever related, where the viewer
// is not to learn that there is one.
func (w withdrawals) count(at int, c views.Count) views.Count {
	if w == nil || w[at] != privacy.CountHidden {
		return c
	}
	return views.Count{Target: c.Target, AsOf: c.AsOf, Staleness: c.Staleness}
}

// shown is the count that everybody may see (J3). The facts, and what is counted
// of them, are as they were: a higher version of the target brings the number
// back, with all that was counted meanwhile.
func (w withdrawals) shown(at int, c views.Count) views.Count {
	c = w.count(at, c)
	if w.reason(at) != "" {
		c.Counts = topology.Counts{}
	}
	return c
}

// from withdraws the only count of an answer. Operators see what is counted.
func (w withdrawals) from(who Identity, answer CountAnswer) CountAnswer {
	if answer.Withdrawn = w.reason(0); answer.Withdrawn == "" {
		return answer
	}
	answer.DisplayCount = 0
	if !who.HasRole(OperatorRole) {
		answer.Active, answer.Disliked = 0, 0
	}
	return answer
}
