package intake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// recorder stands for the control database.
type recorder struct {
	mu       sync.Mutex
	fail     error
	told     int // suspicions, also those that failed
	raised   []*tidemarkv1.Suspicion
	verified map[int]uint64
}

func (r *recorder) Suspect(_ context.Context, s *tidemarkv1.Suspicion) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told++
	if r.fail != nil {
		return r.fail
	}
	r.raised = append(r.raised, s)
	return nil
}

func (r *recorder) Verified(_ context.Context, shard int, seal uint64, _, _ int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.verified == nil {
		r.verified = map[int]uint64{}
	}
	r.verified[shard] = seal
	return nil
}

// outbox makes the records of shard 2 in commit order.
type outbox struct {
	t     *testing.T
	next  int64
	seals uint64
	last  int64
	proof topology.SealProof
}

func (o *outbox) row(aggregate, key, kind string, payload any) topology.Record {
	o.next++
	e := envelopeOf(2, aggregate, key, kind, jsonb(o.t, payload))
	e.After.ID = o.next
	return recordOf(o.t, e)
}

// facts makes n rows of n relations.
func (o *outbox) facts(n int) []topology.Record {
	var out []topology.Record
	for range n {
		e := sampleEvent()
		e.UserID = fmt.Sprint("u", o.next)
		e.AggregateKey = topology.Relation{Kind: topology.Like, User: e.UserID, Target: e.TargetID}.Key()
		e.EventID = fmt.Sprint("event-", o.next+1)
		out = append(out, o.row(topology.AggregateRelation, e.AggregateKey, topology.TypeRelationChanged, e))
		o.proof.Rows++
		o.proof.XorSum ^= hashOf(o.next)
	}
	return out
}

// seal makes a seal and its proof.
func (o *outbox) seal() []topology.Record {
	o.seals++
	seal := o.row(topology.AggregateSeal, fmt.Sprint("seal:", o.seals), topology.TypeSealed, topology.Seal{Seal: o.seals, SealedAt: sampleTime})
	p := o.proof
	p.Seal, p.FromID, p.ToID = o.seals, o.last+1, o.next
	o.last, o.proof = o.next, topology.SealProof{}
	return []topology.Record{seal, o.row(topology.AggregateProof, fmt.Sprint("proof:", o.seals), topology.TypeSealProven, p)}
}

func (f *feed) awaitVerified(seal uint64) {
	f.t.Helper()
	testenv.Eventually(f.t, 30*time.Second, func() error {
		f.recorder.mu.Lock()
		defer f.recorder.mu.Unlock()
		if have := f.recorder.verified[2]; have != seal {
			return fmt.Errorf("shard 2 is verified up to seal %d, not %d", have, seal)
		}
		return nil
	})
}

// absent is every id in question that did not come.
func (f *feed) absent() idset.Ranges {
	f.t.Helper()
	f.recorder.mu.Lock()
	defer f.recorder.mu.Unlock()
	var all idset.Ranges
	for _, s := range f.recorder.raised {
		var r idset.Ranges
		if err := r.UnmarshalBinary(s.Absent); err != nil {
			f.t.Fatal(err)
		}
		all = all.Union(r)
	}
	return all
}

