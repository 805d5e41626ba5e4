// Package barrier tells where a barrier has passed. A barrier is a seal of each
// shard with an id that travels with it (relations.Barrier): whatever stands
// before a passage at a stage is of before the barrier, as far as that shard is
// concerned.
//
//	cdc              offset of the seal's row
//	bucket-changes   offset of the watermark, per count partition
//	projection-table changelog offset of the watermark: the rows below it hold
//	                 every change of the shard before the barrier
//	liker-changes    offset of the watermark, per partition of the reverse index
//	likers-table     changelog offset of the watermark, as of projection-table
//	partial-counts   offset of the progress, per display and count partition:
//	                 the partial counts before it include them
//	display-table    changelog offset of that progress
//
// A partition passes the barriers of different shards at different offsets.
package barrier

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/kafkaaccess"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Passage is where a barrier's seal of one shard passed a partition.
type Passage struct {
	Stage     string `json:"stage"` // a stream of the topology
	Partition int    `json:"partition"`
	// Of is the count partition whose progress it is; -1 for other stages.
	Of     int    `json:"of"`
	Shard  int    `json:"shard"`
	Seal   uint64 `json:"seal"`
	Offset int64  `json:"offset"`
}

// place is where a passage is due.
type place struct {
	stage                string
	partition, of, shard int
}

func (p Passage) place() place { return place{p.Stage, p.Partition, p.Of, p.Shard} }

// Stages lists the stages that a barrier passes, in order.
func Stages() []string {
	return []string{
		topology.CDC, topology.BucketChanges, topology.ProjectionTable, topology.LikerChanges, topology.LikersTable,
		topology.PartialCounts, topology.DisplayTable,
	}
}

// Reader reads passages from the topics. Its zero value is not usable.
type Reader struct {
	Brokers  []string
	Access   *kafkaaccess.Access // nil: plain
	Topology *topology.Topology
}

// clockSkew is how much a broker's clock may be behind the databases'.
const clockSkew = time.Minute

// Wait reads the passages of barrier id, which was taken at a time, through
// these stages (none: all), until all are there or ctx ends: it then gives
// those that are, and an error that tells which stage waits. Tables tell
// passages for at least an hour, streams for their retention.
func (r Reader) Wait(ctx context.Context, id string, taken time.Time, stages ...string) ([]Passage, error) {
	if len(stages) == 0 {
		stages = Stages()
	}
	due := r.due(stages)
	client, err := r.open(ctx, stages, taken.Add(-clockSkew))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var got []Passage
	for len(due) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			break
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return got, fmt.Errorf("watching barrier %s: %s/%d: %w", id, errs[0].Topic, errs[0].Partition, errs[0].Err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			for _, p := range r.passages(rec, id) {
				if due[p.place()] {
					delete(due, p.place())
					got = append(got, p)
				}
			}
		})
	}
	slices.SortFunc(got, order(stages))
	if len(due) > 0 {
		return got, fmt.Errorf("barrier %s has not passed %s: %w", id, firstOf(due, stages), context.Cause(ctx))
	}
	return got, nil
}

// due lists the places that a barrier has to pass.
func (r Reader) due(stages []string) map[place]bool {
	c, due := r.Topology.Config, map[place]bool{}
	for shard := range c.Shards {
		for _, stage := range stages {
			switch stage {
			case topology.CDC:
				due[place{stage, shard, -1, shard}] = true
			case topology.BucketChanges, topology.ProjectionTable:
				for p := range c.CountPartitions {
					due[place{stage, p, -1, shard}] = true
				}
			case topology.LikerChanges, topology.LikersTable:
				for p := range c.LikerPartitions {
					due[place{stage, p, -1, shard}] = true
				}
			default:
				for p := range c.DisplayPartitions {
					for of := range c.CountPartitions {
						due[place{stage, p, of, shard}] = true
					}
				}
			}
		}
	}
	return due
}

func firstOf(due map[place]bool, stages []string) string {
	for _, stage := range stages {
		n := 0
		for p := range due {
			if p.stage == stage {
				n++
			}
		}
		if n > 0 {
			return fmt.Sprintf("%s (%d places are left)", stage, n)
		}
	}
	return "any stage"
}

