package display

import (
	"math"
	"slices"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Apply takes an update of a row's key that stood at inputOffset into the row;
// old is nil for a key never seen. It returns the new row, or nil when the
// update is old news, or why the update cannot be used. It changes neither of
// its arguments.
//
//   - Of a count partition the partial with the highest seq stands. One with a
//     lower seq is old, one with the same seq is a duplicate (I9).
//   - A partial of an older generation than the snapshot's is old. The first
//     of a newer one starts the snapshot afresh.
//   - The snapshot's seq rises by 1 with each partial taken, and never falls.
//   - Of a partition's progress the one with the highest seq stands, and a
//     shard's watermark never falls. The newest barriers stay.
//
// The update must have passed decode.
func Apply(old *tidemarkv1.DisplayRow, update *tidemarkv1.CountUpdate, inputOffset int64) (*tidemarkv1.DisplayRow, *quarantine.Refusal) {
	if p := update.GetProgress(); p != nil {
		next := advance(old.GetProgress(), p)
		if next == nil {
			return nil, nil
		}
		return &tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Progress{Progress: next}}, nil
	}
	next, no := take(old.GetSnapshot(), update.GetPartial(), inputOffset)
	if next == nil {
		return nil, no
	}
	return &tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Snapshot{Snapshot: next}}, nil
}

func take(old *tidemarkv1.DisplaySnapshot, p *tidemarkv1.PartialCount, inputOffset int64) (*tidemarkv1.DisplaySnapshot, *quarantine.Refusal) {
	if p.Generation < old.GetGeneration() {
		return nil, nil
	}
	partials := old.GetPartials()
	if p.Generation > old.GetGeneration() {
		partials = nil
	}
	partials, no := place(partials, p)
	if partials == nil {
		return nil, no
	}
	next := &tidemarkv1.DisplaySnapshot{Partials: partials, Generation: p.Generation, Seq: old.GetSeq() + 1, InputOffset: inputOffset}
	if !sum(next) {
		return nil, quarantine.Refuse(quarantine.MalformedRecord, "the sum over %d partitions does not fit 64 bits", len(partials))
	}
	return next, nil
}

// place gives the partials, one per count partition in ascending order, with p
// among them; nil when p changes nothing.
func place(partials []*tidemarkv1.PartialCount, p *tidemarkv1.PartialCount) ([]*tidemarkv1.PartialCount, *quarantine.Refusal) {
	at, known := slices.BinarySearchFunc(partials, p.Partition, func(q *tidemarkv1.PartialCount, partition uint32) int {
		return int(q.Partition) - int(partition)
	})
	if !known {
		return slices.Insert(slices.Clone(partials), at, p), nil
	}
	have := partials[at]
	switch {
	case p.Seq < have.Seq:
		return nil, nil
	case p.Seq == have.Seq && topology.CountsOfPartial(p) == topology.CountsOfPartial(have):
		return nil, nil
	case p.Seq == have.Seq:
		// A seq is a prefix of a log, and a prefix has one sum.
		return nil, quarantine.Refuse(quarantine.MalformedRecord, "count partition %d says two different counts for seq %d", p.Partition, p.Seq)
	}
	partials = slices.Clone(partials)
	partials[at] = p
	return partials, nil
}

// sum fills what follows from the partials, and tells whether it fits.
func sum(s *tidemarkv1.DisplaySnapshot) bool {
	for _, p := range s.Partials {
		// Hidden ones are no more than active ones, so that they fit as well.
		if s.Active > math.MaxInt64-p.Active || s.Disliked > math.MaxInt64-p.Disliked {
			return false
		}
		s.Active += p.Active
		s.RiskHidden += p.RiskHidden
		s.PolicyHidden += p.PolicyHidden
		s.Disliked += p.Disliked
		s.ManifestId = max(s.ManifestId, p.ManifestId)
		s.GeneratedAtUs = max(s.GeneratedAtUs, p.GeneratedAtUs)
		s.CommittedAtUs = max(s.CommittedAtUs, p.CommittedAtUs)
	}
	return true
}

// advance gives the newer of two progresses of a partition, nil when that is
// old. Its watermarks stand in ascending order of shards.
func advance(old, p *tidemarkv1.PartitionProgress) *tidemarkv1.PartitionProgress {
	if old != nil && p.Seq <= old.Seq {
		return nil
	}
	next := &tidemarkv1.PartitionProgress{Partition: p.Partition, Seq: p.Seq, Watermarks: slices.Clone(p.Watermarks)}
	for _, have := range old.GetWatermarks() {
		at := slices.IndexFunc(next.Watermarks, func(w *tidemarkv1.SourceWatermark) bool { return w.Shard == have.Shard })
		switch {
		case at < 0:
			next.Watermarks = append(next.Watermarks, have)
		case next.Watermarks[at].Seal < have.Seal:
			next.Watermarks[at] = have
		}
	}
	slices.SortFunc(next.Watermarks, func(a, b *tidemarkv1.SourceWatermark) int { return int(a.Shard) - int(b.Shard) })
	next.Barriers = topology.NewestBarriers(old.GetBarriers(), p.Barriers)
	return next
}
