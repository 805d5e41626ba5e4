package relations

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
)

func TestDecide(t *testing.T) {
	now := time.Date(2026, 8, 19, 10, 20, 30, 123456789, time.FixedZone("", 3600))
	liked := Fact{Relation: v9001, State: topology.Liked, Version: 11, StateChangedAt: now.UTC().Add(-time.Hour).Truncate(time.Microsecond)}
	cmd := command("op", v9001, topology.Unliked)
	next, outcome := decide(liked, cmd, RejectStale, now)
	want := Fact{Relation: v9001, State: topology.Unliked, Version: 12, StateChangedAt: time.Date(2026, 8, 19, 9, 20, 30, 123456000, time.UTC)}
	if next != want || outcome != Applied {
		t.Errorf("%s %+v, want %+v", outcome, next, want)
	}
	// A stale command is refused even when it asks for the current state.
	next, outcome = decide(liked, based(command("op", v9001, topology.Liked), 10), RejectStale, now)
	if next != liked || outcome != Rejected {
		t.Errorf("%s %+v", outcome, next)
	}
	next, outcome = decide(liked, based(command("op", v9001, topology.Liked), 10), LastCommitWins, now)
	if next != liked || outcome != Unchanged {
		t.Errorf("%s %+v", outcome, next)
	}
}

func TestOutcomeNames(t *testing.T) {
	for o, want := range map[Outcome]string{Applied: "APPLIED", Unchanged: "UNCHANGED", Rejected: "REJECTED", 0: "OUTCOME(0)", 9: "OUTCOME(9)"} {
		if o.String() != want {
			t.Errorf("%d is %s", o, o)
		}
	}
}

// drawCommand draws from so few ids that operations and relations meet often.
func drawCommand(t *rapid.T) Command {
	kind := rapid.SampledFrom(topology.Kinds()).Draw(t, "kind")
	var states []topology.State
	for s := topology.Unliked; s <= topology.Following; s++ {
		if s.Kind() == kind {
			states = append(states, s)
		}
	}
	c := Command{
		OperationID: fmt.Sprintf("op%d", rapid.IntRange(0, 30).Draw(t, "operation")),
		Relation:    relation(kind, fmt.Sprintf("u%d", rapid.IntRange(0, 1).Draw(t, "user")), fmt.Sprintf("v%d", rapid.IntRange(0, 1).Draw(t, "target"))),
		Desired:     rapid.SampledFrom(states).Draw(t, "state"),
	}
	if rapid.Bool().Draw(t, "has base") {
		c = based(c, uint64(rapid.IntRange(0, 5).Draw(t, "base")))
	}
	c.Hiding = rapid.SampledFrom([]topology.Hiding{{}, farm, {By: topology.HiddenByRisk, Reason: "burst"}, rules25}).Draw(t, "hiding")
	return c
}

// TestLedgerAgainstAModel runs commands in ledgers of random sizes, each
// starting from what the one before would have stored, beside a model that
// takes one command at a time.
func TestLedgerAgainstAModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy := rapid.SampledFrom([]StaleBasePolicy{RejectStale, LastCommitWins}).Draw(t, "policy")
		stored := &ledger{operations: map[operationKey]decided{}, hidings: map[hidingKey]decidedHiding{}, facts: map[topology.Relation]Fact{}}
		model := model{policy: policy, first: map[operationKey]Command{}, results: map[operationKey]string{}, hidings: map[hidingKey]string{}, hid: map[hidingKey]topology.Hiding{}, facts: map[topology.Relation]modelFact{}}
		events := map[topology.Relation]uint64{}
		for range rapid.IntRange(1, 8).Draw(t, "transactions") {
			now := time.UnixMicro(rapid.Int64Range(1, 1000).Draw(t, "now")) // steps back as it likes
			l := &ledger{rules: rules{staleBase: policy, kept: time.Hour}, now: now, operations: stored.operations, hidings: stored.hidings, facts: stored.facts, changes: map[topology.Relation]change{}}
			before := snapshot(stored.facts)
			for range rapid.IntRange(1, 20).Draw(t, "commands") {
				cmd, take, want := drawCommand(t), l.take, model.take
				if rapid.Bool().Draw(t, "hides") {
					take, want = l.takeHiding, model.hide
				}
				got := take(cmd)
				if want := want(cmd); describe(got) != want {
					t.Fatalf("%+v: got %s, want %s", cmd, describe(got), want)
				}
			}
			checkLedger(t, l, before, events)
		}
	})
}

func snapshot(facts map[topology.Relation]Fact) map[topology.Relation]Fact {
	out := map[topology.Relation]Fact{}
	for r, f := range facts {
		out[r] = f
	}
	return out
}

