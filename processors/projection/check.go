package projection

import (
	"errors"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// ErrNegative says that a bucket would count below zero, or hide more than it
// has.
var ErrNegative = errors.New("a bucket would be negative")

// decode reads a record of bucket-changes and checks that it belongs where it
// was found: its key, its placement, the partition and the route of its bucket
// must agree (I12, G13 of the bug log).
func decode(m topology.Manifest, r topology.Record, change *tidemarkv1.BucketChange) *quarantine.Refusal {
	if r.Value == nil {
		return quarantine.Refuse(quarantine.NullPayload, "a bucket change has no value")
	}
	// Its texts share r.Value's bytes; the handler keeps none of them.
	if err := change.UnmarshalVTUnsafe(r.Value); err != nil {
		return quarantine.Refuse(quarantine.MalformedRecord, "not a BucketChange")
	}
	switch body := change.Body.(type) {
	case *tidemarkv1.BucketChange_Relation:
		return checkRelation(m, r, body.Relation)
	case *tidemarkv1.BucketChange_Watermark:
		return quarantine.CheckWatermark(r, body.Watermark)
	}
	return quarantine.Refuse(quarantine.MalformedRecord, "a BucketChange of an unknown sort")
}

func checkRelation(m topology.Manifest, r topology.Record, c *tidemarkv1.RelationChange) *quarantine.Refusal {
	state := topology.State(c.State)
	kind := topology.Kind(c.Kind)
	switch {
	case !kind.Valid():
		return quarantine.Refuse(quarantine.UnknownKind, "kind %d is unknown", c.Kind)
	case state.Kind() != kind:
		return quarantine.Refuse(quarantine.UnknownState, "state %d is no state of a %v", c.State, kind)
	case c.RelationVersion == 0:
		return quarantine.Refuse(quarantine.InvalidVersion, "relation version is 0")
	case c.Placement == nil:
		return quarantine.Refuse(quarantine.MalformedRecord, "the change has no placement")
	}
	if no := quarantine.CheckHiding(state, topology.HidingOf(c.Hidden, c.HiddenReason)); no != nil {
		return no
	}
	p := c.Placement
	rel := topology.Relation{Kind: kind, User: c.UserId, Target: c.TargetId}
	switch {
	case int(p.Partition) != r.Partition:
		return quarantine.Refuse(quarantine.WrongPartition, "placed on partition %d, found on %d", p.Partition, r.Partition)
	case !isCountedKey(r.Key, p, rel):
		return quarantine.Refuse(quarantine.KeyMismatch, "the key is not that of its relation and placement")
	case p.Generation != m.Generation || p.BucketSpace != m.BucketSpace:
		return quarantine.Refuse(quarantine.RouteEpochMismatch, "generation %d in space %d, this projection is generation %d in space %d", p.Generation, p.BucketSpace, m.Generation, m.BucketSpace)
	case int(p.VirtualBucket) >= len(m.Routes):
		return quarantine.Refuse(quarantine.RouteEpochMismatch, "bucket %d of %d", p.VirtualBucket, len(m.Routes))
	}
	route := m.Routes[p.VirtualBucket]
	if route.Partition != r.Partition || route.Epoch != p.RouteEpoch {
		return quarantine.Refuse(quarantine.RouteEpochMismatch, "bucket %d came with epoch %d to partition %d, its route is epoch %d on %d", p.VirtualBucket, p.RouteEpoch, r.Partition, route.Epoch, route.Partition)
	}
	return nil
}

// isCountedKey compares without building the key.
func isCountedKey(key string, p *tidemarkv1.Placement, r topology.Relation) bool {
	partition, rest, ok := topology.CutPartition(key)
	if !ok || partition != int(p.Partition) {
		return false
	}
	bucket, rest, ok := topology.CutPartition(rest)
	if !ok || bucket != int(p.VirtualBucket) {
		return false
	}
	var buf [128]byte
	return string(r.AppendKey(buf[:0])) == rest
}
