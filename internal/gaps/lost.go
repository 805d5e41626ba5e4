package gaps

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// A shard that goes back, since a standby that was behind took over or a backup
// was restored, loses rows that were counted, and gives their ids and seal
// numbers to other rows. What then stands in topic facts and in the outbox is
// compared event by event:
//
//	facts    ── common ──┬── lost: passed on, no row of the outbox any more
//	                     │ fork
//	outbox   ── common ──┴── new: those that were not passed on are missing
//
// The feed is in commit order, so facts of the outbox come first and lost ones
// behind them; how far back to read is found by reading until the beginning is
// common.

// comparison is what came of it.
type comparison struct {
	missing idset.Ranges // rows of the outbox that were not passed on
	lost    []control.LostFact
	back    bool // the shard has lost facts, also if later versions have replaced all of them
}

func (c comparison) lostIDs() idset.Ranges {
	ids := make([]int64, len(c.lost))
	for i, f := range c.lost {
		ids[i] = f.OutboxID
	}
	return idset.Of(ids...)
}

// Windows of facts that are read: the first, and by how much the next is longer.
const (
	firstWindow = 2 * time.Minute
	widen       = 8
)

// compare compares facts and outbox from where both still agree, which is below
// id from, up to id upTo. at is when the suspicion came up.
func (k *Keeper) compare(ctx context.Context, shard int, at time.Time, from, upTo int64) (comparison, error) {
	for window := firstWindow; ; window *= widen {
		passed, whole, err := k.cfg.Healer.passedOn(ctx, shard, at.Add(-window))
		if err != nil || len(passed) == 0 {
			return comparison{}, err
		}
		// What came last may not be seen yet, which would look as if it were lost.
		if err := k.cfg.Outbox.AwaitWriters(ctx, shard); err != nil {
			return comparison{}, err
		}
		c, agreed, err := k.against(ctx, shard, passed, from, upTo, whole)
		if err != nil {
			return c, err
		}
		if !agreed {
			continue
		}
		c.back = len(c.lost) > 0
		c.lost, err = k.stillCounted(ctx, shard, c.lost)
		return c, err
	}
}

// against compares facts, in their order, with the outbox. agreed tells that
// the first of them are old enough: all of the outbox, and below from.
func (k *Keeper) against(ctx context.Context, shard int, passed []control.LostFact, from, upTo int64, whole bool) (c comparison, agreed bool, err error) {
	beginning := (len(passed) + 9) / 10
	lowest, highest, common := passed[0].OutboxID, upTo, int64(0)
	came := make(map[string]struct{}, len(passed))
	for i, p := range passed {
		lowest, highest = min(lowest, p.OutboxID), max(highest, p.OutboxID)
		if i < beginning {
			common = max(common, p.OutboxID)
		}
		came[p.EventID] = struct{}{}
	}
	there := make(map[string]struct{}, len(passed))
	first, err := k.cfg.Outbox.Events(ctx, shard, lowest, highest, func(id int64, event string) error {
		there[event] = struct{}{}
		if _, ok := came[event]; !ok && id > common && id <= upTo {
			c.missing = c.missing.Append(id)
		}
		return nil
	})
	if err != nil {
		return c, false, err
	}
	deleted, err := k.cfg.Outbox.Deleted(ctx, shard, idset.Ranges{{From: lowest, To: highest}})
	if err != nil {
		return c, false, err
	}
	byHand := relationsOf(deleted)
	agreed = common < from
	for i, p := range passed {
		_, ok := there[p.EventID]
		if ok || p.OutboxID < first || byHand.Contains(p.OutboxID) || rebuilt(shard, p) {
			continue
		}
		c.lost = append(c.lost, p)
		agreed = agreed && i >= beginning
	}
	return c, agreed || whole, nil
}

// rebuilt tells that a fact is one that healing made of a relation.
func rebuilt(shard int, f control.LostFact) bool {
	return f.EventID == rebuiltEvent(shard, f.Relation, f.Version)
}

