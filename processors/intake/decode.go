package intake

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// message is a record of cdc that stands up to every check. Exactly one of the
// bodies is set, by aggregate; they are kept for the next record.
type message struct {
	aggregate string // of topology's aggregate types
	slow      bool   // some part was not in the usual shape
	placed    bool   // the envelope is right and in its shard's partition
	eventRead bool   // the event's members are in event

	relation topology.Relation
	change   tidemarkv1.RelationChange
	mark     tidemarkv1.SourceWatermark
	proof    topology.SealProof

	position tidemarkv1.SourcePosition
	env      envelope
	event    event
	key      []byte
}

// operation tells whether an op is one that can stand in an outbox: an
// insert, or the same row read by a snapshot.
func operation(op string) bool { return op == "c" || op == "r" }

// decode fills m from r, or says why r cannot be used. It is a function of r
// alone.
func (m *message) decode(r topology.Record) *quarantine.Refusal {
	m.slow, m.placed, m.eventRead, m.aggregate = false, false, false, ""
	if r.Value == nil {
		return quarantine.Refuse(quarantine.NullPayload, "the record has no value")
	}
	if len(r.Value) > topology.MaxEnvelopeBytes {
		return quarantine.Refuse(quarantine.Oversized, "the value has %d bytes, more than %d", len(r.Value), topology.MaxEnvelopeBytes)
	}
	slow, no := m.env.read(r.Value)
	if m.slow = slow; no != nil {
		return no
	}
	if no := m.checkEnvelope(r); no != nil {
		return no
	}
	m.placed = true
	switch string(m.env.aggregateType) {
	case topology.AggregateRelation:
		return m.decodeRelation(r)
	case topology.AggregateSeal:
		return m.decodeSeal(r)
	case topology.AggregateProof:
		return m.decodeProof(r)
	}
	return quarantine.Refuse(quarantine.UnknownAggregate, "the aggregate type is none of relation, seal, proof")
}

func (m *message) checkEnvelope(r topology.Record) *quarantine.Refusal {
	e := &m.env
	switch {
	case !operation(string(e.op)):
		return quarantine.Refuse(quarantine.UnknownOperation, "op is neither c nor r")
	case e.outboxID < 1:
		return quarantine.Refuse(quarantine.MalformedEnvelope, "after.id is below 1")
	case string(e.aggregateID) != r.Key:
		return quarantine.Refuse(quarantine.KeyMismatch, "the key is not after.aggregateid")
	case e.sourceShard != int64(r.Partition):
		return quarantine.Refuse(quarantine.WrongPartition, "after.source_shard is %d, the record lies in partition %d", e.sourceShard, r.Partition)
	case e.committedAtUs < 1 || e.committedAtUs > maxMicros:
		return quarantine.Refuse(quarantine.InvalidTime, "source.ts_us is not a time after 1970")
	}
	if _, no := micros(e.createdAt, "after.created_at"); no != nil {
		return no
	}
	return m.decodePosition(r)
}

// decodePosition reads source.sequence, a JSON text such as ["17","42"] or
// [null,"42"], whose second number is source.lsn.
func (m *message) decodePosition(r topology.Record) *quarantine.Refusal {
	previous, lsn, ok := scanSequence(m.env.sequence)
	if !ok {
		if previous, lsn, ok = unmarshalSequence(m.env.sequence); !ok {
			return quarantine.Refuse(quarantine.InvalidPosition, "source.sequence is not a pair of log positions")
		}
	}
	switch {
	case lsn == 0:
		return quarantine.Refuse(quarantine.InvalidPosition, "the log position is 0")
	case m.env.lsn < 1 || lsn != uint64(m.env.lsn):
		return quarantine.Refuse(quarantine.InvalidPosition, "source.lsn is not the second number of source.sequence")
	}
	m.position.Shard, m.position.PreviousCommitLsn, m.position.Lsn = uint32(r.Partition), previous, lsn
	return nil
}

func scanSequence(b []byte) (previous, lsn uint64, ok bool) {
	s := scanner{b: b}
	s.take('[')
	if s.space() == 'n' {
		s.null()
	} else {
		previous = decimal(&s)
	}
	s.take(',')
	lsn = decimal(&s)
	s.take(']')
	return previous, lsn, s.end()
}

// decimal reads a string that holds a natural number.
func decimal(s *scanner) uint64 {
	digits := scanner{b: s.str()}
	n := digits.natural()
	if digits.bad || digits.i != len(digits.b) || digits.b[0] == ' ' {
		s.fail()
	}
	return uint64(n)
}

func unmarshalSequence(b []byte) (previous, lsn uint64, ok bool) {
	var pair []*string
	if json.Unmarshal(b, &pair) != nil || len(pair) != 2 || pair[1] == nil {
		return 0, 0, false
	}
	var err error
	if pair[0] != nil {
		if previous, err = strconv.ParseUint(*pair[0], 10, 64); err != nil {
			return 0, 0, false
		}
	}
	lsn, err = strconv.ParseUint(*pair[1], 10, 64)
	return previous, lsn, err == nil
}