// checkLedger checks what a ledger would write: each version once and in
// order (I2, I4, I5), times that rise (A6), and rows that take a relation from
// its stored version to its last.
func checkLedger(t *rapid.T, l *ledger, before map[topology.Relation]Fact, events map[topology.Relation]uint64) {
	last := snapshot(before)
	for _, tr := range l.transitions {
		r := tr.fact.Relation
		prev, ok := last[r]
		if !ok {
			prev = initialFact(r)
		}
		if tr.fact.Version != prev.Version+1 || tr.previous != prev.State {
			t.Fatalf("transition %+v after %+v", tr, prev)
		}
		if hides := tr.fact.State == prev.State; hides && (tr.fact.Hiding == prev.Hiding || tr.fact.StateChangedAt != prev.StateChangedAt) ||
			!hides && !tr.fact.StateChangedAt.After(prev.StateChangedAt) {
			t.Fatalf("A6: transition %+v after %+v", tr, prev)
		}
		if tr.fact.Hiding != (topology.Hiding{}) && tr.fact.State != r.Kind.Active() {
			t.Fatalf("C5: %+v is hidden and not counted", tr)
		}
		last[r] = tr.fact
		events[r]++
	}
	for r, f := range last {
		if f.Version != events[r] {
			t.Fatalf("%d events for version %d of %s", events[r], f.Version, r.Key())
		}
		c, changed := l.changes[r]
		if changed != (f != before[r]) || changed && (c.fact != f || c.from != before[r].Version) {
			t.Fatalf("change %+v takes %+v to %+v", c, before[r], f)
		}
	}
}

// model is the specification, one command at a time, without times.
type model struct {
	policy  StaleBasePolicy
	first   map[operationKey]Command
	results map[operationKey]string
	hid     map[hidingKey]topology.Hiding
	hidings map[hidingKey]string
	facts   map[topology.Relation]modelFact
}

type modelFact struct {
	state   topology.State
	version uint64
	hiding  topology.Hiding
}

func (f modelFact) String() string {
	return fmt.Sprintf("%s v%d%s", f.state, f.version, hidden(f.hiding))
}

func hidden(h topology.Hiding) string {
	if h == (topology.Hiding{}) {
		return ""
	}
	return fmt.Sprintf(" hidden by %s: %s", h.By, h.Reason)
}

func (m *model) take(c Command) string {
	f, ok := m.facts[c.Relation]
	if !ok {
		f.state = c.Relation.Kind.Initial()
	}
	if first, ok := m.first[c.operation()]; ok {
		if !first.same(c) {
			return "conflict"
		}
		return fmt.Sprintf("replayed %s; now %s", m.results[c.operation()], f)
	}
	m.first[c.operation()] = c
	outcome := Applied
	switch {
	case m.policy == RejectStale && c.BaseVersion != nil && *c.BaseVersion != f.version:
		outcome = Rejected
	case f.state == c.Desired:
		outcome = Unchanged
	default:
		f = modelFact{state: c.Desired, version: f.version + 1}
		if c.Desired == c.Relation.Kind.Active() {
			f.hiding = c.Hiding
		}
		m.facts[c.Relation] = f
	}
	m.results[c.operation()] = fmt.Sprintf("%s %s v%d", outcome, f.state, f.version)
	return fmt.Sprintf("%s; now %s", m.results[c.operation()], f)
}

func (m *model) hide(c Command) string {
	f, ok := m.facts[c.Relation]
	if !ok {
		f.state = c.Relation.Kind.Initial()
	}
	key := hidingKey{c.Relation, c.OperationID}
	if result, ok := m.hidings[key]; ok {
		if m.hid[key] != c.Hiding {
			return "conflict"
		}
		return fmt.Sprintf("replayed %s; now %s", result, f)
	}
	outcome := Unchanged
	if c.BaseVersion != nil && *c.BaseVersion != f.version {
		outcome = Rejected
	} else if counted := f.state == c.Relation.Kind.Active(); counted && c.Hiding != f.hiding {
		outcome = Applied
		f.hiding = c.Hiding
		f.version++
		m.facts[c.Relation] = f
	} else if !counted && c.Hiding.By != topology.Shown {
		outcome = Rejected
	}
	m.hid[key], m.hidings[key] = c.Hiding, fmt.Sprintf("%s %s v%d", outcome, f.state, f.version)
	return fmt.Sprintf("%s; now %s", m.hidings[key], f)
}

func describe(a answer) string {
	if errors.Is(a.err, ErrOperationConflict) {
		return "conflict"
	}
	r := a.result
	text := fmt.Sprintf("%s %s v%d; now %s v%d%s", r.Operation.Outcome, r.Operation.State, r.Operation.Version, r.Current.State, r.Current.Version, hidden(r.Current.Hiding))
	if r.Replayed {
		return "replayed " + text
	}
	return text
}
