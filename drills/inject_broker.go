package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tidemark/tidemark/drills/faultbroker"
	"github.com/tidemark/tidemark/topology"
)

func brokerPause(ctx context.Context, r *rig, rnd *rand.Rand) error {
	r.tallies.broke()
	p := r.broker.Process()
	p.Pause()
	err := sleep(ctx, between(rnd, 5*time.Second, 30*time.Second))
	p.Continue()
	if err != nil {
		return err
	}
	return r.moving(ctx)
}

func brokerRestart(ctx context.Context, r *rig, rnd *rand.Rand) error {
	r.tallies.broke()
	r.broker.Stop()
	if err := sleep(ctx, between(rnd, 0, 3*time.Second)); err != nil {
		return err
	}
	if err := r.brokerBack(ctx); err != nil {
		return err
	}
	return r.moving(ctx)
}

func brokerKill(ctx context.Context, r *rig, rnd *rand.Rand) error {
	r.tallies.broke()
	r.tallies.killed()
	r.broker.Process().Kill()
	if err := sleep(ctx, between(rnd, 0, 3*time.Second)); err != nil {
		return err
	}
	if err := r.brokerBack(ctx); err != nil {
		return err
	}
	return r.moving(ctx)
}

// brokerBack starts an ended broker, with the cell's slow acks.
func (r *rig) brokerBack(ctx context.Context) error {
	if err := r.broker.Restart(); err != nil {
		return err
	}
	return r.slowDown(ctx)
}

// during holds a fault for a while, heals it and says how often it hit.
func (r *rig) during(ctx context.Context, f faultbroker.Fault, hold func(id int) error) error {
	i, err := r.broker.Break(ctx, f)
	if err != nil {
		return err
	}
	held := hold(i.ID)
	hits, err := r.broker.Heal(context.WithoutCancel(ctx), i.ID)
	if err := errors.Join(held, err); err != nil {
		return err
	}
	if hits == 0 {
		return stuckError{fmt.Errorf("fault %+v hit nobody", f)}
	}
	r.tallies.broke()
	return nil
}

// until waits until a fault has hit so often.
func (r *rig) until(ctx context.Context, n int) func(id int) error {
	return func(id int) error {
		return await(ctx, r.patience, "a fault hitting", func() error {
			hits, err := r.broker.Hits(ctx, id)
			if err == nil && hits < n {
				err = fmt.Errorf("hit %d times of %d", hits, n)
			}
			return err
		})
	}
}

// brokerSlow makes the broker slow while four times as much comes in: what
// cannot be written must wait in the log, not in memory.
func brokerSlow(ctx context.Context, r *rig, _ *rand.Rand) error {
	r.tallies.broke()
	r.sender.SetRate(4 * r.cell.Rate)
	defer r.sender.SetRate(r.cell.Rate)
	if _, err := r.broker.Break(ctx, faultbroker.Fault{Kind: faultbroker.DelayAck, Client: memberClients, Most: 2 * time.Second}); err != nil {
		return err
	}
	if err := sleep(ctx, r.cell.Slow); err != nil {
		return err
	}
	if err := errors.Join(r.broker.HealAll(ctx), r.slowDown(ctx)); err != nil {
		return err
	}
	r.checkMemory()
	return r.moving(ctx)
}

// produceError answers one to three writes to an output with an error.
func produceError(ctx context.Context, r *rig, rnd *rand.Rand) error {
	retriable, final := faultbroker.ProduceErrors()
	all := slices.Concat(retriable, final)
	outputs := []string{topology.ProjectionTable, topology.PartialCounts, topology.DisplayTable}
	f := faultbroker.Fault{
		Kind: faultbroker.Answer, Topic: r.topo.Topic(outputs[rnd.IntN(len(outputs))]),
		Error: all[rnd.IntN(len(all))], Count: between(rnd, 1, 3),
	}
	if err := r.during(ctx, f, r.until(ctx, 1)); err != nil {
		return err
	}
	return r.afterwards(ctx, f)
}

// afterwards waits until everything goes on.
func (r *rig) afterwards(ctx context.Context, f faultbroker.Fault) error {
	if err := r.moving(ctx); err != nil {
		return fmt.Errorf("after %s on %s %s: %w", f.Error, f.Request, f.Topic, err)
	}
	return nil
}

