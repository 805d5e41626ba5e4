package verify

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tidemark/tidemark/topology"
)

// Pauses between two looks: doubled from the first to the longest.
const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

// poll looks until look returns nil, or ctx ends: then the last reason that
// look gave by itself is returned.
func poll(ctx context.Context, look func(context.Context) error) error {
	pause := firstPause
	var last error
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		if last != nil && ctx.Err() != nil {
			err = last // this look was cut short
		}
		last = err
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case <-timer.C:
		}
		pause = min(2*pause, longestPause)
	}
}

// WaitCaughtUp waits until progress, the newest seal of each shard that
// everything displayed includes, has reached want for every shard. When ctx
// ends first, the error names the shards that are behind. An error of progress
// is tried again.
func WaitCaughtUp(ctx context.Context, want map[int]uint64, progress func(context.Context) (map[int]uint64, error)) error {
	return poll(ctx, func(ctx context.Context) error {
		have, err := progress(ctx)
		if err != nil {
			return fmt.Errorf("reading the progress: %w", err)
		}
		var behind []string
		for _, shard := range slices.Sorted(maps.Keys(want)) {
			if have[shard] < want[shard] {
				behind = append(behind, fmt.Sprintf("shard %d is displayed up to seal %d of %d", shard, have[shard], want[shard]))
			}
		}
		if behind != nil {
			return errors.New(strings.Join(behind, ", "))
		}
		return nil
	})
}

// WaitGroups waits until every group whose work is compared has committed its
// inputs up to where they end now. When ctx ends first, the error names what is
// behind.
func WaitGroups(ctx context.Context, client *kadm.Client, t *topology.Topology) error {
	var ends kadm.ListedOffsets
	return poll(ctx, func(ctx context.Context) error {
		if ends == nil {
			listed, err := inputEnds(ctx, client, t)
			if err != nil {
				return err
			}
			ends = listed
		}
		lags, err := groupLags(ctx, client, t, ends)
		if err != nil || len(lags) == 0 {
			return err
		}
		return lagError(lags)
	})
}

// Lag is how far a group is behind in a partition.
type Lag struct {
	Group     string
	Topic     string
	Partition int32
	Committed int64 // -1: nothing
	End       int64
}

func lagError(lags []Lag) error {
	l := slices.MaxFunc(lags, func(a, b Lag) int { return int((a.End - a.Committed) - (b.End - b.Committed)) })
	return fmt.Errorf("%d partitions are not consumed to their end, the farthest: group %s in %s, partition %d, at %d of %d", len(lags), l.Group, l.Topic, l.Partition, l.Committed, l.End)
}

// compared are the groups whose work is compared. A cache and privacy rules are
// not, and a deployment may run without those who keep them.
func compared(t *topology.Topology) []topology.Group {
	return slices.DeleteFunc(slices.Clone(t.Groups), func(g topology.Group) bool {
		return g.Name == topology.CacheFloorGroup || g.Name == topology.PrivacyGroup
	})
}

func inputEnds(ctx context.Context, client *kadm.Client, t *topology.Topology) (kadm.ListedOffsets, error) {
	var topics []string
	for _, g := range compared(t) {
		for _, in := range g.Inputs {
			topics = append(topics, t.Topic(in))
		}
	}
	ends, err := client.ListEndOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("listing the ends of the groups' inputs: %w", err)
	}
	return ends, nil
}

func groupLags(ctx context.Context, client *kadm.Client, t *topology.Topology, ends kadm.ListedOffsets) ([]Lag, error) {
	var lags []Lag
	for _, g := range compared(t) {
		committed, err := client.FetchOffsets(ctx, g.ID)
		if err == nil {
			err = committed.Error()
		}
		if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // it has committed nothing
			return nil, fmt.Errorf("reading what group %s has committed: %w", g.ID, err)
		}
		for _, in := range g.Inputs {
			topic := t.Topic(in)
			for partition, end := range ends[topic] {
				l := Lag{g.ID, topic, partition, -1, end.Offset}
				if c, ok := committed.Lookup(topic, partition); ok {
					l.Committed = c.At
				}
				if max(0, l.Committed) < l.End {
					lags = append(lags, l)
				}
			}
		}
	}
	return lags, nil
}

// EndOffsets is the sum of a topic's ends: it changes with every record.
func EndOffsets(ctx context.Context, client *kadm.Client, topic string) (uint64, error) {
	ends, err := client.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("listing the ends of %s: %w", topic, err)
	}
	var sum uint64
	ends.Each(func(o kadm.ListedOffset) { sum += uint64(o.Offset) })
	return sum, nil
}
