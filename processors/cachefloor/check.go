package cachefloor

import (
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// known is a relation's state of a version, from either input.
type known struct {
	relation   topology.Relation
	key        string // of the relation
	state      topology.State
	version    uint64
	generation uint64 // the one that it is for; 0: every live one
}

// readFact reads a record of facts and checks that it belongs where it was found.
func readFact(r topology.Record) (known, *quarantine.Refusal) {
	var c tidemarkv1.RelationChange
	if no := decode(r, &c); no != nil {
		return known{}, no
	}
	k := known{
		relation: topology.Relation{Kind: topology.Kind(c.Kind), User: c.UserId, Target: c.TargetId},
		state:    topology.State(c.State), version: c.RelationVersion,
	}
	return k.checked(r)
}

// readKnown reads the relation of a task.
func readKnown(r topology.Record, c *tidemarkv1.KnownRelation) (known, *quarantine.Refusal) {
	k := known{
		relation: topology.Relation{Kind: topology.Kind(c.Kind), User: c.UserId, Target: c.TargetId},
		state:    topology.State(c.State), version: c.Version, generation: c.Generation,
	}
	if k.generation == 0 {
		return known{}, quarantine.Refuse(quarantine.InvalidVersion, "a known relation is for no generation")
	}
	return k.checked(r)
}

// ofUser are a user's relations of a kind.
type ofUser struct {
	kind topology.Kind
	user string
}

// readUnknown reads the user of a task.
func readUnknown(r topology.Record, u *tidemarkv1.UnknownUser) (ofUser, *quarantine.Refusal) {
	of := ofUser{topology.Kind(u.Kind), u.UserId}
	switch {
	case u.Generation == 0:
		return of, quarantine.Refuse(quarantine.InvalidVersion, "a user's relations are for no generation")
	case !of.kind.Valid():
		return of, quarantine.Refuse(quarantine.UnknownKind, "kind %d is unknown", of.kind)
	case topology.CheckID(of.user) != nil:
		return of, quarantine.Refuse(quarantine.InvalidID, "the user's id %v", topology.CheckID(of.user))
	case r.Key != topology.OnPartition(r.Partition, topology.RelationsKey(of.kind, of.user)):
		return of, quarantine.Refuse(quarantine.KeyMismatch, "the key is not that of the user's relations on this partition")
	}
	return of, nil
}

func (k known) checked(r topology.Record) (known, *quarantine.Refusal) {
	switch {
	case !k.relation.Kind.Valid():
		return k, quarantine.Refuse(quarantine.UnknownKind, "kind %d is unknown", k.relation.Kind)
	case k.state.Kind() != k.relation.Kind:
		return k, quarantine.Refuse(quarantine.UnknownState, "state %d is no state of a %v", k.state, k.relation.Kind)
	case k.relation.Check() != nil:
		return k, quarantine.Refuse(quarantine.InvalidID, "%v", k.relation.Check())
	case k.version == 0 || k.version > maxVersion:
		return k, quarantine.Refuse(quarantine.InvalidVersion, "relation version %d is not in 1..%d", k.version, uint64(maxVersion))
	}
	partition, rest, ok := topology.CutPartition(r.Key)
	var buf [128]byte
	switch {
	case !ok || rest != string(k.relation.AppendKey(buf[:0])):
		return k, quarantine.Refuse(quarantine.KeyMismatch, "the key is not that of its relation")
	case partition != r.Partition:
		return k, quarantine.Refuse(quarantine.WrongPartition, "the key names partition %d, it was found on %d", partition, r.Partition)
	}
	k.key = rest
	return k, nil
}

// checkLive checks a generation's begin or end.
func checkLive(r topology.Record, generation uint64) *quarantine.Refusal {
	switch {
	case generation == 0 || generation > maxGeneration:
		return quarantine.Refuse(quarantine.InvalidVersion, "cache generation %d is not in 1..%d", generation, uint64(maxGeneration))
	case r.Key != topology.CacheGenerationKey(r.Partition, generation):
		return quarantine.Refuse(quarantine.KeyMismatch, "the key is not that of generation %d on this partition", generation)
	}
	return nil
}

func decode(r topology.Record, into interface{ UnmarshalVT([]byte) error }) *quarantine.Refusal {
	if r.Value == nil {
		return quarantine.Refuse(quarantine.NullPayload, "the record has no value")
	}
	if into.UnmarshalVT(r.Value) != nil {
		return quarantine.Refuse(quarantine.MalformedRecord, "the value is not what the stream holds")
	}
	return nil
}