func groupError(ctx context.Context, r *rig, rnd *rand.Rand) error {
	requests := map[kmsg.Key][]*kerr.Error{
		kmsg.OffsetCommit: {kerr.NotCoordinator, kerr.CoordinatorLoadInProgress, kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RequestTimedOut},
		kmsg.Heartbeat:    {kerr.RebalanceInProgress, kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.NotCoordinator, kerr.CoordinatorNotAvailable},
	}
	key := []kmsg.Key{kmsg.OffsetCommit, kmsg.Heartbeat}[rnd.IntN(2)]
	errs := requests[key]
	f := faultbroker.Fault{Kind: faultbroker.Answer, Request: key.Name(), Error: errs[rnd.IntN(len(errs))].Message, Count: between(rnd, 1, 3)}
	if err := r.during(ctx, f, r.until(ctx, 1)); err != nil {
		return err
	}
	return r.afterwards(ctx, f)
}

func fetchError(ctx context.Context, r *rig, rnd *rand.Rand) error {
	errs := []*kerr.Error{kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition, kerr.KafkaStorageError, kerr.FencedLeaderEpoch, kerr.UnknownServerError}
	inputs := []string{topology.BucketChanges, topology.PartialCounts}
	f := faultbroker.Fault{Kind: faultbroker.Answer, Request: kmsg.Fetch.Name(), Topic: r.topo.Topic(inputs[rnd.IntN(len(inputs))]),
		Error: errs[rnd.IntN(len(errs))].Message, Count: between(rnd, 5, 20)} // who checks reads, too, and takes its share
	if err := r.during(ctx, f, r.until(ctx, f.Count)); err != nil {
		return err
	}
	return r.afterwards(ctx, f)
}

func lostAck(ctx context.Context, r *rig, rnd *rand.Rand) error {
	n := between(rnd, 1, 5)
	if err := r.during(ctx, faultbroker.Fault{Kind: faultbroker.LoseAck, Client: memberClients, Count: n}, r.until(ctx, n)); err != nil {
		return err
	}
	return r.moving(ctx)
}

func cut(ctx context.Context, r *rig, rnd *rand.Rand) error {
	err := r.during(ctx, faultbroker.Fault{Kind: faultbroker.Cut, Client: memberClients}, func(int) error {
		return sleep(ctx, between(rnd, 0, 500*time.Millisecond))
	})
	if err != nil {
		return err
	}
	return r.moving(ctx)
}

func stall(ctx context.Context, r *rig, rnd *rand.Rand) error {
	err := r.during(ctx, faultbroker.Fault{Kind: faultbroker.Stall, Client: memberClients}, func(int) error {
		return sleep(ctx, between(rnd, 10*time.Second, 40*time.Second))
	})
	if err != nil {
		return err
	}
	return r.moving(ctx)
}

const tooSmall = "100" // bytes: no batch fits

// messageTooLarge lets an output take no batch for a while. What cannot be
// written must not count as done, and somebody must say which topic it is.
func messageTooLarge(ctx context.Context, r *rig, rnd *rand.Rand) error {
	r.tallies.broke()
	outputs := []string{topology.ProjectionTable, topology.PartialCounts, topology.DisplayTable}
	s := r.topo.Stream(outputs[rnd.IntN(len(outputs))])
	for _, m := range r.all() {
		m.ForgetReasons()
	}
	if err := r.maxMessage(ctx, s.Topic, tooSmall); err != nil {
		return err
	}
	named := r.awaitReason(ctx, r.all(), r.patience, s.Topic, "MESSAGE_TOO_LARGE")
	if named == nil {
		named = sleep(ctx, between(rnd, time.Second, 4*time.Second))
	}
	if err := errors.Join(named, r.maxMessage(context.WithoutCancel(ctx), s.Topic, s.Settings["max.message.bytes"])); err != nil {
		return err
	}
	if err := await(ctx, r.patience, "the members being ready again", r.allReady); err != nil {
		return err
	}
	return r.moving(ctx)
}

func (r *rig) maxMessage(ctx context.Context, topic, bytes string) error {
	answers, err := r.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &bytes}}, topic)
	for _, a := range answers {
		err = errors.Join(err, a.Err)
	}
	if err != nil {
		return fmt.Errorf("setting max.message.bytes of %s: %w", topic, err)
	}
	return nil
}
