package display

import (
	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// maxUpdateBytes is far above any update of 1024 shards, the most there are.
const maxUpdateBytes = 512 << 10

// decode reads a record of partial-counts and checks that it belongs where it
// was found.
func decode(t topology.Config, r topology.Record) (*tidemarkv1.CountUpdate, *quarantine.Refusal) {
	if r.Value == nil {
		return nil, quarantine.Refuse(quarantine.NullPayload, "the record has no value")
	}
	if len(r.Value) > maxUpdateBytes {
		return nil, quarantine.Refuse(quarantine.Oversized, "the value has %d bytes, more than %d", len(r.Value), maxUpdateBytes)
	}
	update := new(tidemarkv1.CountUpdate)
	if update.UnmarshalVT(r.Value) != nil {
		return nil, quarantine.Refuse(quarantine.MalformedRecord, "the value is not a CountUpdate")
	}
	if at, err := topology.PartitionOf(r.Key, t.DisplayPartitions); err != nil || at != r.Partition {
		return nil, quarantine.Refuse(quarantine.WrongPartition, "the key does not belong on partition %d of %d", r.Partition, t.DisplayPartitions)
	}
	switch body := update.Body.(type) {
	case *tidemarkv1.CountUpdate_Partial:
		return update, checkPartial(t, r.Key, body.Partial)
	case *tidemarkv1.CountUpdate_Progress:
		return update, checkProgress(t, r.Key, body.Progress)
	}
	return nil, quarantine.Refuse(quarantine.MalformedRecord, "the value is neither a partial count nor progress")
}

func checkPartial(t topology.Config, key string, p *tidemarkv1.PartialCount) *quarantine.Refusal {
	if _, _, err := topology.ParseTargetKey(key); err != nil {
		return quarantine.Refuse(quarantine.KeyMismatch, "the key of a partial count is not that of a target")
	}
	switch {
	case int64(p.Partition) >= int64(t.CountPartitions):
		return quarantine.Refuse(quarantine.WrongPartition, "a partial count of partition %d, there are %d", p.Partition, t.CountPartitions)
	case !topology.CountsOfPartial(p).Possible():
		return quarantine.Refuse(quarantine.NegativeCount, "count partition %d says %v", p.Partition, topology.CountsOfPartial(p))
	case p.Generation == 0:
		return quarantine.Refuse(quarantine.InvalidVersion, "the generation is 0")
	case p.ManifestId == 0:
		return quarantine.Refuse(quarantine.InvalidVersion, "the manifest id is 0")
	case p.GeneratedAtUs < 1 || p.CommittedAtUs < 0:
		return quarantine.Refuse(quarantine.InvalidTime, "a partial count's times are before 1970")
	case len(p.AsOf) > t.Shards:
		return quarantine.Refuse(quarantine.MalformedRecord, "a partial count as of %d shards, there are %d", len(p.AsOf), t.Shards)
	}
	return nil
}

func checkProgress(t topology.Config, key string, p *tidemarkv1.PartitionProgress) *quarantine.Refusal {
	_, count, ok := topology.ParseProgressKey(key)
	switch {
	case !ok || int64(count) != int64(p.Partition):
		return quarantine.Refuse(quarantine.KeyMismatch, "the key is not that of the progress of count partition %d", p.Partition)
	case count >= t.CountPartitions:
		return quarantine.Refuse(quarantine.WrongPartition, "progress of count partition %d, there are %d", count, t.CountPartitions)
	case len(p.Barriers) > t.Shards*topology.MaxBarriers:
		return quarantine.Refuse(quarantine.MalformedRecord, "progress with %d barriers, more than %d of each of %d shards", len(p.Barriers), topology.MaxBarriers, t.Shards)
	case len(p.Watermarks) > t.Shards:
		return quarantine.Refuse(quarantine.MalformedRecord, "progress with %d watermarks, there are %d shards", len(p.Watermarks), t.Shards)
	}
	seen := make(map[uint32]bool, len(p.Watermarks))
	for _, w := range p.Watermarks {
		switch {
		case int64(w.Shard) >= int64(t.Shards) || seen[w.Shard]:
			return quarantine.Refuse(quarantine.MalformedRecord, "a watermark of shard %d is one too many, there are %d", w.Shard, t.Shards)
		case w.Seal == 0:
			return quarantine.Refuse(quarantine.InvalidVersion, "the seal of shard %d is 0", w.Shard)
		case w.SealedAtUs < 1:
			return quarantine.Refuse(quarantine.InvalidTime, "the seal of shard %d has no time", w.Shard)
		}
		seen[w.Shard] = true
	}
	for _, b := range p.Barriers {
		if int64(b.Shard) >= int64(t.Shards) || b.Seal == 0 || b.BarrierId == "" || topology.CheckID(b.BarrierId) != nil {
			return quarantine.Refuse(quarantine.MalformedRecord, "a barrier of shard %d, seal %d, is none", b.Shard, b.Seal)
		}
	}
	return nil
}
