package projection

import (
	"fmt"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// State is what the table holds of a relation and of its bucket; nil for what
// was never seen. The first sight of a relation is its kind's initial state,
// version 0 (C1).
type State struct {
	Relation *tidemarkv1.ProjectedRelation
	Bucket   *tidemarkv1.BucketCount
}

// Input is where a change stood: its offset, in which incarnation of the input
// topic. Offsets of different incarnations cannot be compared.
type Input struct {
	Epoch  uint32
	Offset int64
}

// includes tells whether a bucket's counts have the effect of an input.
func includes(b *tidemarkv1.BucketCount, in Input) bool {
	return b.Seq > 0 && b.InputEpoch == in.Epoch && in.Offset <= b.InputOffset
}

// Apply counts a change that stood at in. It returns the row to
// write, or nil when the change alters nothing:
//
//   - a version not above the projected one is old or a duplicate (I2, I3);
//   - the same state and hiding again moves the version but no count (I4, I5);
//   - the delta is between the projected state and hiding and the absolute ones
//     of the change, whatever lay between (I6: nothing that a client or an event
//     says is added);
//   - an input that the bucket already includes is never counted again: it
//     restores a relation that the log has lost and leaves the bucket as it is.
//
// A count that would go below zero, or hide more than there is, is ErrNegative:
// the bucket is wrong and must be rebuilt, not clamped (C6).
func Apply(old State, c *tidemarkv1.RelationChange, in Input) (*tidemarkv1.ProjectedRelation, error) {
	if c.RelationVersion <= old.Relation.GetVersion() {
		return nil, nil
	}
	bucket := new(tidemarkv1.BucketCount)
	if old.Bucket != nil {
		bucket = old.Bucket
	}
	next := &tidemarkv1.ProjectedRelation{
		State:            c.State,
		Version:          c.RelationVersion,
		StateChangedAtUs: c.StateChangedAtUs,
		Position:         c.Position,
		InputOffset:      in.Offset,
		RouteEpoch:       c.Placement.GetRouteEpoch(),
		Generation:       c.Placement.GetGeneration(),
		CommittedAtUs:    c.CommittedAtUs,
		Hidden:           c.Hidden,
		HiddenReason:     c.HiddenReason,
		Bucket:           bucket,
	}
	if includes(bucket, in) {
		return next, nil
	}
	counts := topology.CountsOfBucket(bucket).Plus(counted(c.State, c.Hidden)).Minus(counted(old.Relation.GetState(), old.Relation.GetHidden()))
	if !counts.Possible() {
		return nil, fmt.Errorf("%w: %v after event %d of the bucket", ErrNegative, counts, bucket.Seq+1)
	}
	next.Bucket = &tidemarkv1.BucketCount{
		Active:       counts.Raw,
		RiskHidden:   counts.RiskHidden,
		PolicyHidden: counts.PolicyHidden,
		Disliked:     counts.Disliked,
		Seq:          bucket.Seq + 1,
		InputOffset:  in.Offset,
		InputEpoch:   in.Epoch,
	}
	return next, nil
}

// counted is what a relation adds to its bucket; one never seen adds nothing.
func counted(s tidemarkv1.State, h tidemarkv1.Hidden) topology.Counts {
	return topology.Counted(topology.State(s), topology.Hidden(h))
}
