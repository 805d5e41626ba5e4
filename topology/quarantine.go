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

// Record is a record as it stands in the broker.
type Record struct {
	Topic     string
	Key       string
	Value     []byte // nil for a null payload
	Partition int
	Offset    int64
	Timestamp time.Time // the broker's
}

// NewQuarantined sets a record aside. The detail says what was wrong without
// anything that the payload holds. First seen is the broker's time, so that a
// second look at the same record writes the same.
func NewQuarantined(r Record, reason tidemarkv1.QuarantineReason, detail string) *tidemarkv1.Quarantined {
	q := &tidemarkv1.Quarantined{
		Reason:      reason,
		Detail:      strings.ToValidUTF8(detail, "?"),
		Topic:       r.Topic,
		Partition:   uint32(r.Partition),
		Offset:      r.Offset,
		FirstSeenUs: r.Timestamp.UnixMicro(),
		Key:         []byte(r.Key[:min(len(r.Key), MaxQuarantinedKey)]),
		Value:       r.Value,
	}
	if len(r.Value) > MaxQuarantinedValue {
		q.Value, q.Truncated = r.Value[:MaxQuarantinedValue], true
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
