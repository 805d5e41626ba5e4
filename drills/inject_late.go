package drills

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
)

const (
	lateKeys  = 240 // whose old records are appended
	leastLate = 60
)

// lateAppend appends old records of the changelog to it once more, behind newer
// ones of their keys and between those of the running owners: what an owner
// that was paused had under way, without waiting for one to be so unlucky.
func lateAppend(ctx context.Context, r *rig, rnd *rand.Rand) error {
	var late []*kgo.Record
	err := await(ctx, r.patience, "relations being changed twice", func() (err error) {
		if late, err = r.superseded(ctx); err != nil {
			return err
		}
		if len(late) < leastLate {
			return fmt.Errorf("%d relations were", len(late))
		}
		return nil
	})
	if err != nil {
		return err
	}
	rnd.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
	late = late[:min(lateKeys, len(late))]
	zombie, err := kafkaadmin.Client(r.kafkas, nil, kgo.ClientID(oracle.ClientID), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return err
	}
	defer zombie.Close()
	if err := zombie.ProduceSync(ctx, late...).FirstErr(); err != nil {
		return fmt.Errorf("appending late records: %w", err)
	}
	r.mu.Lock()
	r.late++
	r.mu.Unlock()
	return errors.Join(r.moving(ctx), await(ctx, r.patience, "the members being ready again", r.allReady))
}

// checkFences: what lateAppend appends fences the owner that it meets, and at
// most once again when partitions move meanwhile. More means that members write
// to partitions of others.
func (r *rig) checkFences() {
	r.mu.Lock()
	allowed := int64(2 * r.named * r.late)
	r.mu.Unlock()
	var fenced int64
	for _, m := range append(r.all(), r.gone...) {
		fenced += m.Figures().Fenced
	}
	if allowed > 0 && fenced > allowed {
		r.findings.Add(Contended, "members were fenced %d times; what was appended explains %d", fenced, allowed)
	}
}

// superseded reads the changelog and gives, for each key whose newest record is
// another one than its first, the first, to be produced again.
func (r *rig) superseded(ctx context.Context) ([]*kgo.Record, error) {
	table := r.topo.Topic(topology.ProjectionTable)
	ends, err := r.admin.ListEndOffsets(ctx, table)
	if err != nil {
		return nil, err
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	cl, err := kafkaadmin.Client(r.kafkas, nil, kgo.ClientID(oracle.ClientID), kgo.ConsumeTopics(table), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	first, newest := map[string]*kgo.Record{}, map[string]*kgo.Record{}
	for len(left) > 0 {
		fetches := cl.PollFetches(ctx)
		if err := errors.Join(fetches.Err(), ctx.Err()); err != nil {
			return nil, fmt.Errorf("reading %s: %w", table, err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			key := string(rec.Key)
			if first[key] == nil {
				first[key] = rec
			}
			newest[key] = rec
			if rec.Offset+1 >= left[rec.Partition] {
				delete(left, rec.Partition)
			}
		})
	}
	var all []*kgo.Record
	for key, rec := range first {
		if !bytes.Equal(rec.Value, newest[key].Value) {
			all = append(all, &kgo.Record{Topic: table, Partition: rec.Partition, Key: rec.Key, Value: rec.Value})
		}
	}
	slices.SortFunc(all, func(a, b *kgo.Record) int { return bytes.Compare(a.Key, b.Key) })
	return all, nil
}
