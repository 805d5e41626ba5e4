package cachefloor

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Handover is the task that brings a relation, as it was read from its shard, to
// a generation.
func Handover(t *topology.Topology, shard int, generation uint64, r cache.Relation) *kgo.Record {
	return task(t, topology.OnPartition(shard, r.Key()), &tidemarkv1.CacheTask{Body: &tidemarkv1.CacheTask_Relation{Relation: &tidemarkv1.KnownRelation{
		Generation: generation, Kind: tidemarkv1.Kind(r.Kind), UserId: r.User, TargetId: r.Target,
		State: tidemarkv1.State(r.State), Version: r.Version,
	}}})
}

// Unknown is the task that brings all of a user's relations of a kind to a
// generation, so that it knows which he does not have.
func Unknown(t *topology.Topology, shard int, generation uint64, kind topology.Kind, user string) *kgo.Record {
	return task(t, topology.OnPartition(shard, topology.RelationsKey(kind, user)), &tidemarkv1.CacheTask{Body: &tidemarkv1.CacheTask_User{User: &tidemarkv1.UnknownUser{
		Generation: generation, Kind: tidemarkv1.Kind(kind), UserId: user,
	}}})
}

func beginTasks(t *topology.Topology, g cache.Generation) (records []*kgo.Record) {
	for partition := range t.Stream(topology.CacheTasks).Partitions {
		records = append(records, task(t, topology.CacheGenerationKey(partition, g.ID), &tidemarkv1.CacheTask{Body: &tidemarkv1.CacheTask_Begin{Begin: &tidemarkv1.LiveGeneration{
			Generation: g.ID, Deployment: g.Deployment, Buckets: uint32(g.Buckets),
		}}}))
	}
	return records
}

func endTasks(t *topology.Topology, generation uint64) (records []*kgo.Record) {
	for partition := range t.Stream(topology.CacheTasks).Partitions {
		records = append(records, task(t, topology.CacheGenerationKey(partition, generation), &tidemarkv1.CacheTask{Body: &tidemarkv1.CacheTask_End{End: generation}}))
	}
	return records
}

func task(t *topology.Topology, key string, value *tidemarkv1.CacheTask) *kgo.Record {
	bytes, err := value.MarshalVT()
	if err != nil {
		panic(fmt.Sprintf("cachefloor: encoding a task of plain fields: %v", err)) // cannot be
	}
	return &kgo.Record{Topic: t.Topic(topology.CacheTasks), Key: []byte(key), Value: bytes}
}

// send writes tasks, waits until they are acked, and says per partition up to
// where the log must be consumed to include them.
func (k *Keeper) send(ctx context.Context, records []*kgo.Record) (ends map[int]int64, err error) {
	ends = map[int]int64{}
	for _, r := range k.cfg.Kafka.ProduceSync(ctx, records...) {
		if r.Err != nil {
			return nil, fmt.Errorf("writing cache tasks: %w", r.Err)
		}
		ends[int(r.Record.Partition)] = max(ends[int(r.Record.Partition)], r.Record.Offset+1)
	}
	return ends, nil
}
