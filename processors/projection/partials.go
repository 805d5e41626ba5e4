package projection

import (
	"fmt"
	"time"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// emit sends the partial count of each target.
func (f *flusher) emit(w work) error {
	asOf := make([]*tidemarkv1.AsOf, 0, len(w.watermarks))
	for _, m := range w.watermarks {
		asOf = append(asOf, &tidemarkv1.AsOf{Shard: m.Shard, Seal: m.Seal})
	}
	for _, target := range w.targets {
		partial, err := f.sum(target)
		if err != nil {
			return err
		}
		partial.AsOf = asOf
		partial.CommittedAtUs = w.committed[target]
		update := tidemarkv1.CountUpdate{Body: &tidemarkv1.CountUpdate_Partial{Partial: partial}}
		if err := f.send(target, &update); err != nil {
			return err
		}
	}
	f.emitted.Add(float64(len(w.targets)))
	f.projection.dirty.Sub(float64(len(w.targets)))
	return nil
}

// sum adds up a target's acked buckets on this partition.
func (f *flusher) sum(target string) (*tidemarkv1.PartialCount, error) {
	p := &tidemarkv1.PartialCount{
		Partition:     uint32(f.part.Number()),
		Generation:    f.cfg.Manifest.Generation,
		ManifestId:    f.cfg.Manifest.ID,
		GeneratedAtUs: time.Now().UnixMicro(),
	}
	f.mu.Lock()
	t := f.sums.targets[target]
	f.mu.Unlock()
	if t == nil {
		var err error
		if t, err = f.load(target); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p.Active, p.RiskHidden, p.PolicyHidden, p.Disliked = t.counts.Raw, t.counts.RiskHidden, t.counts.PolicyHidden, t.counts.Disliked
	p.Seq = uint64(max(t.at, f.settled) + 1)
	return p, nil
}

// load sums a target's buckets from the store and keeps them.
func (f *flusher) load(target string) (*sum, error) {
	f.mu.Lock()
	t := f.sums.enter(target)
	f.mu.Unlock()
	stored := map[uint32]bucketSum{}
	at, err := f.part.ScanAcked(target, func(bucket string, value []byte) error {
		stored[bucketNumber(bucket)] = readBucketSum(value)
		return nil
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sums.load(t, stored, at)
	return t, err
}

// progress tells every display partition what the partials before it include.
func (f *flusher) progress(w work) error {
	update := tidemarkv1.CountUpdate{Body: &tidemarkv1.CountUpdate_Progress{Progress: &tidemarkv1.PartitionProgress{
		Partition: uint32(f.part.Number()), Seq: uint64(w.settled + 1), Watermarks: w.watermarks,
		Barriers: topology.NewestBarriers(nil, w.barriers),
	}}}
	for d := range f.cfg.Topology.Config.DisplayPartitions {
		if err := f.send(topology.ProgressKey(d, f.part.Number()), &update); err != nil {
			return err
		}
	}
	return nil
}

func (f *flusher) send(key string, u *tidemarkv1.CountUpdate) error {
	value, err := u.MarshalVT()
	if err != nil {
		return fmt.Errorf("encoding a count update: %w", err)
	}
	return f.part.Emit(f.partials, key, value)
}
