package intake

import (
	"encoding/json"
	"errors"
	"unicode/utf8"

	"github.com/tidemark/tidemark/internal/quarantine"
)

// envelope is what intake needs of a Debezium envelope of an outbox row.
type envelope struct {
	op            []byte
	outboxID      int64
	aggregateType []byte
	aggregateID   []byte
	eventType     []byte
	payload       []byte
	sourceShard   int64
	createdAt     []byte
	sequence      []byte
	lsn           int64
	committedAtUs int64

	buf []byte // holds what had escapes; kept for the next record
}

// Members that an envelope must have.
const (
	seenOp = 1 << iota
	seenAfter
	seenSource
	seenID
	seenAggregateType
	seenAggregateID
	seenType
	seenPayload
	seenSourceShard
	seenCreatedAt
	seenSequence
	seenLSN
	seenTsUs
	seenWholeEnvelope = 1<<iota - 1
)

// read fills e from an envelope. slow tells that its shape was not the usual
// one, so that encoding/json read it, at several times the cost.
func (e *envelope) read(b []byte) (slow bool, _ *quarantine.Refusal) {
	if !utf8.Valid(b) {
		return true, quarantine.Refuse(quarantine.MalformedEnvelope, "the envelope is not UTF-8")
	}
	if e.scan(b) {
		return false, nil
	}
	return true, e.unmarshal(b)
}

// scan reads an envelope with exactly the members of topology.Envelope, in any
// order.
func (e *envelope) scan(b []byte) bool {
	s, seen := scanner{b: b}, uint32(0)
	e.buf = e.buf[:0]
	s.take('{')
	for first := true; s.next(first); first = false {
		switch string(s.key()) {
		case "after":
			s.once(&seen, seenAfter)
			e.scanAfter(&s, &seen)
		case "source":
			s.once(&seen, seenSource)
			e.scanSource(&s, &seen)
		case "op":
			s.once(&seen, seenOp)
			e.op = s.str()
		case "before", "transaction":
			s.null()
		case "ts_ms", "ts_us", "ts_ns":
			s.skip()
		default:
			s.fail()
		}
	}
	return s.end() && seen == seenWholeEnvelope
}

func (e *envelope) scanAfter(s *scanner, seen *uint32) {
	s.take('{')
	for first := true; s.next(first); first = false {
		switch string(s.key()) {
		case "id":
			s.once(seen, seenID)
			e.outboxID = s.natural()
		case "aggregatetype":
			s.once(seen, seenAggregateType)
			e.aggregateType = s.str()
		case "aggregateid":
			s.once(seen, seenAggregateID)
			e.aggregateID = e.text(s)
		case "type":
			s.once(seen, seenType)
			e.eventType = s.str()
		case "payload":
			s.once(seen, seenPayload)
			e.payload = e.text(s)
		case "source_shard":
			s.once(seen, seenSourceShard)
			e.sourceShard = s.natural()
		case "created_at":
			s.once(seen, seenCreatedAt)
			e.createdAt = s.str()
		default:
			s.fail()
		}
	}
}

func (e *envelope) scanSource(s *scanner, seen *uint32) {
	s.take('{')
	for first := true; s.next(first); first = false {
		switch string(s.key()) {
		case "sequence":
			s.once(seen, seenSequence)
			e.sequence = e.text(s)
		case "lsn":
			s.once(seen, seenLSN)
			e.lsn = s.natural()
		case "ts_us":
			s.once(seen, seenTsUs)
			e.committedAtUs = s.natural()
		case "version", "connector", "name", "ts_ms", "snapshot", "db", "ts_ns", "schema", "table", "txId", "xmin", "origin", "origin_lsn":
			s.skip()
		default:
			s.fail()
		}
	}
}

// text reads a string that may have escapes into the buffer. What lies there
// already stays valid when the buffer moves.
func (e *envelope) text(s *scanner) []byte {
	n := len(e.buf)
	if grown := s.text(e.buf); grown != nil {
		e.buf = grown
	}
	return e.buf[n:]
}

