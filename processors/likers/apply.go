package likers

import (
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Effects are what a change does to the ordered list of its target: the entry
// to take out and the one to put in, each by the relation's liked-at time in
// microseconds; 0 for none.
type Effects struct{ Remove, Add int64 }

// Apply takes a change to a relation, of which nil is one that was never seen.
// It returns the relation to write, or nil when the change alters nothing:
//
//   - a version not above the known one is old or a duplicate, and an ended
//     relation keeps its version, so that no late like exposes the user again
//     (I14, I3);
//   - a change to the counted state enters the list with its own
//     stateChangedAt, also over a counted state: between the two versions lies
//     a cancel that has not come yet;
//   - a change to any other state leaves the list, by the time with which the
//     relation entered it.
//
// Nothing else tells the time: not when the change was produced, delivered or
// handled.
func Apply(old *tidemarkv1.LikerRelation, c *tidemarkv1.RelationChange) (*tidemarkv1.LikerRelation, Effects) {
	if c.RelationVersion <= old.GetVersion() {
		return nil, Effects{}
	}
	next := &tidemarkv1.LikerRelation{State: c.State, Version: c.RelationVersion}
	if topology.State(c.State) == topology.Kind(c.Kind).Active() {
		next.CurrentLikedAtUs = c.StateChangedAtUs
	}
	return next, Effects{Remove: old.GetCurrentLikedAtUs(), Add: next.CurrentLikedAtUs}
}
