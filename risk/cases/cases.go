// Package cases hides and shows relations that exist, for operators (J2): under
// one id, for a purpose, audited, and so that it can be undone.
//
//	relations ──▶ note in the control database what each was ──▶ relations.Store.SetHiding ──▶ note what became of it
//
// A case that was interrupted is begun again under its id, and goes on: what is
// noted stays as it was noted, and a relation that was hidden is not hidden
// twice. An undo is a case too. It gives back what a relation had before, and only
// to relations on which nothing happened since: what a user began anew meanwhile,
// or another case hid, is left as it is and counted as Skipped.
package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// MaxIDBytes is the longest id of a case: that of its undo is longer.
const MaxIDBytes = 100

// Limits of what is done at a time.
const (
	pageSize = 1000
	atOnce   = 16
)

// Desk hides and shows.
type Desk struct {
	Store *relations.Store
	DB    *control.DB
	// Progress is told how many relations are decided so far; nil: nobody is.
	Progress func(Done)
}

// Done counts the relations of a case by what became of them.
type Done struct {
	Relations int64 `json:"relations"`
	Applied   int64 `json:"applied"`
	Unchanged int64 `json:"unchanged"` // were so already
	Rejected  int64 `json:"rejected"`  // not in the counted state: there is nothing to hide; of an undo: it changed at that moment
	Skipped   int64 `json:"skipped"`   // of an undo: something happened since
}

// Source gives the relations of a case in pages, each at most once; none when
// there are no more.
type Source func(ctx context.Context) ([]topology.Relation, error)

// These are the relations of a list.
func These(all []topology.Relation) Source {
	return func(context.Context) (page []topology.Relation, _ error) {
		page, all = all[:min(pageSize, len(all))], all[min(pageSize, len(all)):]
		return page, nil
	}
}