// looseEnvelope is the same for encoding/json. Pointers tell what is missing.
type looseEnvelope struct {
	Op    *string `json:"op"`
	After *struct {
		ID            *int64  `json:"id"`
		AggregateType *string `json:"aggregatetype"`
		AggregateID   *string `json:"aggregateid"`
		Type          *string `json:"type"`
		Payload       *string `json:"payload"`
		SourceShard   *int64  `json:"source_shard"`
		CreatedAt     *string `json:"created_at"`
	} `json:"after"`
	Source *struct {
		Sequence *string `json:"sequence"`
		LSN      *int64  `json:"lsn"`
		TsUs     *int64  `json:"ts_us"`
	} `json:"source"`
	Schema json.RawMessage `json:"schema"`
}

// envelopeReasons are the members that, missing or of the wrong type, have a
// reason of their own.
var envelopeReasons = map[string]quarantine.Reason{
	"op":               quarantine.UnknownOperation,
	"after.payload":    quarantine.MalformedPayload,
	"after.created_at": quarantine.InvalidTime,
	"source.sequence":  quarantine.InvalidPosition,
	"source.lsn":       quarantine.InvalidPosition,
	"source.ts_us":     quarantine.InvalidTime,
}

// unmarshal reads any JSON object and says what is wrong with it.
func (e *envelope) unmarshal(b []byte) *quarantine.Refusal {
	var l looseEnvelope
	field, err := unmarshal(b, &l)
	switch {
	case err != nil:
		return quarantine.Refuse(quarantine.MalformedEnvelope, "the envelope is not a JSON object")
	case l.Op == nil && l.Schema != nil:
		return quarantine.Refuse(quarantine.MalformedEnvelope, "the envelope is wrapped in a schema: set value.converter.schemas.enable=false in the connector")
	case l.Op == nil && field != "op":
		return quarantine.Refuse(quarantine.MalformedEnvelope, "the envelope has no op")
	case l.Op != nil && !operation(*l.Op):
		return quarantine.Refuse(quarantine.UnknownOperation, "op is neither c nor r")
	case field != "":
		return quarantine.Refuse(reasonOf(field, envelopeReasons, quarantine.MalformedEnvelope), "%s of the envelope has the wrong type", field)
	}
	if missing := l.missing(); missing != "" {
		return quarantine.Refuse(reasonOf(missing, envelopeReasons, quarantine.MalformedEnvelope), "the envelope has no %s", missing)
	}
	if l.After.Payload == nil {
		return quarantine.Refuse(quarantine.NullPayload, "column payload is null")
	}
	e.fill(&l)
	return nil
}

func reasonOf(field string, reasons map[string]quarantine.Reason, otherwise quarantine.Reason) quarantine.Reason {
	if r, ok := reasons[field]; ok {
		return r
	}
	return otherwise
}

func (l *looseEnvelope) missing() string {
	switch {
	case l.After == nil:
		return "after"
	case l.After.ID == nil:
		return "after.id"
	case l.After.AggregateType == nil:
		return "after.aggregatetype"
	case l.After.AggregateID == nil:
		return "after.aggregateid"
	case l.After.Type == nil:
		return "after.type"
	case l.After.SourceShard == nil:
		return "after.source_shard"
	case l.After.CreatedAt == nil:
		return "after.created_at"
	case l.Source == nil:
		return "source"
	case l.Source.Sequence == nil:
		return "source.sequence"
	case l.Source.LSN == nil:
		return "source.lsn"
	case l.Source.TsUs == nil:
		return "source.ts_us"
	}
	return ""
}

func (e *envelope) fill(l *looseEnvelope) {
	e.op = []byte(*l.Op)
	e.outboxID = *l.After.ID
	e.aggregateType = []byte(*l.After.AggregateType)
	e.aggregateID = []byte(*l.After.AggregateID)
	e.eventType = []byte(*l.After.Type)
	e.payload = []byte(*l.After.Payload)
	e.sourceShard = *l.After.SourceShard
	e.createdAt = []byte(*l.After.CreatedAt)
	e.sequence = []byte(*l.Source.Sequence)
	e.lsn = *l.Source.LSN
	e.committedAtUs = *l.Source.TsUs
}

// unmarshal reads b into v. field is the path of the first member whose type
// did not fit; the others are read all the same.
func unmarshal(b []byte, v any) (field string, _ error) {
	err := json.Unmarshal(b, v)
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return wrong.Field, nil
	}
	return "", err
}
