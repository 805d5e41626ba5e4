package topology

import (
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func TestQuarantinedFitsItsTopic(t *testing.T) {
	o := Record{Topic: "tidemark.cdc", Partition: 3, Offset: 9, Timestamp: time.UnixMicro(1e15), Key: strings.Repeat("k", 1<<20), Value: make([]byte, 1<<20)}
	q := NewQuarantined(o, tidemarkv1.QuarantineReason_QUARANTINE_REASON_OVERSIZED, "too \xff long")
	if !q.Truncated || len(q.Value) != MaxQuarantinedValue || len(q.Key) != MaxQuarantinedKey {
		t.Fatalf("value %d bytes, truncated %v, key %d bytes", len(q.Value), q.Truncated, len(q.Key))
	}
	if q.Detail != "too ? long" || q.FirstSeenUs != 1e15 || q.Partition != 3 || q.Offset != 9 || q.Topic != o.Topic {
		t.Fatalf("origin was not kept: %v", q)
	}
	if size := q.SizeVT() + len(QuarantineKey(o.Key)); size > 100<<10 {
		t.Fatalf("record of %d bytes", size)
	}
}

// A quarantined key never names a partition of another topic, which would
// make the record itself impossible to write.
func TestQuarantineKeyIsAlwaysPlaceable(t *testing.T) {
	for _, key := range []string{"", "like:u:v", "003f|like:u:v", "003f|01a2|like:u:v", "ffff|~watermark:0001", "~ffff|x", strings.Repeat("0001|", 5000)} {
		q := QuarantineKey(key)
		if p, err := PartitionOf(q, 1); err != nil || p != 0 {
			t.Errorf("key %q: partition %d, %v", clip(q), p, err)
		}
		if !strings.HasPrefix(strings.TrimPrefix(q, "~"), strings.TrimPrefix(key, "~")[:min(len(key), 5)]) {
			t.Errorf("key %q became %q", clip(key), clip(q))
		}
	}
}
