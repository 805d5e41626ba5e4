package likers

import (
	"fmt"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// ListQuery asks for what one partition has of a target: all its reverse
// shards there, merged.
type ListQuery struct {
	Generation uint32
	Kind       topology.Kind
	Target     string
	Partition  int
	After      map[int]Frontier // by reverse shard; one that is missing is read from its newest entry
	Limit      int              // 1..MaxPage
	// Standby takes the answer of a partition that is kept warm here and owned
	// elsewhere, too.
	Standby bool
	// HeadReads are pages that were read from the list's head meanwhile: they tell,
	// with this one, whether the list is hot.
	HeadReads uint32
}

// List is the beginning of what a partition has of a target behind a query's
// frontiers, as it was at one moment.
type List struct {
	newest.Part
	AsOf   []*tidemarkv1.SourceWatermark // as Page.AsOf
	Offset int64                         // as Page.Offset
	// Standby says that the partition is owned elsewhere: AsOf may be older than
	// what its owner has told.
	Standby bool
	// Head says that the partition's part of the list's head stands in Redis.
	Head bool
}

// List answers from one snapshot of the partition's store. It costs a seek and
// at most Limit entries for each reverse shard, however deep it lies.
func (l *Likers) List(q ListQuery) (list List, err error) {
	defer l.observe()(&err)
	shards, err := l.shardsOf(q)
	if err != nil {
		return List{}, err
	}
	part := l.served(q.Partition)
	if part == nil && q.Standby {
		part, list.Standby = l.followed(q.Partition), true
	}
	err = l.snapshot(part, q.Partition, func(s *gokakit.Snapshot, asOf []*tidemarkv1.SourceWatermark, offset int64) error {
		list.AsOf, list.Offset = asOf, offset
		parts := make([]newest.Part, len(shards))
		for i, shard := range shards {
			parts[i], err = readPart(s, Query{
				Generation: q.Generation, Kind: q.Kind, Target: q.Target, ReverseShard: shard, After: q.After[shard], Limit: q.Limit,
			})
			if err != nil {
				return err
			}
		}
		list.Part = newest.Merge(parts, q.Limit)
		return nil
	})
	if err == nil && !list.Standby {
		list.Head = headsOf(part).read(q.Kind, q.Target, 1+uint64(q.HeadReads))
	}
	return list, err
}

// shardsOf checks a query and gives the reverse shards of the target that lie
// on its partition.
func (l *Likers) shardsOf(q ListQuery) ([]int, error) {
	if err := l.checkQuery(Query{Generation: q.Generation, Kind: q.Kind, Target: q.Target, Limit: q.Limit}); err != nil {
		return nil, err
	}
	shards := l.cfg.Reverse.ShardsByPartition(q.Kind, q.Target)[q.Partition]
	if len(shards) == 0 {
		return nil, fmt.Errorf("no reverse shard of the target lies on partition %d: %w", q.Partition, ErrQuery)
	}
	for shard, after := range q.After {
		if shard < 0 || shard >= l.cfg.Reverse.Shards() || l.cfg.Reverse.Partition(q.Kind, q.Target, shard) != q.Partition {
			return nil, fmt.Errorf("reverse shard %d does not lie on partition %d: %w", shard, q.Partition, ErrQuery)
		}
		if after.LikedAtUs <= 0 || topology.CheckID(after.User) != nil {
			return nil, fmt.Errorf("the position in reverse shard %d names no entry: %w", shard, ErrQuery)
		}
	}
	return shards, nil
}
