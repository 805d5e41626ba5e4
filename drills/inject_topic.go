package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/topology"
)

// tableRecreated loses the projection's changelog, which is its state. An
// empty one must not be taken for the state of a beginning: either the members
// say so and count nothing until an operator has their input counted again, or
// they do that themselves. The verdict at the end is the same for both.
func tableRecreated(ctx context.Context, r *rig, _ *rand.Rand) error {
	return r.losing(ctx, topology.ProjectionTable)
}

// displayRecreated loses display's changelog in the same way.
func displayRecreated(ctx context.Context, r *rig, _ *rand.Rand) error {
	return r.losing(ctx, topology.DisplayTable)
}

// inputRecreated loses the projection's input, all of which was counted, and
// begins its offsets anew, while the table holds receipts of the old ones.
func inputRecreated(ctx context.Context, r *rig, _ *rand.Rand) error {
	return r.losing(ctx, topology.BucketChanges, topology.Quarantine) // whose records name the old offsets
}

// losing deletes topics while everything is quiet and makes them anew. When a
// member says that it must not go on, it does what an operator would then.
func (r *rig) losing(ctx context.Context, streams ...string) error {
	r.sender.Pause()
	defer r.sender.Start(r.cell.Rate)
	if err := r.caughtUp(ctx); err != nil {
		return err
	}
	r.stopAll()
	r.watching().Close()
	for _, s := range streams {
		if err := r.recreate(ctx, s); err != nil {
			return err
		}
	}
	if err := errors.Join(r.startAll(), r.sender.Reconnect()); err != nil {
		return err
	}
	r.sender.Start(r.cell.Rate)
	named, err := r.told(ctx, r.topo.Topic(streams[0]))
	if err != nil {
		return err
	}
	if named {
		r.sender.Pause()
		r.stopAll()
		if err := r.rebuild(ctx); err != nil {
			return err
		}
		if err := r.startAll(); err != nil {
			return err
		}
		r.sender.Start(r.cell.Rate)
	}
	if err := r.watchAnew(); err != nil {
		return err
	}
	return r.moving(ctx)
}

func (r *rig) stopAll() {
	for _, m := range r.all() {
		r.stop(m)
		m.ForgetReasons()
	}
}

// told waits whether a member says that a topic is not the one it knew. That
// nobody does is no finding yet: counting goes on, and is judged.
func (r *rig) told(ctx context.Context, topic string) (bool, error) {
	err := await(ctx, 10*time.Second, "a word on "+topic, func() error {
		for _, m := range r.all() {
			for _, reason := range m.Reasons() {
				if containsAll(reason, []string{topic, "made anew"}) {
					return nil
				}
			}
		}
		return errors.New("nobody says that it was made anew")
	})
	var not stuckError
	if errors.As(err, &not) {
		return false, nil
	}
	return err == nil, err
}

func (r *rig) startAll() error {
	for _, m := range r.all() {
		if err := m.Start(); err != nil {
			return err
		}
	}
	return nil
}

// watchAnew forgets what was watched and begins with the topics as they are.
func (r *rig) watchAnew() error {
	w, err := oracle.Watch(oracle.Config{Brokers: r.kafkas, Topology: r.topo, Findings: r.findings, Logger: r.log})
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watcher = w
	return nil
}

// rebuild has everything counted again from the input's start: the tables and
// what is between them are made anew, and the groups forget what they have
// committed.
func (r *rig) rebuild(ctx context.Context) error {
	for _, s := range []string{topology.ProjectionTable, topology.PartialCounts, topology.DisplayTable} {
		if err := r.recreate(ctx, s); err != nil {
			return err
		}
	}
	for _, g := range []string{topology.ProjectionGroup, topology.DisplayGroup} {
		// Static members stay in their group until their session is over.
		id := r.topo.Group(g).ID
		if err := await(ctx, r.patience, "forgetting what "+id+" has committed", func() error {
			answer, err := r.admin.DeleteGroup(ctx, id)
			if err == nil {
				err = answer.Err
			}
			if errors.Is(err, kerr.GroupIDNotFound) {
				return nil
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// recreate deletes a topic and makes it anew.
func (r *rig) recreate(ctx context.Context, stream string) error {
	s := r.topo.Stream(stream)
	if _, err := r.admin.DeleteTopic(ctx, s.Topic); err != nil {
		return fmt.Errorf("deleting %s: %w", s.Topic, err)
	}
	settings := map[string]*string{}
	for k, v := range s.Settings {
		settings[k] = kadm.StringPtr(v)
	}
	return await(ctx, r.patience, "making the topic anew", func() error {
		answer, err := r.admin.CreateTopic(ctx, int32(s.Partitions), -1, settings, s.Topic)
		if err == nil {
			err = answer.Err
		}
		return err
	})
}
