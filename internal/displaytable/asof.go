package displaytable

import "github.com/tidemark/tidemark/topology/tidemarkv1"

// Least says what every count of a display partition includes: per shard, in
// their order, the least seal that any count partition has told it. rows are the
// partition's progress by count partition, nil where none has come. A shard that
// any of them does not know is missing: what is not known is not made up.
func Least(shards int, rows []*tidemarkv1.PartitionProgress) (least []*tidemarkv1.SourceWatermark) {
	for shard := range shards {
		if w := leastOf(uint32(shard), rows); w != nil {
			least = append(least, w)
		}
	}
	return least
}

func leastOf(shard uint32, rows []*tidemarkv1.PartitionProgress) (least *tidemarkv1.SourceWatermark) {
	for _, row := range rows {
		var known *tidemarkv1.SourceWatermark
		for _, w := range row.GetWatermarks() {
			if w.Shard == shard {
				known = w
			}
		}
		if known == nil {
			return nil
		}
		if least == nil || known.Seal < least.Seal {
			least = known
		}
	}
	return least
}