func order(stages []string) func(a, b Passage) int {
	return func(a, b Passage) int {
		return slices.Compare(
			[]int{slices.Index(stages, a.Stage), a.Partition, a.Of, a.Shard},
			[]int{slices.Index(stages, b.Stage), b.Partition, b.Of, b.Shard})
	}
}

// open consumes the stages' topics from a time on.
func (r Reader) open(ctx context.Context, stages []string, from time.Time) (*kgo.Client, error) {
	client, err := kafkaadmin.Client(r.Brokers, r.Access, kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, err
	}
	var topics []string
	for _, s := range stages {
		topics = append(topics, r.Topology.Topic(s))
	}
	offsets, err := kadm.NewClient(client).ListOffsetsAfterMilli(ctx, from.UnixMilli(), topics...)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("watching a barrier: asking for offsets: %w", err)
	}
	client.AddConsumePartitions(offsets.KOffsets())
	return client, nil
}

// passages reads what a record says of a barrier.
func (r Reader) passages(rec *kgo.Record, id string) []Passage {
	stage := strings.TrimPrefix(rec.Topic, r.Topology.Config.Prefix+".")
	at := func(of int, w *tidemarkv1.SourceWatermark) []Passage {
		if w.GetBarrierId() != id {
			return nil
		}
		return []Passage{{stage, int(rec.Partition), of, int(w.Shard), w.Seal, rec.Offset}}
	}
	switch stage {
	case topology.CDC:
		return at(-1, sealOf(rec))
	case topology.BucketChanges:
		var c tidemarkv1.BucketChange
		if _, _, ok := topology.ParseWatermarkKey(string(rec.Key)); ok && c.UnmarshalVT(rec.Value) == nil {
			return at(-1, c.GetWatermark())
		}
	case topology.ProjectionTable:
		var row tidemarkv1.ProjectionRow
		if _, _, ok := topology.ParseWatermarkKey(string(rec.Key)); ok && row.UnmarshalVT(rec.Value) == nil {
			return at(-1, row.GetWatermark())
		}
	case topology.LikerChanges:
		var c tidemarkv1.LikerChange
		if _, _, ok := topology.ParseWatermarkKey(string(rec.Key)); ok && c.UnmarshalVT(rec.Value) == nil {
			return at(-1, c.GetWatermark())
		}
	case topology.LikersTable:
		var row tidemarkv1.LikerRow
		if _, _, ok := topology.ParseWatermarkKey(string(rec.Key)); ok && row.UnmarshalVT(rec.Value) == nil {
			return at(-1, row.GetWatermark())
		}
	default:
		return progressOf(rec, stage, at)
	}
	return nil
}

func progressOf(rec *kgo.Record, stage string, at func(int, *tidemarkv1.SourceWatermark) []Passage) (out []Passage) {
	if _, _, ok := topology.ParseProgressKey(string(rec.Key)); !ok {
		return nil
	}
	var p *tidemarkv1.PartitionProgress
	if stage == topology.PartialCounts {
		var u tidemarkv1.CountUpdate
		if u.UnmarshalVT(rec.Value) == nil {
			p = u.GetProgress()
		}
	} else {
		var row tidemarkv1.DisplayRow
		if row.UnmarshalVT(rec.Value) == nil {
			p = row.GetProgress()
		}
	}
	for _, b := range p.GetBarriers() {
		out = append(out, at(int(p.Partition), b)...)
	}
	return out
}

// sealOf reads a seal's row of the change feed; nil for any other record.
func sealOf(rec *kgo.Record) *tidemarkv1.SourceWatermark {
	if !strings.HasPrefix(string(rec.Key), topology.AggregateSeal+":") {
		return nil
	}
	var e topology.Envelope
	var s topology.Seal
	if json.Unmarshal(rec.Value, &e) != nil || e.After == nil || json.Unmarshal([]byte(e.After.Payload), &s) != nil {
		return nil
	}
	return &tidemarkv1.SourceWatermark{Shard: uint32(rec.Partition), Seal: s.Seal, BarrierId: s.BarrierID}
}
