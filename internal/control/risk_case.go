package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

// RiskCase is what an operator does to relations at a time: hide or show them,
// for a purpose, under one operation id.
type RiskCase struct {
	ID      string
	Who     string
	Purpose string          // with the evidence
	Hiding  topology.Hiding // zero: show; of no meaning in an undo
	Undoes  string          // the case that it undoes; empty: none

	BegunAt time.Time
	EndedAt *time.Time // nil: it was interrupted, or is under way
	// Relations that it is about, and those that it changed.
	Relations, Applied int64
}

// Subject names the case in the audit.
func (c RiskCase) Subject() string { return "risk:" + c.ID }

// CaseRelation is a relation of a case, as it was before, and what became of it.
type CaseRelation struct {
	Relation   topology.Relation
	Was        topology.Hiding
	WasVersion uint64
	Outcome    uint8 // that of relations.Outcome; 0: not decided
	Version    uint64
}

// Errors of cases.
var (
	ErrRiskCaseReused  = errors.New("a case of this id does something else: choose another id")
	ErrRiskCaseUnknown = errors.New("there is no such case")
)

// BeginRiskCase notes and audits a case. One that was begun before, to do the
// same, goes on.
func (d *DB) BeginRiskCase(ctx context.Context, c RiskCase) error {
	if c.Who == "" || c.Purpose == "" {
		return errors.New("a case of risk needs who decides, and a purpose")
	}
	err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			INSERT INTO risk_case (id, who, purpose, hidden, reason, undoes) VALUES ($1, $2, $3, $4, $5, nullif($6, ''))
			ON CONFLICT (id) DO NOTHING`, c.ID, c.Who, c.Purpose, int16(c.Hiding.By), c.Hiding.Reason, c.Undoes)
		if err != nil {
			return err
		}
		if tag.RowsAffected() > 0 {
			return audit(ctx, tx, c.entry("risk.begun", nil))
		}
		var same bool
		if err := tx.QueryRow(ctx, `SELECT hidden = $2 AND reason = $3 AND coalesce(undoes, '') = $4 FROM risk_case WHERE id = $1`,
			c.ID, int16(c.Hiding.By), c.Hiding.Reason, c.Undoes).Scan(&same); err != nil {
			return err
		}
		if !same {
			return ErrRiskCaseReused
		}
		return audit(ctx, tx, c.entry("risk.resumed", nil))
	})
	if errors.Is(err, ErrRiskCaseReused) {
		return err
	}
	return named(wrap("beginning a case of risk", err))
}

func (c RiskCase) entry(action string, detail map[string]any) Entry {
	all := map[string]any{"hidden": c.Hiding.By.String(), "hiddenReason": c.Hiding.Reason, "undoes": c.Undoes}
	for k, v := range detail {
		all[k] = v
	}
	return Entry{Who: c.Who, Action: action, Subject: c.Subject(), Reason: c.Purpose, Detail: all}
}

func wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// EndRiskCase notes and audits that every relation of a case is decided.
func (d *DB) EndRiskCase(ctx context.Context, c RiskCase) error {
	_, err := d.audited(ctx, "ending a case of risk", c.entry("risk.ended", map[string]any{"relations": c.Relations, "applied": c.Applied}),
		"UPDATE risk_case SET ended_at = clock_timestamp() WHERE id = $1", c.ID)
	return err
}

// PlanRiskCase notes relations before they are touched. Those that are noted
// already stay as they are, since the case may have changed them meanwhile.
func (d *DB) PlanRiskCase(ctx context.Context, id string, page []CaseRelation) error {
	var c caseColumns
	var hidden []int16
	var reasons []string
	for _, r := range page {
		c.add(r.Relation)
		hidden, reasons = append(hidden, int16(r.Was.By)), append(reasons, r.Was.Reason)
		c.versions = append(c.versions, int64(r.WasVersion))
	}
	_, err := d.pool.Exec(ctx, `
		INSERT INTO risk_case_relation (case_id, user_id, kind, target_id, was_hidden, was_reason, was_version)
		SELECT $1, * FROM unnest($2::text[], $3::smallint[], $4::text[], $5::smallint[], $6::text[], $7::bigint[])
		ON CONFLICT DO NOTHING`, id, c.users, c.kinds, c.targets, hidden, reasons, c.versions)
	return named(wrap("noting relations of a case of risk", err))
}

// DecideRiskCase notes what became of relations of a case.
func (d *DB) DecideRiskCase(ctx context.Context, id string, page []CaseRelation) error {
	var c caseColumns
	var outcomes []int16
	for _, r := range page {
		c.add(r.Relation)
		outcomes = append(outcomes, int16(r.Outcome))
		c.versions = append(c.versions, int64(r.Version))
	}
	_, err := d.pool.Exec(ctx, `
		UPDATE risk_case_relation r SET outcome = n.outcome, version = n.version
		FROM unnest($2::text[], $3::smallint[], $4::text[], $5::smallint[], $6::bigint[]) AS n (u, k, t, outcome, version)
		WHERE r.case_id = $1 AND r.user_id = n.u AND r.kind = n.k AND r.target_id = n.t`, id, c.users, c.kinds, c.targets, outcomes, c.versions)
	return named(wrap("noting what became of relations of a case of risk", err))
}

// caseColumns are relations as columns.
type caseColumns struct {
	users, targets []string
	kinds          []int16
	versions       []int64
}

func (c *caseColumns) add(r topology.Relation) {
	c.users, c.targets, c.kinds = append(c.users, r.User), append(c.targets, r.Target), append(c.kinds, int16(r.Kind))
}

const riskCaseSQL = `
	SELECT c.id, c.who, c.purpose, c.hidden, c.reason, coalesce(c.undoes, ''), c.begun_at, c.ended_at,
	       count(r.case_id), count(r.case_id) FILTER (WHERE r.outcome = 1)
	FROM risk_case c LEFT JOIN risk_case_relation r ON r.case_id = c.id`

func scanRiskCase(row pgx.CollectableRow) (c RiskCase, err error) {
	err = row.Scan(&c.ID, &c.Who, &c.Purpose, &c.Hiding.By, &c.Hiding.Reason, &c.Undoes, &c.BegunAt, &c.EndedAt, &c.Relations, &c.Applied)
	return c, err
}

// RiskCases lists cases, newest first, at most limit.
func (d *DB) RiskCases(ctx context.Context, limit int) (out []RiskCase, err error) {
	err = d.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, riskCaseSQL+` WHERE c.id IN (SELECT id FROM risk_case ORDER BY begun_at DESC, id LIMIT $1)
			GROUP BY c.id ORDER BY c.begun_at DESC, c.id`, limit)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, scanRiskCase)
		return err
	})
	return out, wrap("listing cases of risk", err)
}

// RiskCase finds one.
func (d *DB) RiskCase(ctx context.Context, id string) (c RiskCase, err error) {
	err = d.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, riskCaseSQL+` WHERE c.id = $1 GROUP BY c.id`, id)
		if err != nil {
			return err
		}
		c, err = pgx.CollectExactlyOneRow(rows, scanRiskCase)
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return c, fmt.Errorf("case %q: %w", id, ErrRiskCaseUnknown)
	}
	return c, wrap("reading a case of risk", err)
}

// RiskCaseRelations gives the relations of a case behind one, in the order of
// user, kind and target, at most limit.
func (d *DB) RiskCaseRelations(ctx context.Context, id string, after topology.Relation, limit int) (out []CaseRelation, err error) {
	err = d.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT user_id, kind, target_id, was_hidden, was_reason, was_version, coalesce(outcome, 0), coalesce(version, 0)
			FROM risk_case_relation WHERE case_id = $1 AND (user_id, kind, target_id) > ($2, $3, $4)
			ORDER BY user_id, kind, target_id LIMIT $5`, id, after.User, int16(after.Kind), after.Target, limit)
		if err != nil {
			return err
		}
		out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r CaseRelation, err error) {
			var was, version int64
			err = row.Scan(&r.Relation.User, &r.Relation.Kind, &r.Relation.Target, &r.Was.By, &r.Was.Reason, &was, &r.Outcome, &version)
			r.WasVersion, r.Version = uint64(was), uint64(version)
			return r, err
		})
		return err
	})
	return out, wrap("reading relations of a case of risk", err)
}
