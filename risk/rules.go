package risk

import (
	"net/netip"
	"slices"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// Rules are an ordered list, of which the first that matches decides. They never
// change once parsed.
type Rules struct {
	list    []*Rule
	version string
}

// Version is a checksum of the rules and their lists of ids: the same in every
// process that has the same ones.
func (r *Rules) Version() string { return r.version }

// List gives the rules in order.
func (r *Rules) List() []*Rule { return r.list }

// Rule is one of them.
type Rule struct {
	Name    string
	Verdict Verdict
	// DryRun has the rule counted and passed over.
	DryRun bool
	when   conditions
}

// Ruling is what rules say of a question.
type Ruling struct {
	// Rule that decided; nil: none matched.
	Rule *Rule
	// Tried are rules with DryRun that would have decided, had they been asked in
	// earnest; the first of them first.
	Tried []*Rule
}

// Decide gives the first rule that matches.
func (r *Rules) Decide(q Question) (ruling Ruling) {
	for _, rule := range r.list {
		switch {
		case !rule.matches(q):
		case rule.DryRun:
			ruling.Tried = append(ruling.Tried, rule)
		default:
			ruling.Rule = rule
			return ruling
		}
	}
	return ruling
}

// conditions all hold where a rule matches; what is nil or zero is no condition.
type conditions struct {
	kinds                   []topology.Kind
	states                  []topology.State
	classes                 []Class
	users, targets, devices idSet
	addresses               []netip.Prefix
	hundredths              int // of a percent of the users
	from, until             time.Time
}

// The cheap conditions come first: most rules do not match most questions.
func (r *Rule) matches(q Question) bool {
	c := &r.when
	return (c.kinds == nil || slices.Contains(c.kinds, q.Relation.Kind)) &&
		(c.states == nil || slices.Contains(c.states, q.Desired)) &&
		(c.classes == nil || slices.Contains(c.classes, q.Class)) &&
		(c.from.IsZero() || !q.At.Before(c.from)) &&
		(c.until.IsZero() || q.At.Before(c.until)) &&
		c.users.allows(q.Relation.User) && c.targets.allows(q.Relation.Target) && c.devices.allows(q.Device) &&
		(c.addresses == nil || within(c.addresses, q.Address)) &&
		(c.hundredths == 0 || slot(r.Name, q.Relation.User) < c.hundredths)
}

func within(networks []netip.Prefix, a netip.Addr) bool {
	return a.IsValid() && slices.ContainsFunc(networks, func(n netip.Prefix) bool { return n.Contains(a) })
}

// idSet is a list of ids; nil has all.
type idSet map[string]struct{}

func (s idSet) allows(id string) bool {
	if s == nil {
		return true
	}
	_, ok := s[id]
	return ok
}

// slots are the hundredths of a percent.
const slots = 100 * 100

var shareContract = topology.HashContract{Algorithm: topology.AlgorithmXXH64, Seed: 0x7469646572697368, Encoding: topology.EncodingLP1, Modulus: slots}

// slot places a user for a rule of a name: the same in every process and at all
// times, so that a growing share keeps whom it had, and two rules' shares have
// nothing to do with each other.
func slot(rule, user string) int { return shareContract.Slot(rule, user) }
