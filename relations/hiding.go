package relations

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// HidingCommand asks that a relation which exists be hidden from the count that
// users see, hidden for another reason, or shown again.
type HidingCommand struct {
	// OperationID is made by who decides, as topology.CheckID allows. It is bound
	// to one hiding, for each relation anew: a case may hide many relations under
	// one id. Users' operations have ids of their own; one may be equal.
	OperationID string
	Relation    topology.Relation
	Hiding      topology.Hiding // zero: show it
	// BaseVersion is the relation version that who decides saw; nil is not judged.
	BaseVersion *uint64
}

// SetHiding writes the relation's next version, with the state that it has and
// another hiding, and one event, under the locks and the fence of commands. It
// returns when that is committed; the errors are those of Set, except that no
// operation expires.
//
// Outcomes: Applied; Unchanged when the relation has this hiding; Rejected when
// it is to be hidden and is not in its kind's counted state, where there is
// nothing to hide, and when its version is not the base version. What a later
// command begins is hidden or shown as that command says.
//
// StateChangedAt stays: it tells when the state began (A6), lists are ordered
// by it, and for a user nothing has changed. The version rises, so a user's
// command with the base version before is stale.
func (s *Store) SetHiding(ctx context.Context, h HidingCommand) (Result, error) {
	cmd := Command{OperationID: h.OperationID, Relation: h.Relation, Desired: h.Relation.Kind.Active(), Hiding: h.Hiding, BaseVersion: h.BaseVersion}
	if err := cmd.check(); err != nil {
		return Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.config.CommandTimeout)
	defer cancel()
	return s.set(ctx, request{cmd: cmd, hides: true})
}

// hidingKey is what a hiding's operation id is unique within: its relation.
type hidingKey struct {
	relation topology.Relation
	id       string
}

// A decidedHiding is a hiding with its stored result.
type decidedHiding struct {
	key    hidingKey
	hiding topology.Hiding
	result OperationResult
}

// takeHiding decides the next hiding, as take does a command.
func (l *ledger) takeHiding(cmd Command) answer {
	current, ok := l.facts[cmd.Relation]
	if !ok {
		current = initialFact(cmd.Relation)
	}
	key := hidingKey{cmd.Relation, cmd.OperationID}
	if old, ok := l.hidings[key]; ok {
		if old.hiding != cmd.Hiding {
			return answer{err: ErrOperationConflict}
		}
		return answer{result: Result{Operation: old.result, Current: current, Replayed: true}}
	}
	next, outcome := decideHiding(current, cmd.Hiding, cmd.BaseVersion)
	d := decidedHiding{key: key, hiding: cmd.Hiding, result: OperationResult{Outcome: outcome, State: next.State, Version: next.Version, DecidedAt: l.now}}
	l.hidings[key] = d
	l.hidden = append(l.hidden, d)
	if outcome == Applied {
		l.apply(current, next, cmd.OperationID)
	}
	return answer{result: Result{Operation: d.result, Current: next}}
}

// decideHiding is the rule of one new hiding.
func decideHiding(current Fact, h topology.Hiding, base *uint64) (Fact, Outcome) {
	if base != nil && *base != current.Version {
		return current, Rejected
	}
	if current.Hiding == h {
		return current, Unchanged
	}
	if current.State != current.Relation.Kind.Active() {
		return current, Rejected
	}
	next := current
	next.Hiding = h
	next.Version++
	return next, Applied
}

const (
	hidingsSQL = `
		SELECT h.operation_id, h.user_id, h.kind, h.target_id, h.hidden, coalesce(h.hidden_reason, ''),
		       h.outcome, h.result_state, h.result_version, h.created_at
		FROM unnest($1::text[], $2::text[], $3::smallint[], $4::text[]) AS k (o, u, kind, t)
		JOIN hiding h ON h.user_id = k.u AND h.kind = k.kind AND h.target_id = k.t AND h.operation_id = k.o`

	insertHidingsSQL = `
		INSERT INTO hiding (operation_id, user_id, kind, target_id, hidden, hidden_reason,
		                    outcome, result_state, result_version, created_at)
		SELECT o, u, k, t, h, nullif(hr, ''), oc, rs, rv, $10
		FROM unnest($1::text[], $2::text[], $3::smallint[], $4::text[], $5::smallint[], $6::text[],
		            $7::smallint[], $8::smallint[], $9::bigint[]) AS n (o, u, k, t, h, hr, oc, rs, rv)`
)

// hidingColumns are rows of table hiding as columns.
type hidingColumns struct {
	ids, users, targets, reasons    []string
	kinds, hidden, outcomes, states []int16
	versions                        []int64
}

func (c *hidingColumns) add(k hidingKey) {
	c.ids, c.users, c.targets = append(c.ids, k.id), append(c.users, k.relation.User), append(c.targets, k.relation.Target)
	c.kinds = append(c.kinds, int16(k.relation.Kind))
}

// queueKnownHidings reads what was decided of the batch's hidings; a batch
// without any costs nothing.
func (l *ledger) queueKnownHidings(b *pgx.Batch, batch []*request) {
	var c hidingColumns
	for _, r := range batch {
		if r.hides {
			c.add(hidingKey{r.cmd.Relation, r.cmd.OperationID})
		}
	}
	if len(c.ids) == 0 {
		return
	}
	l.hidings = make(map[hidingKey]decidedHiding, len(c.ids))
	b.Queue(hidingsSQL, c.ids, c.users, c.kinds, c.targets).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			d, err := scanHiding(rows)
			if err != nil {
				return err
			}
			l.hidings[d.key] = d
		}
		return rows.Err()
	})
}

func scanHiding(row pgx.Row) (d decidedHiding, _ error) {
	var version int64
	var at time.Time
	err := row.Scan(&d.key.id, &d.key.relation.User, &d.key.relation.Kind, &d.key.relation.Target, &d.hiding.By, &d.hiding.Reason,
		&d.result.Outcome, &d.result.State, &version, &at)
	if err != nil {
		return d, fmt.Errorf("reading a row of table hiding: %w", err)
	}
	d.result.Version, d.result.DecidedAt = uint64(version), at.UTC()
	return d, nil
}

func (l *ledger) queueHidings(b *pgx.Batch) {
	if len(l.hidden) == 0 {
		return
	}
	var c hidingColumns
	for _, d := range l.hidden {
		c.add(d.key)
		c.hidden, c.reasons = append(c.hidden, int16(d.hiding.By)), append(c.reasons, d.hiding.Reason)
		c.outcomes, c.states = append(c.outcomes, int16(d.result.Outcome)), append(c.states, int16(d.result.State))
		c.versions = append(c.versions, int64(d.result.Version))
	}
	b.Queue(insertHidingsSQL, c.ids, c.users, c.kinds, c.targets, c.hidden, c.reasons, c.outcomes, c.states, c.versions, l.now)
}
