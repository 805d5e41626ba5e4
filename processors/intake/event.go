package intake

import (
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
)

// event is what intake needs of a relation's event, topology.Event.
type event struct {
	eventID        []byte
	aggregateKey   []byte
	kind           []byte
	userID         []byte
	targetID       []byte
	version        uint64
	state          []byte
	previousState  []byte
	sourceShard    int64
	stateChangedAt []byte
	hidden         []byte // empty: shown
	hiddenReason   []byte
}

// Members of a whole event.
const (
	seenEventID = 1 << iota
	seenAggregateKey
	seenKind
	seenUserID
	seenTargetID
	seenVersion
	seenState
	seenPreviousState
	seenEventShard
	seenStateChangedAt
	seenWholeEvent = 1<<iota - 1
	// Of an event that hides, also:
	seenHidden       = 1 << (iota - 1)
	seenHiddenReason = 1 << (iota - 1)
)

// read fills e from the payload of an outbox row; the fields lie in b.
func (e *event) read(b []byte) (slow bool, _ *quarantine.Refusal) {
	if e.scan(b) {
		return false, nil
	}
	return true, e.unmarshal(b)
}

// scan reads an event with exactly the members of topology.Event, in any
// order.
func (e *event) scan(b []byte) bool {
	e.hidden, e.hiddenReason = nil, nil
	s, seen := scanner{b: b}, uint32(0)
	s.take('{')
	for first := true; s.next(first); first = false {
		switch string(s.key()) {
		case "eventId":
			s.once(&seen, seenEventID)
			e.eventID = s.str()
		case "aggregateKey":
			s.once(&seen, seenAggregateKey)
			e.aggregateKey = s.str()
		case "kind":
			s.once(&seen, seenKind)
			e.kind = s.str()
		case "userId":
			s.once(&seen, seenUserID)
			e.userID = s.str()
		case "targetId":
			s.once(&seen, seenTargetID)
			e.targetID = s.str()
		case "relationVersion":
			s.once(&seen, seenVersion)
			e.version = uint64(s.natural())
		case "absoluteState":
			s.once(&seen, seenState)
			e.state = s.str()
		case "previousState":
			s.once(&seen, seenPreviousState)
			e.previousState = s.str()
		case "sourceShard":
			s.once(&seen, seenEventShard)
			e.sourceShard = s.natural()
		case "stateChangedAt":
			s.once(&seen, seenStateChangedAt)
			e.stateChangedAt = s.str()
		case "hidden":
			s.once(&seen, seenHidden)
			e.hidden = s.str()
		case "hiddenReason":
			s.once(&seen, seenHiddenReason)
			e.hiddenReason = s.str()
		default:
			s.fail()
		}
	}
	return s.end() && seen&seenWholeEvent == seenWholeEvent
}

// looseEvent is the same for encoding/json.
type looseEvent struct {
	EventID         string `json:"eventId"`
	AggregateKey    string `json:"aggregateKey"`
	Kind            string `json:"kind"`
	UserID          string `json:"userId"`
	TargetID        string `json:"targetId"`
	RelationVersion uint64 `json:"relationVersion"`
	AbsoluteState   string `json:"absoluteState"`
	PreviousState   string `json:"previousState"`
	SourceShard     *int64 `json:"sourceShard"`
	StateChangedAt  string `json:"stateChangedAt"`
	Hidden          string `json:"hidden"`
	HiddenReason    string `json:"hiddenReason"`
}

// eventReasons are the members whose wrong type has a reason of its own.
var eventReasons = map[string]quarantine.Reason{
	"eventId":         quarantine.InvalidID,
	"aggregateKey":    quarantine.KeyMismatch,
	"kind":            quarantine.UnknownKind,
	"userId":          quarantine.InvalidID,
	"targetId":        quarantine.InvalidID,
	"relationVersion": quarantine.InvalidVersion,
	"absoluteState":   quarantine.UnknownState,
	"previousState":   quarantine.UnknownState,
	"sourceShard":     quarantine.WrongPartition,
	"stateChangedAt":  quarantine.InvalidTime,
	"hidden":          quarantine.InvalidHiding,
	"hiddenReason":    quarantine.InvalidHiding,
}

// unmarshal reads any JSON object. A missing member is left empty, which its
// check refuses by name.
func (e *event) unmarshal(b []byte) *quarantine.Refusal {
	var l looseEvent
	if r := unmarshalPayload(b, &l, eventReasons); r != nil {
		return r
	}
	if l.SourceShard == nil {
		return quarantine.Refuse(quarantine.MalformedPayload, "the payload has no sourceShard")
	}
	*e = event{
		eventID:        []byte(l.EventID),
		aggregateKey:   []byte(l.AggregateKey),
		kind:           []byte(l.Kind),
		userID:         []byte(l.UserID),
		targetID:       []byte(l.TargetID),
		version:        l.RelationVersion,
		state:          []byte(l.AbsoluteState),
		previousState:  []byte(l.PreviousState),
		sourceShard:    *l.SourceShard,
		stateChangedAt: []byte(l.StateChangedAt),
		hidden:         []byte(l.Hidden),
		hiddenReason:   []byte(l.HiddenReason),
	}
	return nil
}

func unmarshalPayload(b []byte, v any, reasons map[string]quarantine.Reason) *quarantine.Refusal {
	field, err := unmarshal(b, v)
	if err != nil {
		return quarantine.Refuse(quarantine.MalformedPayload, "the payload is not a JSON object")
	}
	if field == "" {
		return nil
	}
	return quarantine.Refuse(reasonOf(field, reasons, quarantine.MalformedPayload), "%s of the payload has the wrong type", field)
}

// Names of kinds and states, for look-ups that do not allocate.
var (
	kindsByName  = map[string]topology.Kind{}
	statesByName = map[string]topology.State{}
)

func init() {
	for _, k := range topology.Kinds() {
		kindsByName[k.String()] = k
	}
	for s := topology.State(0); s < 255; s++ {
		if s.Valid() {
			statesByName[s.String()] = s
		}
	}
}
