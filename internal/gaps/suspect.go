package gaps

import (
	"context"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// findings are what became of the ids in question.
type findings struct {
	missing  idset.Ranges       // rows of the outbox that did not come
	deleted  idset.Ranges       // rows that did not come and were deleted by hand
	vanished idset.Ranges       // ids among which others are that the proof counted
	lost     int64              // how many those are
	all      bool               // every row of the interval is named, for want of better
	counted  []control.LostFact // facts that were counted, and that the shard has lost
	note     string
}

func (f findings) gone() idset.Ranges { return comparison{lost: f.counted}.lostIDs() }
func (f findings) ids() idset.Ranges {
	return f.missing.Union(f.deleted).Union(f.vanished).Union(f.gone())
}
func (f findings) rows() int64 { return f.missing.Union(f.gone()).Count() + f.deleted.Count() + f.lost }

// Suspect looks up which of the ids in question are rows of the outbox and
// records those as gaps, each with its seal. It may be told the same again.
func (k *Keeper) Suspect(ctx context.Context, s *tidemarkv1.Suspicion) error {
	shard := int(s.Shard)
	if _, err := k.look(ctx, shard); err != nil {
		return err
	}
	f, err := k.find(ctx, s)
	if err != nil {
		return err
	}
	if f.rows() == 0 {
		k.log.Info("nothing is missing: every row of the interval came", "shard", shard, "seal", s.Seal)
		return nil
	}
	if err := k.cfg.Control.AddLostFacts(ctx, shard, f.counted); err != nil {
		return err
	}
	// With the seal before the interval, for its time.
	ids := f.ids()
	seals, err := k.cfg.Outbox.Seals(ctx, shard, min(s.FromId, ids[0].From)-2, max(s.ToId-1, ids[len(ids)-1].To))
	if err != nil {
		return err
	}
	cause, err := k.cause(ctx, s, f, seals)
	if err != nil {
		return err
	}
	for _, g := range bySeal(s.Seal, ids, seals) {
		g.Shard, g.Cause, g.Note, g.Exact = shard, cause, f.note, f.lost == 0
		g.FirstSeen = time.UnixMicro(s.DetectedAtUs).UTC()
		if f.lost > 0 {
			g.Rows = min(g.Rows, f.rows())
		}
		if err := k.raise(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) raise(ctx context.Context, g control.Gap) error {
	raised, err := k.cfg.Control.RaiseGap(ctx, g, who)
	if err != nil || !raised {
		return err
	}
	k.metrics.raised.Inc()
	k.log.Error("gap: rows of the outbox are missing from the change feed; heal it with `tidemark gaps heal`",
		"shard", g.Shard, "seal", g.Seal, "rows", g.Rows, "cause", g.Cause)
	return nil
}

// find looks up what is missing, by ids, and where that leaves something open,
// event by event.
func (k *Keeper) find(ctx context.Context, s *tidemarkv1.Suspicion) (f findings, err error) {
	if !s.WentBack {
		if f, err = k.findIDs(ctx, s); err != nil || s.Unchecked || s.Part > 0 {
			return f, err
		}
		if explained, err := k.explained(ctx, s, f); err != nil || explained {
			return f, err
		}
	}
	c, err := k.compare(ctx, int(s.Shard), time.UnixMicro(s.DetectedAtUs), s.FromId, s.ToId-1)
	if err != nil || !c.back && !s.WentBack {
		return f, err
	}
	if f.all {
		f = findings{} // now it is known which rows it is
	}
	f.counted, f.missing = c.lost, f.missing.Union(c.missing)
	if len(c.lost) > 0 {
		f.note = fmt.Sprintf("%d facts were counted that the shard has lost since; healing writes their relations again, above them", len(c.lost))
	}
	return f, nil
}

// explained tells that an interval's totals are those of what came and what is
// missing.
func (k *Keeper) explained(ctx context.Context, s *tidemarkv1.Suspicion, f findings) (bool, error) {
	if !s.Counted || s.Parts > 1 || s.ReceivedRows+f.rows() != s.ProvenRows {
		return false, nil
	}
	if s.Blind || f.lost > 0 || len(f.deleted) > 0 {
		return true, nil // there is no sum to compare with
	}
	sum := s.ReceivedXor
	_, err := k.cfg.Outbox.Events(ctx, int(s.Shard), s.FromId, s.ToId-1, func(id int64, event string) error {
		if f.missing.Contains(id) {
			sum ^= xxhash.Sum64String(event)
		}
		return nil
	})
	return sum == s.ProvenXor, err
}

func (k *Keeper) findIDs(ctx context.Context, s *tidemarkv1.Suspicion) (f findings, err error) {
	absent := idset.Ranges{{From: s.FromId, To: s.ToId - 1}}
	if !s.Unchecked {
		if err := absent.UnmarshalBinary(s.Absent); err != nil {
			return f, fmt.Errorf("the ids in question of shard %d, seal %d: %w", s.Shard, s.Seal, err)
		}
	} else {
		f.all, f.note = true, "the interval was not checked row by row: every row of it is named"
	}
	if f.missing, err = k.cfg.Outbox.RelationIDs(ctx, int(s.Shard), absent); err != nil {
		return f, err
	}
	deleted, err := k.cfg.Outbox.Deleted(ctx, int(s.Shard), absent)
	if err != nil {
		return f, err
	}
	f.deleted = relationsOf(deleted)
	switch {
	case s.Unchecked || s.Parts > 1:
		return f, nil // there are no totals to compare with
	case !s.Counted:
		return k.compareProofs(ctx, s, f, absent)
	}
	return k.compareTotals(ctx, s, f, absent)
}

// compareProofs asks whether the outbox still has what the proofs of an
// interval have counted, when it is not known what came of each.
func (k *Keeper) compareProofs(ctx context.Context, s *tidemarkv1.Suspicion, f findings, absent idset.Ranges) (findings, error) {
	shard, whole := int(s.Shard), idset.Ranges{{From: s.FromId, To: s.ToId - 1}}
	proofs, err := k.cfg.Outbox.Proofs(ctx, shard, s.FromId, s.FirstSeal, s.Seal)
	if err != nil {
		return f, err
	}
	rows, err := k.cfg.Outbox.RelationIDs(ctx, shard, whole)
	if err != nil {
		return f, err
	}
	deleted, err := k.cfg.Outbox.Deleted(ctx, shard, whole)
	if err != nil {
		return f, err
	}
	there := rows.Union(relationsOf(deleted))
	var short idset.Ranges
	for _, p := range proofs {
		if lost := p.Rows - there.Within(p.FromID, p.ToID-1).Count(); lost > 0 {
			f.lost += lost
			short = short.Union(absent.Within(p.FromID, p.ToID-1))
		}
	}
	return k.vanish(ctx, shard, f, short)
}

// vanish names the ids among which the f.lost rows are that the proof counted
// and that are neither in the outbox nor in the trail.
func (k *Keeper) vanish(ctx context.Context, shard int, f findings, absent idset.Ranges) (findings, error) {
	if f.lost == 0 {
		return f, nil
	}
	present, err := k.cfg.Outbox.PresentIDs(ctx, shard, absent)
	f.vanished = absent.Without(present).Without(f.deleted)
	f.lost = min(f.lost, f.vanished.Count())
	f.note = fmt.Sprintf("%d rows are no longer in the outbox; among the ids are those of aborted transactions", f.lost)
	return f, err
}

// compareTotals asks whether the findings explain the proof's difference.
func (k *Keeper) compareTotals(ctx context.Context, s *tidemarkv1.Suspicion, f findings, absent idset.Ranges) (findings, error) {
	short := s.ProvenRows - s.ReceivedRows - f.rows()
	switch {
	case short > 0:
		f.lost = short
		return k.vanish(ctx, int(s.Shard), f, absent)
	case s.ReceivedRows+f.rows() > s.ProvenRows:
		k.metrics.surplus.Add(float64(s.ReceivedRows + f.rows() - s.ProvenRows))
		k.log.Warn("rows came that the outbox does not count: deleted before the proof, or not of this outbox", "shard", s.Shard, "seal", s.Seal,
			"rows", s.ReceivedRows+f.rows()-s.ProvenRows)
	case f.rows() == 0 && !s.Blind && s.ReceivedXor != s.ProvenXor:
		var err error
		f.all, f.note = true, "rows came under ids of this interval that are not the outbox's: every row of it is named"
		f.missing, err = k.cfg.Outbox.RelationIDs(ctx, int(s.Shard), idset.Ranges{{From: s.FromId, To: s.ToId - 1}})
		return f, err
	}
	return f, nil
}

func relationsOf(rows []evidence.Deleted) idset.Ranges {
	var ids []int64
	for _, d := range rows {
		if d.AggregateType == topology.AggregateRelation {
			ids = append(ids, d.ID)
		}
	}
	return idset.Of(ids...)
}

// bySeal parts ids by the seals that settled them; what no kept seal has goes
// to the one that told.
func bySeal(told uint64, ids idset.Ranges, seals []evidence.Seal) []control.Gap {
	parts := map[uint64]idset.Ranges{}
	var order []uint64
	add := func(seal uint64, r idset.Ranges) {
		if len(r) == 0 {
			return
		}
		if _, known := parts[seal]; !known {
			order = append(order, seal)
		}
		parts[seal] = parts[seal].Union(r)
	}
	rest := ids
	for _, s := range seals {
		// The seal's own row is no fact; a lost one may have had its id.
		add(s.Seal, rest.Within(s.FromID, s.ToID))
		rest = rest.Without(idset.Ranges{{From: s.FromID, To: s.ToID}})
	}
	add(told, rest)
	out := make([]control.Gap, len(order))
	for i, seal := range order {
		missing, exact := parts[seal].Coarse(maxRanges)
		out[i] = control.Gap{Seal: seal, Missing: missing, Rows: parts[seal].Count(), Exact: exact}
	}
	return out
}

// maxRanges is how many ranges of ids a gap keeps; more are kept as fewer,
// wider ones.
const maxRanges = 20_000

// cause judges what probably made the gap.
func (k *Keeper) cause(ctx context.Context, s *tidemarkv1.Suspicion, f findings, seals []evidence.Seal) (control.Cause, error) {
	switch {
	case s.WentBack || len(f.counted) > 0:
		return control.CauseSourceWentBack, nil
	case s.Unchecked:
		return control.CauseTooManyIDs, nil
	case f.all:
		return control.CauseContradiction, nil
	case f.lost > 0 || len(f.missing) == 0:
		return control.CauseRowDeleted, nil
	}
	truncated, err := k.cfg.Healer.truncated(ctx, int(s.Shard), s.Holes)
	if err != nil || truncated {
		return control.CauseTopicTruncated, err
	}
	events, err := k.cfg.Control.FeedEvents(ctx, int(s.Shard), k.intervalStart(ctx, s, seals))
	if err != nil {
		return "", err
	}
	switch {
	case len(events) > 0:
		return events[0].Cause, nil
	case !s.Counted:
		return control.CausePositionJumped, nil // the seal itself, or one before, was lost too
	}
	return control.CauseUnknown, nil
}

// intervalStart is about when the interval in question began.
func (k *Keeper) intervalStart(ctx context.Context, s *tidemarkv1.Suspicion, seals []evidence.Seal) time.Time {
	const clockSkew = 10 * time.Second
	if len(seals) > 0 && seals[0].ToID < s.FromId {
		return seals[0].SealedAt.Add(-clockSkew)
	}
	source, err := k.cfg.Control.Source(ctx, int(s.Shard))
	if err != nil {
		return time.Time{}
	}
	return source.VerifiedAt.Add(-clockSkew)
}

// nameDeletions records the rows up to an id that someone deleted by hand:
// whether or not the feed brought them before, the outbox no longer proves it.
func (k *Keeper) nameDeletions(ctx context.Context, shard int, upTo int64) error {
	for {
		deleted, err := k.cfg.Outbox.UnnamedDeletions(ctx, shard, upTo)
		if err != nil || len(deleted) == 0 {
			return err
		}
		var all []int64
		for _, d := range deleted {
			all = append(all, d.ID)
		}
		ids := idset.Of(all...)
		seals, err := k.cfg.Outbox.Seals(ctx, shard, ids[0].From, ids[len(ids)-1].To)
		if err != nil {
			return err
		}
		source, err := k.cfg.Control.Source(ctx, shard)
		if err != nil {
			return err
		}
		for _, g := range bySeal(max(1, source.VerifiedSeal), relationsOf(deleted), seals) {
			g.Shard, g.Cause, g.FirstSeen = shard, control.CauseRowDeleted, deleted[0].DeletedAt.UTC()
			g.Note = fmt.Sprintf("deleted from the outbox by role %s", deleted[0].DeletedBy)
			if err := k.raise(ctx, g); err != nil {
				return err
			}
		}
		if err := k.cfg.Outbox.NameDeletions(ctx, shard, ids); err != nil {
			return err
		}
	}
}
