package risk

import (
	"errors"
	"fmt"

	"github.com/tidemark/tidemark/topology"
)

// Action is what becomes of a command. A higher one is stricter.
type Action uint8

// The actions.
const (
	Allow  Action = iota
	Hide          // keep the fact, and leave it out of the count that users see
	Refuse        // commit nothing
)

var actionNames = [...]string{Allow: "allow", Hide: "hide", Refuse: "refuse"}

// String gives the action as rules and the service write it.
func (a Action) String() string { return actionNames[a] }

// ParseAction reads allow, hide or refuse.
func ParseAction(s string) (Action, error) {
	for a, name := range actionNames {
		if name == s {
			return Action(a), nil
		}
	}
	return 0, fmt.Errorf("%.40q is not one of allow, refuse, hide", s)
}

// Source says who decided.
type Source uint8

// The sources.
const (
	Nobody      Source = iota // no rule matched, and there is no service
	ByRules                   // a rule
	ByService                 // the service
	Unavailable               // the service gave no answer
)

var sourceNames = [...]string{Nobody: "none", ByRules: "rules", ByService: "service", Unavailable: "unavailable"}

// String gives the source as metrics write it.
func (s Source) String() string { return sourceNames[s] }

// ReasonUnavailable is the reason of what was decided because the service gave
// no answer.
const ReasonUnavailable = "risk-unavailable"

// Verdict is a decision. The zero value allows.
type Verdict struct {
	Action Action
	By     topology.Hidden // of Hide: who hides; else topology.Shown
	// Reason is a code for analysts and operators; no user sees it. Empty only
	// where nobody decided, or the service had none for what it allows.
	Reason string
	Source Source
}

// Hiding is what the relation begins with.
func (v Verdict) Hiding() topology.Hiding {
	if v.Action != Hide {
		return topology.Hiding{}
	}
	return topology.Hiding{By: v.By, Reason: v.Reason}
}

// parseVerdict reads a decision from its words; by is needed with hide, and
// nowhere else.
func parseVerdict(action, by, reason string) (v Verdict, err error) {
	if v.Action, err = ParseAction(action); err != nil {
		return v, fmt.Errorf("action %w", err)
	}
	if v.By, err = topology.ParseHidden(by); err != nil {
		return v, fmt.Errorf("by %.40q is neither risk nor policy", by)
	}
	if (v.By == topology.Shown) == (v.Action == Hide) {
		return v, errors.New("by goes with hide, and only with it: write by: risk or by: policy")
	}
	v.Reason = reason
	return v, nil
}

// checkReason refuses what is no code.
func checkReason(reason string) error {
	if (topology.Hiding{By: topology.HiddenByRisk, Reason: reason}).Check() != nil {
		return fmt.Errorf("reason %.80q is not a code of 1 to %d characters: a-z, 0-9, and after the first also '.', '_' and '-'", reason, topology.MaxHidingReason)
	}
	return nil
}

// stricter is the one of two verdicts that allows less; a on a tie.
func stricter(a, b Verdict) Verdict {
	if b.Action > a.Action {
		return b
	}
	return a
}
