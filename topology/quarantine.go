package topology

import (
	"strings"
	"time"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Limits of a quarantined record, so that it always fits its own topic.
const (
	MaxQuarantinedValue = 64 << 10 // a longer value is cut, and says so
	MaxQuarantinedKey   = 4 << 10  // a longer key is cut; no valid key is
)

// Origin is where a record stood when it was set aside.
type Origin struct {
	Topic     string
	Partition int
	Offset    int64
	Timestamp time.Time // the broker's, so that a replay writes the same
	Key       string
	Value     []byte // nil for a null payload
}

// NewQuarantined sets a record aside. The detail says what was wrong without
// anything that the payload holds.
func NewQuarantined(o Origin, reason tidemarkv1.QuarantineReason, detail string) *tidemarkv1.Quarantined {
	q := &tidemarkv1.Quarantined{
		Reason:      reason,
		Detail:      strings.ToValidUTF8(detail, "?"),
		Topic:       o.Topic,
		Partition:   uint32(o.Partition),
		Offset:      o.Offset,
		FirstSeenUs: o.Timestamp.UnixMicro(),
		Key:         []byte(o.Key[:min(len(o.Key), MaxQuarantinedKey)]),
		Value:       o.Value,
	}
	if len(o.Value) > MaxQuarantinedValue {
		q.Value, q.Truncated = o.Value[:MaxQuarantinedValue], true
	}
	return q
}

// QuarantineKey is the key of a quarantined record: its origin's, cut to
// MaxQuarantinedKey. A ~ stands before one that names a partition, since that
// partition is the origin's and not one of the quarantine.
func QuarantineKey(origin string) string {
	key := origin[:min(len(origin), MaxQuarantinedKey)]
	if _, _, ok := CutPartition(key); ok {
		return "~" + key
	}
	return key
}
