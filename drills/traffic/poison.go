package traffic

import (
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// venom makes a sound change useless, and names the reason for which it must
// be set aside.
type venom struct {
	reason tidemarkv1.QuarantineReason
	spoil  func(g *Generator, c *tidemarkv1.RelationChange, m *Message)
}

// venoms are the sorts of poison: one for each check that stands before the
// counting.
var venoms = []venom{
	{tidemarkv1.QuarantineReason_QUARANTINE_REASON_NULL_PAYLOAD, func(_ *Generator, _ *tidemarkv1.RelationChange, m *Message) { m.Value = nil }},
	{tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_RECORD, func(_ *Generator, _ *tidemarkv1.RelationChange, m *Message) {
		m.Value = []byte("\xff\xff\xffno record")
	}},
	{tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_RECORD, func(_ *Generator, _ *tidemarkv1.RelationChange, m *Message) { m.Value = []byte{} }},
	{tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_KIND, func(_ *Generator, c *tidemarkv1.RelationChange, m *Message) {
		c.Kind = 9
		m.Value = encodeRelation(c)
	}},
	{tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_STATE, func(_ *Generator, c *tidemarkv1.RelationChange, m *Message) {
		c.State = 99
		m.Value = encodeRelation(c)
	}},
	{tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_VERSION, func(_ *Generator, c *tidemarkv1.RelationChange, m *Message) {
		c.RelationVersion = 0
		m.Value = encodeRelation(c)
	}},
	{tidemarkv1.QuarantineReason_QUARANTINE_REASON_WRONG_PARTITION, func(g *Generator, _ *tidemarkv1.RelationChange, m *Message) {
		m.Partition = (m.Partition + 1) % int32(g.partitions)
	}},
	{tidemarkv1.QuarantineReason_QUARANTINE_REASON_KEY_MISMATCH, func(_ *Generator, c *tidemarkv1.RelationChange, m *Message) {
		m.Key = []byte(topology.OnPartition(int(c.Placement.Partition), "like:nobody:nothing"))
	}},
	{tidemarkv1.QuarantineReason_QUARANTINE_REASON_ROUTE_EPOCH_MISMATCH, func(_ *Generator, c *tidemarkv1.RelationChange, m *Message) {
		c.Placement.RouteEpoch = 99
		m.Value = encodeRelation(c)
	}},
}

// poison gives a record that no projection can use. Were it used, a count or a
// version would differ from the facts: it is about a relation that exists, at
// a version far above its own.
func (g *Generator) poison() Message {
	v := venoms[g.rnd.IntN(len(venoms))]
	r := g.Relation(g.rnd.IntN(len(g.versions)))
	c := g.describe(r, 1<<40+g.rnd.Uint64N(1<<20), r.Kind.Active())
	m := placed(r, c.Placement, encodeRelation(c))
	v.spoil(g, c, &m)
	m.Poison = v.reason.String()
	return m
}
