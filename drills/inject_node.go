package drills

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// killNode ends one broker of three under load: leaders and the groups'
// coordinators move to the other two, which go on, and back.
func killNode(ctx context.Context, r *rig, rnd *rand.Rand) error {
	led, err := r.leaders(ctx)
	if err != nil {
		return err
	}
	// A broker that leads nothing would show nothing.
	id := slices.Sorted(maps.Keys(led))[rnd.IntN(len(led))]
	r.tallies.broke()
	r.tallies.killed()
	if err := r.nodes.Kill(ctx, id, between(rnd, 0, 4*time.Second)); err != nil {
		return err
	}
	alone := r.without(ctx, id)
	if alone == nil {
		alone = sleep(ctx, between(rnd, 0, 3*time.Second))
	}
	if err := r.nodes.Start(context.WithoutCancel(ctx), id); err != nil {
		return err
	}
	if alone != nil {
		return fmt.Errorf("without broker %d: %w", id, alone)
	}
	// The next one may be killed when every partition has all its copies.
	if err := await(ctx, r.patience, "the broker catching up", func() error { return r.inSync(ctx) }); err != nil {
		return err
	}
	return r.moving(ctx)
}

// without waits until other brokers lead everything and every partition is
// counted.
func (r *rig) without(ctx context.Context, id int32) error {
	if err := await(ctx, r.patience, "other brokers leading", func() error {
		led, err := r.leaders(ctx)
		if n := led[id]; n > 0 {
			return fmt.Errorf("it leads %d partitions", n)
		}
		return err
	}); err != nil {
		return err
	}
	return r.moving(ctx)
}

// leaders are the brokers that lead partitions, and how many.
func (r *rig) leaders(ctx context.Context) (map[int32]int, error) {
	topics, err := r.topics(ctx)
	led := map[int32]int{}
	for _, t := range topics {
		for _, p := range t.Partitions {
			if p.Leader >= 0 { // -1: none
				led[p.Leader]++
			}
		}
	}
	return led, err
}

func (r *rig) topics(ctx context.Context) (kadm.TopicDetails, error) {
	var names []string
	for _, s := range r.topo.Streams {
		names = append(names, s.Topic)
	}
	topics, err := r.admin.ListTopics(ctx, names...)
	if err == nil {
		err = topics.Error()
	}
	return topics, err
}

// inSync is nil when every partition has as many copies in sync as the cell
// has brokers.
func (r *rig) inSync(ctx context.Context) error {
	topics, err := r.topics(ctx)
	for _, t := range topics {
		for _, p := range t.Partitions {
			if len(p.ISR) < r.cell.Brokers {
				return fmt.Errorf("%s/%d has copies in sync on %v of %v", t.Topic, p.Partition, p.ISR, p.Replicas)
			}
		}
	}
	return err
}
