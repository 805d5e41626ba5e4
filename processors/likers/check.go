package likers

import (
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// decode reads a record of liker-changes and checks that it belongs where it
// was found: its key, its placement and its partition must be those of its
// relation under the reverse generation (I15, G13 of the bug log).
func decode(g topology.ReverseGeneration, r topology.Record, change *tidemarkv1.LikerChange) *quarantine.Refusal {
	if r.Value == nil {
		return quarantine.Refuse(quarantine.NullPayload, "a liker change has no value")
	}
	// Its texts share r.Value's bytes; the handler keeps none of them.
	if err := change.UnmarshalVTUnsafe(r.Value); err != nil {
		return quarantine.Refuse(quarantine.MalformedRecord, "not a LikerChange")
	}
	switch body := change.Body.(type) {
	case *tidemarkv1.LikerChange_Relation:
		return checkRelation(g, r, body.Relation)
	case *tidemarkv1.LikerChange_Watermark:
		return quarantine.CheckWatermark(r, body.Watermark)
	}
	return quarantine.Refuse(quarantine.MalformedRecord, "a LikerChange of an unknown sort")
}

func checkRelation(g topology.ReverseGeneration, r topology.Record, c *tidemarkv1.RelationChange) *quarantine.Refusal {
	kind, state := topology.Kind(c.Kind), topology.State(c.State)
	rel := topology.Relation{Kind: kind, User: c.UserId, Target: c.TargetId}
	switch {
	case !kind.Valid():
		return quarantine.Refuse(quarantine.UnknownKind, "kind %d is unknown", c.Kind)
	case state.Kind() != kind:
		return quarantine.Refuse(quarantine.UnknownState, "state %d is no state of a %v", c.State, kind)
	case rel.Check() != nil:
		return quarantine.Refuse(quarantine.InvalidID, "%v", rel.Check())
	case c.RelationVersion == 0:
		return quarantine.Refuse(quarantine.InvalidVersion, "relation version is 0")
	case c.StateChangedAtUs <= 0:
		return quarantine.Refuse(quarantine.InvalidTime, "state changed at %d µs", c.StateChangedAtUs)
	case c.Reverse == nil:
		return quarantine.Refuse(quarantine.MalformedRecord, "the change has no reverse placement")
	}
	return checkPlace(g, r, rel, c.Reverse)
}

func checkPlace(g topology.ReverseGeneration, r topology.Record, rel topology.Relation, p *tidemarkv1.ReversePlacement) *quarantine.Refusal {
	shard := g.Shard(rel.User)
	partition := g.Partition(rel.Kind, rel.Target, shard)
	switch {
	case p.Generation != g.ID:
		return quarantine.Refuse(quarantine.GenerationMismatch, "placed by reverse generation %d, this index is generation %d", p.Generation, g.ID)
	case int(p.ReverseShard) != shard || int(p.Partition) != partition:
		return quarantine.Refuse(quarantine.GenerationMismatch, "placed in reverse shard %d on partition %d, generation %d has it in %d on %d", p.ReverseShard, p.Partition, g.ID, shard, partition)
	case partition != r.Partition:
		return quarantine.Refuse(quarantine.WrongPartition, "placed on partition %d, found on %d", partition, r.Partition)
	case !isLikerKey(r.Key, p, rel):
		return quarantine.Refuse(quarantine.KeyMismatch, "the key is not that of its relation and placement")
	}
	return nil
}

// isLikerKey compares without building the key.
func isLikerKey(key string, p *tidemarkv1.ReversePlacement, rel topology.Relation) bool {
	partition, generation, shard, rest, ok := topology.CutLikerKey(key)
	if !ok || partition != int(p.Partition) || generation != int(p.Generation) || shard != int(p.ReverseShard) {
		return false
	}
	var buf [128]byte
	return string(rel.AppendKey(buf[:0])) == rest
}
