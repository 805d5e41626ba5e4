package projection

import (
	"errors"
	"fmt"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// ErrNegative says that a bucket would count below zero.
var ErrNegative = errors.New("a bucket would be negative")

// refusal is why a record cannot be counted; it goes to quarantine.
type refusal struct {
	reason tidemarkv1.QuarantineReason
	detail string
}

func (r *refusal) Error() string { return r.detail }

func refuse(reason tidemarkv1.QuarantineReason, format string, a ...any) *refusal {
	return &refusal{reason, fmt.Sprintf(format, a...)}
}

// decode reads a record of bucket-changes and checks that it belongs where it
// was found: its key, its placement, the partition and the route of its bucket
// must agree (I12, G13 of the bug log).
func decode(m topology.Manifest, r topology.Record, change *tidemarkv1.BucketChange) *refusal {
	if r.Value == nil {
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_NULL_PAYLOAD, "a bucket change has no value")
	}
	if err := change.UnmarshalVT(r.Value); err != nil {
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_RECORD, "not a BucketChange")
	}
	switch body := change.Body.(type) {
	case *tidemarkv1.BucketChange_Relation:
		return checkRelation(m, r, body.Relation)
	case *tidemarkv1.BucketChange_Watermark:
		return checkWatermark(r, body.Watermark)
	}
	return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_RECORD, "a BucketChange of an unknown sort")
}

func checkRelation(m topology.Manifest, r topology.Record, c *tidemarkv1.RelationChange) *refusal {
	state := topology.State(c.State)
	kind := topology.Kind(c.Kind)
	switch {
	case !kind.Valid():
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_KIND, "kind %d is unknown", c.Kind)
	case state.Kind() != kind:
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_STATE, "state %d is no state of a %v", c.State, kind)
	case c.RelationVersion == 0:
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_VERSION, "relation version is 0")
	case c.Placement == nil:
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_RECORD, "the change has no placement")
	}
	p := c.Placement
	rel := topology.Relation{Kind: kind, User: c.UserId, Target: c.TargetId}
	switch {
	case int(p.Partition) != r.Partition:
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_WRONG_PARTITION, "placed on partition %d, found on %d", p.Partition, r.Partition)
	case !isCountedKey(r.Key, p, rel):
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_KEY_MISMATCH, "the key is not that of its relation and placement")
	case p.Generation != m.Generation || p.BucketSpace != m.BucketSpace:
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_ROUTE_EPOCH_MISMATCH, "generation %d in space %d, this projection is generation %d in space %d", p.Generation, p.BucketSpace, m.Generation, m.BucketSpace)
	case int(p.VirtualBucket) >= len(m.Routes):
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_ROUTE_EPOCH_MISMATCH, "bucket %d of %d", p.VirtualBucket, len(m.Routes))
	}
	route := m.Routes[p.VirtualBucket]
	if route.Partition != r.Partition || route.Epoch != p.RouteEpoch {
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_ROUTE_EPOCH_MISMATCH, "bucket %d came with epoch %d to partition %d, its route is epoch %d on %d", p.VirtualBucket, p.RouteEpoch, r.Partition, route.Epoch, route.Partition)
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

func checkWatermark(r topology.Record, w *tidemarkv1.SourceWatermark) *refusal {
	partition, shard, ok := topology.ParseWatermarkKey(r.Key)
	switch {
	case !ok || shard != int(w.Shard):
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_KEY_MISMATCH, "the key is not that of a watermark of shard %d", w.Shard)
	case partition != r.Partition:
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_WRONG_PARTITION, "a watermark for partition %d was found on %d", partition, r.Partition)
	case w.Seal == 0:
		return refuse(tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_VERSION, "seal is 0")
	}
	return nil
}