// truncate deletes the records of cdc before an offset; -1: all.
func (f *feed) truncate(to int64) {
	f.t.Helper()
	admin := kadm.NewClient(f.client)
	topic := f.topo.Topic(topology.CDC)
	if to < 0 {
		ends, err := admin.ListEndOffsets(f.t.Context(), topic)
		if err != nil {
			f.t.Fatal(err)
		}
		o, _ := ends.Lookup(topic, 2)
		to = o.Offset
	}
	var at kadm.Offsets
	at.Add(kadm.Offset{Topic: topic, Partition: 2, At: to, LeaderEpoch: -1})
	answer, err := admin.DeleteRecords(f.t.Context(), at)
	if err == nil {
		err = answer.Error()
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// Every seal is verified over restarts that lose the local store; nothing that
// came is in question.
func TestSealsAreVerifiedOverRestarts(t *testing.T) {
	f, o := newFeed(t), &outbox{t: t}
	for seal := uint64(1); seal <= 4; seal++ {
		f.start()
		f.send(o.facts(5)...)
		f.read(topology.Facts, int(10*(seal-1))+5)
		f.stop()
		f.send(o.facts(5)...)
		f.start()
		f.send(o.seal()...)
		f.awaitVerified(seal)
		f.stop()
	}
	if f.recorder.told != 0 {
		t.Errorf("nothing was lost, and yet: %v", f.recorder.raised)
	}
}

// The log loses records that intake has not read, together with some that it
// has: only the former are in question.
func TestWhatTheLogLosesBeforeItIsReadIsInQuestion(t *testing.T) {
	f, o := newFeed(t), &outbox{t: t}
	f.start()
	f.send(o.facts(3)...)
	f.send(o.seal()...) // ids 4, 5
	f.send(o.facts(4)...)
	f.read(topology.Facts, 7)
	f.awaitVerified(1)
	f.stop()
	f.send(o.facts(6)...) // ids 10..15
	f.truncate(-1)
	f.send(o.facts(2)...)
	f.start()
	f.send(o.seal()...)
	f.awaitVerified(2)
	f.stop()
	if got := f.absent(); !slices.Equal(got, idset.Ranges{{From: 10, To: 15}}) {
		t.Errorf("in question: %v", got)
	}
	s := f.recorder.raised[0]
	if s.Seal != 2 || s.ReceivedRows != 6 || s.ProvenRows != 12 || len(s.Holes) == 0 || s.Holes[len(s.Holes)-1].To != 14 {
		t.Errorf("suspicion %v", s)
	}
}

// The feed skips rows while intake runs.
func TestWhatTheFeedSkipsIsInQuestion(t *testing.T) {
	f, o := newFeed(t), &outbox{t: t}
	f.start()
	f.send(o.facts(3)...)
	f.read(topology.Facts, 3)
	o.facts(2)            // committed, but lost: ids 4, 5
	f.send(o.facts(1)...) // id 6
	f.read(topology.Facts, 4)
	f.send(o.seal()...)
	f.awaitVerified(1)
	f.stop()
	if got := f.absent(); !slices.Equal(got, idset.Ranges{{From: 4, To: 5}}) {
		t.Errorf("in question: %v", got)
	}
}

// What cannot be recorded waits in the table, over a restart, and is told once
// more than needed at most.
func TestASuspicionSurvivesUntilItIsRecorded(t *testing.T) {
	f, o := newFeed(t), &outbox{t: t}
	f.recorder.fail = errors.New("the control database is away")
	f.start()
	f.send(o.facts(3)...)
	o.facts(1) // lost: id 4
	f.send(o.seal()...)
	testenv.Eventually(t, 30*time.Second, func() error {
		f.recorder.mu.Lock()
		defer f.recorder.mu.Unlock()
		if f.recorder.told == 0 {
			return errors.New("nothing is told")
		}
		return nil
	})
	f.stop()
	if len(f.recorder.raised) != 0 || f.recorder.verified[2] != 0 {
		t.Fatalf("recorded %v, verified %v", f.recorder.raised, f.recorder.verified)
	}
	f.recorder.fail = nil
	f.start()
	f.send(o.seal()...)
	f.awaitVerified(2)
	f.stop()
	f.start()
	f.send(o.seal()...)
	f.awaitVerified(3)
	f.stop()
	if n := len(f.recorder.raised); n != 1 || !slices.Equal(f.absent(), idset.Of(4)) {
		t.Errorf("%d suspicions, in question %v", n, f.absent())
	}
}

// Deliveries that repeat everything, also behind a recorded suspicion, change
// nothing.
func TestRepeatedDeliveriesRaiseNothing(t *testing.T) {
	f, o := newFeed(t), &outbox{t: t}
	first := append(o.facts(3), o.seal()...)
	o.facts(1) // lost: id 6
	second := append(o.facts(2), o.seal()...)
	f.start()
	f.send(first...)
	f.send(second...)
	f.awaitVerified(2)
	f.send(first...)
	f.send(second...)
	f.send(append(o.facts(1), o.seal()...)...)
	f.awaitVerified(3)
	f.stop()
	if n := len(f.recorder.raised); n != 1 || !slices.Equal(f.absent(), idset.Of(6)) {
		t.Errorf("%d suspicions, in question %v", n, f.absent())
	}
}
