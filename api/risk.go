package api

import (
	"net/http"
	"time"

	"github.com/tidemark/tidemark/internal/limits"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/risk"
	"github.com/tidemark/tidemark/topology"
)

// Risk decides on commands that would begin a relation (J2).
type Risk struct {
	Decider *risk.Decider
	// Networks tell where a client comes from.
	Networks limits.Networks
}

// sender is what a request says of who sends it, besides its token.
type sender struct {
	device   string // empty: not told
	sequence *uint64
}

// judge asks whether a command that would begin a relation goes on, and whether
// what it begins is hidden from the count, which its user does not learn. One that
// ends a relation is not asked about.
//
// A retry of an operation that was decided before is not refused, since its answer
// tells what is committed (A3); the store passes its hiding over.
func (c commands) judge(r *http.Request, cmd relations.Command, from sender) (hiding topology.Hiding, _ *Problem) {
	if c.api.risk == nil || cmd.Desired == cmd.Relation.Kind.Initial() {
		return hiding, nil
	}
	v := c.api.risk.Decider.Decide(r.Context(), c.api.risk.question(r, cmd, from))
	if v.Action != risk.Refuse {
		return v.Hiding(), nil
	}
	return hiding, c.unlessDecided(r.Context(), cmd, func() *Problem { return riskProblem(v) })
}

func (k *Risk) question(r *http.Request, cmd relations.Command, from sender) risk.Question {
	q := risk.Question{
		Relation: cmd.Relation, Desired: cmd.Desired, Device: from.device, Sequence: from.sequence,
		Address: k.Networks.Address(r), Class: risk.Subscriber, At: time.Now(),
	}
	switch {
	case !q.Address.IsValid():
		q.Class = risk.Unknown
	case k.Networks.IsGateway(q.Address):
		q.Class = risk.Gateway
	}
	return q
}

// riskProblem does not tell the reason: whoever it stops would learn from it how
// to go on.
func riskProblem(v risk.Verdict) *Problem {
	if v.Source == risk.Unavailable {
		return unavailable(kindRiskUnavailable, "nothing was committed for this operation id: whether it may be cannot be decided now; send it again with the same Idempotency-Key")
	}
	return newProblem(kindRiskRefused, "nothing was committed for this operation id; why is not told. A relation that you have can be ended")
}
