package intake

import (
	"fmt"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Reason is why a record is set aside, from the closed list of the contract.
type Reason = tidemarkv1.QuarantineReason

// The reasons that intake gives.
const (
	NullPayload       = tidemarkv1.QuarantineReason_QUARANTINE_REASON_NULL_PAYLOAD
	Oversized         = tidemarkv1.QuarantineReason_QUARANTINE_REASON_OVERSIZED
	MalformedEnvelope = tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_ENVELOPE
	UnknownOperation  = tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_OPERATION
	UnknownAggregate  = tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_AGGREGATE
	KeyMismatch       = tidemarkv1.QuarantineReason_QUARANTINE_REASON_KEY_MISMATCH
	WrongPartition    = tidemarkv1.QuarantineReason_QUARANTINE_REASON_WRONG_PARTITION
	InvalidPosition   = tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_POSITION
	InvalidTime       = tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_TIME
	MalformedPayload  = tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_PAYLOAD
	UnknownKind       = tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_KIND
	UnknownState      = tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_STATE
	InvalidVersion    = tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_VERSION
	InvalidID         = tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_ID
)

// reasons lists them.
var reasons = []Reason{
	NullPayload, Oversized, MalformedEnvelope, UnknownOperation, UnknownAggregate, KeyMismatch, WrongPartition,
	InvalidPosition, InvalidTime, MalformedPayload, UnknownKind, UnknownState, InvalidVersion, InvalidID,
}

// refusal says why a record cannot be used. Its detail names fields and
// numbers, and never holds text from the record.
type refusal struct {
	reason Reason
	detail string
}

func refuse(reason Reason, format string, a ...any) *refusal {
	return &refusal{reason, fmt.Sprintf(format, a...)}
}