// passedOn reads what intake has passed on of a shard since a time, in order;
// whole tells that this is all that the topic has.
func (h *Healer) passedOn(ctx context.Context, shard int, since time.Time) (out []control.LostFact, whole bool, err error) {
	topic, partition := h.cfg.Topology.Topic(topology.Facts), int32(shard)
	from, end, whole, err := h.span(ctx, topic, partition, since)
	if err != nil || from >= end {
		return nil, true, err
	}
	client, err := kafkaadmin.Client(h.cfg.Brokers, h.cfg.Access, kgo.KeepControlRecords(), // so that the last offset is seen
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {partition: kgo.NewOffset().At(from)}}))
	if err != nil {
		return nil, false, err
	}
	defer client.Close()
	for next := from; next < end; {
		fetches := client.PollFetches(ctx)
		if err := errors.Join(ctx.Err(), fetches.Err()); err != nil {
			return nil, false, fmt.Errorf("reading %s/%d: %w", topic, partition, err)
		}
		for _, r := range fetches.Records() {
			next = r.Offset + 1
			var c tidemarkv1.RelationChange
			if r.Attrs.IsControl() {
				continue
			}
			if err := c.UnmarshalVT(r.Value); err != nil {
				return nil, false, fmt.Errorf("reading a record of %s/%d at offset %d: %w", topic, partition, r.Offset, err)
			}
			key := topology.Relation{Kind: topology.Kind(c.Kind), User: c.UserId, Target: c.TargetId}.Key()
			out = append(out, control.LostFact{OutboxID: c.OutboxId, EventID: c.EventId, Relation: key, Version: c.RelationVersion})
		}
	}
	return out, whole, nil
}

// span is where a partition's records since a time begin and end; whole tells
// that there are none before.
func (h *Healer) span(ctx context.Context, topic string, partition int32, since time.Time) (from, end int64, whole bool, err error) {
	starts, err := h.admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return 0, 0, false, err
	}
	begins, err := h.admin.ListOffsetsAfterMilli(ctx, since.UnixMilli(), topic)
	if err != nil {
		return 0, 0, false, err
	}
	ends, err := h.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return 0, 0, false, err
	}
	if err := errors.Join(starts.Error(), begins.Error(), ends.Error()); err != nil {
		return 0, 0, false, fmt.Errorf("asking for the offsets of %s: %w", topic, err)
	}
	at := func(l kadm.ListedOffsets) int64 {
		o, _ := l.Lookup(topic, partition)
		return o.Offset
	}
	from = max(at(begins), at(starts))
	return from, at(ends), from <= at(starts), nil
}

// supersede has the shard write every relation of lost facts again, above what
// was counted, and sends those as they are then. It gives the ids of the lost
// facts' rows.
func (h *Healer) supersede(ctx context.Context, g control.Gap, w writer, out *outlet) (n int, ids idset.Ranges, err error) {
	lost, err := h.cfg.Control.LostFacts(ctx, g.Shard, g.Missing)
	if err != nil || len(lost) == 0 {
		return 0, nil, err
	}
	ids = comparison{lost: lost}.lostIDs()
	source, err := h.cfg.Control.Source(ctx, g.Shard)
	if err != nil {
		return 0, ids, err
	}
	for i, l := range lost {
		if i > 0 && l.Relation == lost[i-1].Relation {
			continue // an older version
		}
		r, err := topology.ParseRelationKey(l.Relation)
		if err != nil {
			return n, ids, err
		}
		if err := h.cfg.Outbox.Supersede(ctx, g.Shard, r, l.Version, "gap:"+l.EventID); err != nil {
			return n, ids, err
		}
		f, _, err := h.cfg.Outbox.Fact(ctx, g.Shard, r)
		if err != nil {
			return n, ids, err
		}
		// Under an id that is settled: one above could be a new row's.
		record, err := w.fact(max(1, min(l.OutboxID, source.SettledID)), f)
		if err := out.send(ctx, record, err); err != nil {
			return n, ids, err
		}
		n++
	}
	return n, ids, nil
}

// stillCounted leaves those lost facts that no later version has replaced.
func (k *Keeper) stillCounted(ctx context.Context, shard int, lost []control.LostFact) (out []control.LostFact, err error) {
	for _, l := range lost {
		r, err := topology.ParseRelationKey(l.Relation)
		if err != nil {
			return nil, err
		}
		f, _, err := k.cfg.Outbox.Fact(ctx, shard, r)
		if err != nil {
			return nil, err
		}
		if f.Version <= l.Version {
			out = append(out, l)
		}
	}
	return out, nil
}
