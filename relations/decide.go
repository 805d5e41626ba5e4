package relations

import (
	"time"

	"github.com/tidemark/tidemark/topology"
)

// decide is the rule of one new command (A2): the relation's fact after it,
// and what it did. It depends on nothing but its arguments.
//
// A base version above the relation's is judged like one below: the client saw
// something that this shard does not have.
func decide(current Fact, cmd Command, policy StaleBasePolicy, now time.Time) (Fact, Outcome) {
	if policy == RejectStale && cmd.BaseVersion != nil && *cmd.BaseVersion != current.Version {
		return current, Rejected
	}
	if cmd.Desired == current.State {
		return current, Unchanged // I4, I5
	}
	next := current
	next.State = cmd.Desired
	next.Hiding = topology.Hiding{}
	if next.State == next.Relation.Kind.Active() {
		next.Hiding = cmd.Hiding
	}
	next.Version++
	next.StateChangedAt = after(current.StateChangedAt, now)
	return next, Applied
}

// after is now in microseconds, or the next microsecond after previous when
// the clock has not passed it: a relation's times rise with its versions even
// when a clock steps back (A6).
func after(previous, now time.Time) time.Time {
	now = now.UTC().Truncate(time.Microsecond)
	if now.After(previous) {
		return now
	}
	return previous.Add(time.Microsecond)
}

// A decided is a command with its stored result.
type decided struct {
	command Command
	result  OperationResult
}

// A transition is one version of a relation, to be written as an outbox row.
type transition struct {
	fact     Fact
	previous topology.State
}

// A change is what a relation's row becomes: the last of the batch's
// transitions, on top of version from (0: there is no row).
type change struct {
	fact        Fact
	from        uint64
	operationID string
}

// A ledger decides the commands of one transaction in the order of their
// arrival, each on top of those before it. It starts with what the shard
// stores about them, read after their locks were taken, and ends with what is
// to be written.
type ledger struct {
	rules      rules
	now        time.Time // of the shard's clock
	epoch      int64     // of the shard map whose commands may be decided
	operations map[operationKey]decided
	facts      map[topology.Relation]Fact

	// hidings of the batch's relations that were decided before, and those that
	// are decided now.
	hidings map[hidingKey]decidedHiding
	hidden  []decidedHiding

	decided     []decided
	transitions []transition
	changes     map[topology.Relation]change
}

// answer is what a caller of Set gets.
type answer struct {
	result Result
	err    error
}

// take decides the next command.
func (l *ledger) take(cmd Command) answer {
	current, ok := l.facts[cmd.Relation]
	if !ok {
		current = initialFact(cmd.Relation)
	}
	if old, ok := l.operations[cmd.operation()]; ok {
		if !old.command.same(cmd) {
			return answer{err: ErrOperationConflict}
		}
		return answer{result: Result{Operation: old.result, Current: current, Replayed: true}} // I2
	}
	if expired(cmd.OperationID, l.rules.kept, l.now) {
		return answer{result: Result{Current: current}, err: ErrOperationExpired}
	}
	next, outcome := decide(current, cmd, l.rules.policy(cmd.Relation.Kind), l.now)
	d := decided{command: cmd, result: OperationResult{Outcome: outcome, State: next.State, Version: next.Version, DecidedAt: l.now}}
	l.operations[cmd.operation()] = d
	l.decided = append(l.decided, d)
	if outcome == Applied {
		l.apply(current, next, cmd.OperationID)
	}
	return answer{result: Result{Operation: d.result, Current: next}}
}

func (l *ledger) apply(current, next Fact, operationID string) {
	l.facts[next.Relation] = next
	l.transitions = append(l.transitions, transition{fact: next, previous: current.State})
	c, ok := l.changes[next.Relation]
	if !ok {
		c.from = current.Version
	}
	c.fact, c.operationID = next, operationID
	l.changes[next.Relation] = c
}