func (m *message) decodeRelation(r topology.Record) *quarantine.Refusal {
	if string(m.env.eventType) != topology.TypeRelationChanged {
		return quarantine.Refuse(quarantine.UnknownAggregate, "the type of a relation row is not %s", topology.TypeRelationChanged)
	}
	slow, no := m.event.read(m.env.payload)
	m.slow = m.slow || slow
	if no != nil {
		return no
	}
	m.eventRead = true
	state, previous, no := m.event.states()
	if no != nil {
		return no
	}
	hiding, no := m.event.hiding(state)
	if no != nil {
		return no
	}
	if no := m.checkIDs(r); no != nil {
		return no
	}
	if m.event.sourceShard != int64(r.Partition) {
		return quarantine.Refuse(quarantine.WrongPartition, "sourceShard is %d, the record lies in partition %d", m.event.sourceShard, r.Partition)
	}
	changedAt, no := micros(m.event.stateChangedAt, "stateChangedAt")
	if no != nil {
		return no
	}
	m.aggregate = topology.AggregateRelation
	c := &m.change
	c.Kind = tidemarkv1.Kind(m.relation.Kind)
	c.UserId, c.TargetId = m.relation.User, m.relation.Target
	c.RelationVersion = m.event.version
	c.State, c.PreviousState = tidemarkv1.State(state), tidemarkv1.State(previous)
	c.StateChangedAtUs = changedAt
	c.Hidden, c.HiddenReason = tidemarkv1.Hidden(hiding.By), hiding.Reason
	c.Position = &m.position
	c.OutboxId = m.env.outboxID
	c.CdcOffset = r.Offset
	c.CommittedAtUs = m.env.committedAtUs
	c.Placement = nil
	return nil
}

// states reads kind, states and version. The previous state is for audit only
// and may be absent.
func (e *event) states() (state, previous topology.State, _ *quarantine.Refusal) {
	kind, ok := kindsByName[string(e.kind)]
	if !ok {
		return 0, 0, quarantine.Refuse(quarantine.UnknownKind, "kind is none of like, favorite, follow")
	}
	state = statesByName[string(e.state)]
	if state.Kind() != kind {
		return 0, 0, quarantine.Refuse(quarantine.UnknownState, "absoluteState is not a state of a %s", kind)
	}
	previous = statesByName[string(e.previousState)]
	if len(e.previousState) > 0 && previous.Kind() != kind {
		return 0, 0, quarantine.Refuse(quarantine.UnknownState, "previousState is not a state of a %s", kind)
	}
	if e.version == 0 {
		return 0, 0, quarantine.Refuse(quarantine.InvalidVersion, "relationVersion is 0 or absent")
	}
	return state, previous, nil
}

// hiding reads whether the relation is hidden; an event without its members is
// of one that is shown.
func (e *event) hiding(state topology.State) (h topology.Hiding, _ *quarantine.Refusal) {
	by, err := topology.ParseHidden(string(e.hidden))
	if err != nil {
		return h, quarantine.Refuse(quarantine.InvalidHiding, "hidden is neither risk nor policy")
	}
	h = topology.Hiding{By: by, Reason: string(e.hiddenReason)}
	return h, quarantine.CheckHiding(state, h)
}

// checkIDs reads the ids, which must be those of the key.
func (m *message) checkIDs(r topology.Record) *quarantine.Refusal {
	m.relation = topology.Relation{
		Kind:   kindsByName[string(m.event.kind)],
		User:   string(m.event.userID),
		Target: string(m.event.targetID),
	}
	m.change.EventId = string(m.event.eventID)
	if err := topology.CheckID(m.change.EventId); err != nil {
		return quarantine.Refuse(quarantine.InvalidID, "eventId %v", err)
	}
	if err := topology.CheckID(m.relation.User); err != nil {
		return quarantine.Refuse(quarantine.InvalidID, "userId %v", err)
	}
	if err := topology.CheckID(m.relation.Target); err != nil {
		return quarantine.Refuse(quarantine.InvalidID, "targetId %v", err)
	}
	m.key = m.relation.AppendKey(m.key[:0])
	switch {
	case string(m.key) != r.Key:
		return quarantine.Refuse(quarantine.KeyMismatch, "the key is not that of kind, userId and targetId")
	case string(m.event.aggregateKey) != r.Key:
		return quarantine.Refuse(quarantine.KeyMismatch, "the key is not aggregateKey")
	}
	return nil
}

// maxMicros is the last microsecond of the year 9999.
const maxMicros = 253402300800_000000 - 1

// micros reads an RFC 3339 time after 1970.
func micros(b []byte, field string) (int64, *quarantine.Refusal) {
	var t time.Time
	if t.UnmarshalText(b) != nil {
		return 0, quarantine.Refuse(quarantine.InvalidTime, "%s is not an RFC 3339 time", field)
	}
	if us := t.UnixMicro(); us > 0 && us <= maxMicros {
		return us, nil
	}
	return 0, quarantine.Refuse(quarantine.InvalidTime, "%s is not a time after 1970", field)
}
