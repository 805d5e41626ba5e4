package quarantine

import "github.com/tidemark/tidemark/topology/tidemarkv1"

// The closed list.
const (
	NullPayload        = tidemarkv1.QuarantineReason_QUARANTINE_REASON_NULL_PAYLOAD
	Oversized          = tidemarkv1.QuarantineReason_QUARANTINE_REASON_OVERSIZED
	MalformedEnvelope  = tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_ENVELOPE
	UnknownOperation   = tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_OPERATION
	MalformedPayload   = tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_PAYLOAD
	UnknownKind        = tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_KIND
	UnknownState       = tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_STATE
	InvalidVersion     = tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_VERSION
	InvalidID          = tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_ID
	InvalidTime        = tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_TIME
	WrongPartition     = tidemarkv1.QuarantineReason_QUARANTINE_REASON_WRONG_PARTITION
	KeyMismatch        = tidemarkv1.QuarantineReason_QUARANTINE_REASON_KEY_MISMATCH
	UnknownAggregate   = tidemarkv1.QuarantineReason_QUARANTINE_REASON_UNKNOWN_AGGREGATE
	RouteEpochMismatch = tidemarkv1.QuarantineReason_QUARANTINE_REASON_ROUTE_EPOCH_MISMATCH
	MalformedRecord    = tidemarkv1.QuarantineReason_QUARANTINE_REASON_MALFORMED_RECORD
	InvalidPosition    = tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_POSITION
	NegativeCount      = tidemarkv1.QuarantineReason_QUARANTINE_REASON_NEGATIVE_COUNT
	GenerationMismatch = tidemarkv1.QuarantineReason_QUARANTINE_REASON_GENERATION_MISMATCH
	InvalidHiding      = tidemarkv1.QuarantineReason_QUARANTINE_REASON_INVALID_HIDING
)
