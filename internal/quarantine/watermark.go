package quarantine

import (
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// CheckWatermark refuses a shard's watermark that does not belong where it was
// found.
func CheckWatermark(r topology.Record, w *tidemarkv1.SourceWatermark) *Refusal {
	partition, shard, ok := topology.ParseWatermarkKey(r.Key)
	switch {
	case !ok || shard != int(w.Shard):
		return Refuse(KeyMismatch, "the key is not that of a watermark of shard %d", w.Shard)
	case partition != r.Partition:
		return Refuse(WrongPartition, "a watermark for partition %d was found on %d", partition, r.Partition)
	case w.Seal == 0:
		return Refuse(InvalidVersion, "seal is 0")
	}
	return nil
}
