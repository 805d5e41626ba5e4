package likers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Fact is a relation as its shard has it, ended ones too.
type Fact struct {
	Relation  topology.Relation
	State     topology.State
	Version   uint64
	ChangedAt time.Time
}

// BackfillConfig says what a backfill reads and writes.
type BackfillConfig struct {
	Client   *kgo.Client // as kafkaadmin.Client makes it
	Topology *topology.Topology
	Reverse  topology.ReverseGeneration
	// Facts gives every relation, each as it is at some moment of the backfill.
	Facts func(ctx context.Context, yield func(Fact) error) error
	// Rate of changes per second; 0: as fast as Kafka takes them. Changes of now
	// wait behind those of the backfill.
	Rate int
	// Paused tells that nothing is to be written now; nil: that is never so.
	Paused   func() bool
	Progress func(sent int64) // may be nil
}

// Backfill writes facts into liker-changes as they are: relations that changed
// before there was a reverse index come into it, with their versions and their
// times. It needs no pause of the writers and may be done again or begun anew:
// a fact is the newest change of its relation at its moment, and the index takes
// nothing of a version that it has (I3, I14). It returns when Kafka has all.
func Backfill(ctx context.Context, c BackfillConfig) (sent int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	topic, start := c.Topology.Topic(topology.LikerChanges), time.Now()
	var acks sync.WaitGroup
	err = c.Facts(ctx, func(f Fact) error {
		since := time.Now()
		if !pause.While(ctx, c.Paused) {
			return context.Cause(ctx)
		}
		start = start.Add(time.Since(since)) // what was not written then is not written faster now
		record, err := backfillRecord(c.Reverse, f)
		if err != nil {
			return err
		}
		record.Topic = topic
		acks.Add(1)
		c.Client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			defer acks.Done()
			if err != nil {
				cancel(fmt.Errorf("writing to %s: %w", topic, err))
			}
		})
		if sent++; sent%backfillStep == 0 && c.Progress != nil {
			c.Progress(sent)
		}
		if c.Rate > 0 && !pause.For(ctx, due(sent, c.Rate)-time.Since(start)) || ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	})
	if err == nil {
		err = c.Client.Flush(ctx)
	} else {
		cancel(err) // what is under way is not needed
	}
	acks.Wait()
	return sent, errors.Join(err, context.Cause(ctx))
}

// backfillStep is how many changes lie between two signs of progress.
const backfillStep = 10_000

// due is when so many changes are to have been sent.
func due(sent int64, rate int) time.Duration {
	return time.Duration(float64(sent) / float64(rate) * float64(time.Second))
}

// backfillRecord is the change that a fact was. It has no event and no position
// in the feed.
func backfillRecord(g topology.ReverseGeneration, f Fact) (*kgo.Record, error) {
	place := g.Place(f.Relation)
	value, err := (&tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Relation{Relation: &tidemarkv1.RelationChange{
		Kind: tidemarkv1.Kind(f.Relation.Kind), UserId: f.Relation.User, TargetId: f.Relation.Target, RelationVersion: f.Version,
		State: tidemarkv1.State(f.State), StateChangedAtUs: f.ChangedAt.UnixMicro(), Reverse: place,
	}}}).MarshalVT()
	if err != nil {
		return nil, fmt.Errorf("encoding a change of the reverse index: %w", err)
	}
	return &kgo.Record{Key: []byte(topology.LikerKey(place, f.Relation.Key())), Value: value}, nil
}
