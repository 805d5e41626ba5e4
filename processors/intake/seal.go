package intake

import (
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
)

// sealReasons are the members of seals and proofs whose wrong type has a
// reason of its own.
var sealReasons = map[string]quarantine.Reason{
	"seal":      quarantine.InvalidVersion,
	"sealedAt":  quarantine.InvalidTime,
	"barrierId": quarantine.InvalidID,
}

// decodeSeal reads a seal: the shard's stream is complete up to here.
func (m *message) decodeSeal(r topology.Record) *quarantine.Refusal {
	if string(m.env.eventType) != topology.TypeSealed {
		return quarantine.Refuse(quarantine.UnknownAggregate, "the type of a seal row is not %s", topology.TypeSealed)
	}
	var s struct {
		Seal      uint64 `json:"seal"`
		SealedAt  string `json:"sealedAt"`
		BarrierID string `json:"barrierId"`
	}
	if no := unmarshalPayload(m.env.payload, &s, sealReasons); no != nil {
		return no
	}
	if no := checkSealNumber(r.Key, topology.AggregateSeal, s.Seal); no != nil {
		return no
	}
	sealedAt, no := micros([]byte(s.SealedAt), "sealedAt")
	if no != nil {
		return no
	}
	if s.BarrierID != "" {
		if err := topology.CheckID(s.BarrierID); err != nil {
			return quarantine.Refuse(quarantine.InvalidID, "barrierId %v", err)
		}
	}
	m.aggregate = topology.AggregateSeal
	w := &m.mark
	w.Shard, w.Seal, w.SealedAtUs, w.BarrierId = uint32(r.Partition), s.Seal, sealedAt, s.BarrierID
	w.Position, w.CdcOffset = &m.position, r.Offset
	return nil
}

// decodeProof reads the proof of a seal: what the settled interval holds. The
// ledger compares it.
func (m *message) decodeProof(r topology.Record) *quarantine.Refusal {
	if string(m.env.eventType) != topology.TypeSealProven {
		return quarantine.Refuse(quarantine.UnknownAggregate, "the type of a proof row is not %s", topology.TypeSealProven)
	}
	m.proof = topology.SealProof{}
	p := &m.proof
	if no := unmarshalPayload(m.env.payload, p, sealReasons); no != nil {
		return no
	}
	if no := checkSealNumber(r.Key, topology.AggregateProof, p.Seal); no != nil {
		return no
	}
	if p.FromID < 1 || p.ToID < p.FromID || p.Rows < 0 || p.Rows > p.ToID-p.FromID {
		return quarantine.Refuse(quarantine.MalformedPayload, "the proof's interval and row count do not fit")
	}
	m.aggregate = topology.AggregateProof
	return nil
}

// sighting is what the decoded record tells its shard's ledger. A relation row
// that is set aside has been received too: it is the quarantine that names it.
func (m *message) sighting() sighting {
	s := sighting{id: m.env.outboxID}
	switch {
	case !m.placed:
		return sighting{}
	case string(m.env.aggregateType) == topology.AggregateRelation:
		s.kind, s.blind = sawRelation, !m.eventRead
		if m.eventRead {
			s.hash = xxhash.Sum64(m.event.eventID)
		}
	case m.aggregate == topology.AggregateSeal:
		s.kind, s.seal = sawSeal, m.mark.Seal
	case m.aggregate == topology.AggregateProof:
		s.kind, s.proof = sawProof, m.proof
	default:
		s.kind = sawOther
	}
	return s
}

// checkSealNumber wants a number from 1 that is also in the key, such as
// seal:4711.
func checkSealNumber(key, aggregate string, seal uint64) *quarantine.Refusal {
	if seal == 0 {
		return quarantine.Refuse(quarantine.InvalidVersion, "the seal number is 0 or absent")
	}
	if key != aggregate+":"+strconv.FormatUint(seal, 10) {
		return quarantine.Refuse(quarantine.KeyMismatch, "the key is not %s:<seal number>", aggregate)
	}
	return nil
}