// AllOf are a user's relations in a kind's counted state, newest first, as they
// are when each page is read: what the user begins later is not among them.
func (d *Desk) AllOf(user string, kind topology.Kind) Source {
	q, more := relations.ListQuery{User: user, State: kind.Active(), Limit: pageSize}, true
	return func(ctx context.Context) (page []topology.Relation, _ error) {
		if !more {
			return nil, nil
		}
		list, err := d.Store.List(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, f := range list.Facts {
			page = append(page, f.Relation)
		}
		if more = list.More; more {
			last := list.Facts[len(list.Facts)-1]
			q.After = relations.ListPosition{ChangedAt: last.StateChangedAt, Target: last.Relation.Target}
		}
		return page, nil
	}
}

// Preview tells what a case would do, and changes nothing.
func (d *Desk) Preview(ctx context.Context, h topology.Hiding, from Source) (done Done, err error) {
	err = d.pages(ctx, from, func(page []relations.Fact) error {
		for _, f := range page {
			done.Relations++
			switch {
			case f.Hiding == h:
				done.Unchanged++
			case f.State != f.Relation.Kind.Active():
				done.Rejected++
			default:
				done.Applied++
			}
		}
		d.tell(done)
		return nil
	})
	return done, err
}

// Run does a case.
func (d *Desk) Run(ctx context.Context, c control.RiskCase, from Source) (done Done, err error) {
	switch _, err := d.DB.RiskCase(ctx, UndoID(c.ID)); {
	case err == nil:
		return done, fmt.Errorf("case %q has been undone, and would do nothing a second time: choose another id", c.ID)
	case !errors.Is(err, control.ErrRiskCaseUnknown):
		return done, err
	}
	if err := d.DB.BeginRiskCase(ctx, c); err != nil {
		return done, err
	}
	err = d.pages(ctx, from, func(page []relations.Fact) error {
		noted := make([]control.CaseRelation, len(page))
		for i, f := range page {
			noted[i] = control.CaseRelation{Relation: f.Relation, Was: f.Hiding, WasVersion: f.Version}
		}
		return d.decide(ctx, c.ID, noted, func(control.CaseRelation) relations.HidingCommand { return relations.HidingCommand{Hiding: c.Hiding} }, &done)
	})
	if err != nil {
		return done, fmt.Errorf("after %d relations of case %q: %w: give the same command with --case %s to go on", done.Relations, c.ID, err, c.ID)
	}
	return done, d.end(ctx, c, done)
}

// UndoID is the id of a case's undo.
func UndoID(id string) string { return "undo-" + id }

// PreviewUndo tells what an undo would do, and changes nothing.
func (d *Desk) PreviewUndo(ctx context.Context, id string) (done Done, err error) {
	err = d.undoable(ctx, id, &done, func(page []undo) error {
		done.Relations += int64(len(page))
		done.Applied += int64(len(page))
		d.tell(done)
		return nil
	})
	return done, err
}

// Undo gives the relations of a case back what they had before it. c names who
// and why; the rest is the case's.
func (d *Desk) Undo(ctx context.Context, id string, c control.RiskCase) (done Done, err error) {
	if _, err := d.DB.RiskCase(ctx, id); err != nil {
		return done, err
	}
	c.ID, c.Undoes, c.Hiding = UndoID(id), id, topology.Hiding{}
	if err := d.DB.BeginRiskCase(ctx, c); err != nil {
		return done, err
	}
	err = d.undoable(ctx, id, &done, func(page []undo) error {
		noted, before := make([]control.CaseRelation, len(page)), map[topology.Relation]topology.Hiding{}
		for i, u := range page {
			noted[i] = control.CaseRelation{Relation: u.now.Relation, Was: u.now.Hiding, WasVersion: u.now.Version}
			before[u.now.Relation] = u.before
		}
		return d.decide(ctx, c.ID, noted, func(r control.CaseRelation) relations.HidingCommand {
			return relations.HidingCommand{Hiding: before[r.Relation], BaseVersion: &r.WasVersion}
		}, &done)
	})
	if err != nil {
		return done, fmt.Errorf("after %d relations of case %q: %w: give the same command to go on", done.Relations, c.ID, err)
	}
	return done, d.end(ctx, c, done)
}

// undo is a relation that can be given back what it had.
type undo struct {
	now    relations.Fact
	before topology.Hiding
}

// undoable gives the relations of a case that it changed and that nobody changed
// since, in pages. A relation whose version before the case is not the one before
// the case's own was changed between the two; what it had is not known.
func (d *Desk) undoable(ctx context.Context, id string, done *Done, do func([]undo) error) error {
	var after topology.Relation
	for {
		rows, err := d.DB.RiskCaseRelations(ctx, id, after, pageSize)
		if err != nil || len(rows) == 0 {
			return err
		}
		after = rows[len(rows)-1].Relation
		rows = slices.DeleteFunc(rows, func(r control.CaseRelation) bool { return r.Outcome != uint8(relations.Applied) })
		all := make([]topology.Relation, len(rows))
		for i, r := range rows {
			all[i] = r.Relation
		}
		facts, err := d.facts(ctx, all)
		if err != nil {
			return err
		}
		var page []undo
		for i, r := range rows {
			if facts[i].Version != r.Version || r.Version != r.WasVersion+1 {
				done.Relations++
				done.Skipped++
				continue
			}
			page = append(page, undo{facts[i], r.Was})
		}
		if err := do(page); err != nil {
			return err
		}
	}
}

// pages reads the facts of a source, page by page.
func (d *Desk) pages(ctx context.Context, from Source, do func([]relations.Fact) error) error {
	for {
		page, err := from(ctx)
		if err != nil || len(page) == 0 {
			return err
		}
		facts, err := d.facts(ctx, page)
		if err != nil {
			return err
		}
		if err := do(facts); err != nil {
			return err
		}
	}
}

// facts reads relations, by user and kind where those follow each other.
func (d *Desk) facts(ctx context.Context, of []topology.Relation) (facts []relations.Fact, err error) {
	for len(of) > 0 {
		user, kind := of[0].User, of[0].Kind
		n := slices.IndexFunc(of, func(r topology.Relation) bool { return r.User != user || r.Kind != kind })
		if n < 0 {
			n = len(of)
		}
		targets := make([]string, n)
		for i, r := range of[:n] {
			targets[i] = r.Target
		}
		some, err := d.Store.States(ctx, user, kind, targets)
		if err != nil {
			return nil, err
		}
		facts, of = append(facts, some...), of[n:]
	}
	return facts, nil
}

// decide notes relations, hides or shows them, and notes what became of each.
func (d *Desk) decide(ctx context.Context, id string, page []control.CaseRelation, to func(control.CaseRelation) relations.HidingCommand, done *Done) error {
	if len(page) == 0 {
		return nil
	}
	if err := d.DB.PlanRiskCase(ctx, id, page); err != nil {
		return err
	}
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	for i := range page {
		group.Go(func() error {
			r := &page[i]
			cmd := to(*r)
			cmd.OperationID, cmd.Relation = id, r.Relation
			res, err := d.Store.SetHiding(within, cmd)
			if errors.Is(err, relations.ErrOperationConflict) {
				return control.ErrRiskCaseReused
			}
			r.Outcome, r.Version = uint8(res.Operation.Outcome), res.Operation.Version
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := d.DB.DecideRiskCase(ctx, id, page); err != nil {
		return err
	}
	done.add(page)
	d.tell(*done)
	return nil
}

func (done *Done) add(page []control.CaseRelation) {
	for _, r := range page {
		done.Relations++
		switch relations.Outcome(r.Outcome) {
		case relations.Applied:
			done.Applied++
		case relations.Unchanged:
			done.Unchanged++
		case relations.Rejected:
			done.Rejected++
		}
	}
}

func (d *Desk) tell(done Done) {
	if d.Progress != nil {
		d.Progress(done)
	}
}

func (d *Desk) end(ctx context.Context, c control.RiskCase, done Done) error {
	c.Relations, c.Applied = done.Relations, done.Applied
	return d.DB.EndRiskCase(ctx, c)
}
