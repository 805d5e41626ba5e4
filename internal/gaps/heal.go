package gaps

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/internal/kafkaaccess"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// HealerConfig says what a Healer works with.
type HealerConfig struct {
	Brokers     []string
	Access      *kafkaaccess.Access // nil: plain
	Topology    *topology.Topology
	Control     *control.DB
	Outbox      Outbox
	Slot        func(shard int) string
	Publication string
}

// Healer writes what gaps name into the change feed again. Healing twice does
// what healing once does.
type Healer struct {
	cfg    HealerConfig
	client *kgo.Client
	admin  *kadm.Client
	topic  string
}

// NewHealer makes a Healer; it connects when it is used.
func NewHealer(cfg HealerConfig) (*Healer, error) {
	client, err := kafkaadmin.Client(cfg.Brokers, cfg.Access, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		return nil, err
	}
	return &Healer{cfg: cfg, client: client, admin: kadm.NewClient(client), topic: cfg.Topology.Topic(topology.CDC)}, nil
}

// Close ends the connections to Kafka.
func (h *Healer) Close() { h.client.Close() }

// Sent tells what healing a gap wrote.
type Sent struct {
	Rows  int // read again from the outbox
	Facts int // rebuilt from relations as they are now
	Above int // relations that were written again, above versions that the shard has lost
}

// Heal writes the rows that g names into the change feed; g then is healing,
// and Confirm tells when it is healed. Its error may be control.ErrGapChanged.
func (h *Healer) Heal(ctx context.Context, g control.Gap, by string) (Sent, error) {
	var sent Sent
	view, err := h.cfg.Outbox.Feed(ctx, g.Shard, h.cfg.Slot(g.Shard), h.cfg.Publication)
	if err != nil {
		return sent, err
	}
	w := writer{
		topic: h.topic, name: h.cfg.Topology.Config.Prefix, mark: fmt.Sprintf("%d:%d", g.Shard, g.Seal), shard: g.Shard, feed: view, now: time.Now,
	}
	out := &outlet{client: h.client, first: -1}
	var present idset.Ranges
	err = h.cfg.Outbox.Rows(ctx, g.Shard, g.Missing, func(r topology.OutboxRow) error {
		present = present.Append(r.ID)
		sent.Rows++
		record, err := w.row(r)
		return out.send(ctx, record, err)
	})
	var lost idset.Ranges
	if err == nil {
		sent.Above, lost, err = h.supersede(ctx, g, w, out)
	}
	if err == nil {
		sent.Facts, err = h.rebuild(ctx, g, g.Missing.Without(present).Without(lost), w, out)
	}
	if err = errors.Join(err, out.wait(ctx)); err != nil {
		return sent, fmt.Errorf("healing the gap of shard %d, seal %d: %w", g.Shard, g.Seal, err)
	}
	note := ""
	if sent.Facts > 0 {
		note = fmt.Sprintf("%d rows that the outbox no longer has were rebuilt from their relations' present state", sent.Facts)
	}
	if out.first < 0 {
		return sent, h.cfg.Control.MarkHealed(ctx, g, by)
	}
	return sent, h.cfg.Control.MarkSent(ctx, g, out.first, out.last, by, note)
}

// rebuild writes the facts behind rows that are gone.
func (h *Healer) rebuild(ctx context.Context, g control.Gap, gone idset.Ranges, w writer, out *outlet) (int, error) {
	if len(gone) == 0 {
		return 0, nil
	}
	deleted, err := h.cfg.Outbox.Deleted(ctx, g.Shard, gone)
	if err != nil {
		return 0, err
	}
	n := 0
	send := func(id int64, f evidence.Fact) error {
		n++
		record, err := w.fact(id, f)
		return out.send(ctx, record, err)
	}
	var known []int64
	for _, d := range deleted {
		known = append(known, d.ID)
		r, err := topology.ParseRelationKey(d.AggregateID)
		if d.AggregateType != topology.AggregateRelation || err != nil {
			continue
		}
		f, ok, err := h.cfg.Outbox.Fact(ctx, g.Shard, r)
		if err != nil {
			return n, err
		}
		if ok {
			if err := send(d.ID, f); err != nil {
				return n, err
			}
		}
	}
	gone = gone.Without(idset.Of(known...))
	if len(gone) == 0 || !g.Exact && g.Cause != control.CauseRowDeleted {
		return n, nil // ids of wider ranges, not of rows
	}
	from, to, err := h.window(ctx, g.Shard, gone)
	if err != nil {
		return n, err
	}
	err = h.cfg.Outbox.FactsChanged(ctx, g.Shard, from, to, func(f evidence.Fact) error { return send(gone[0].From, f) })
	return n, err
}

// window is the time in which the rows with these ids were committed. A fact
// that changed again later has a later row, and its version is higher.
func (h *Healer) window(ctx context.Context, shard int, ids idset.Ranges) (from, to time.Time, err error) {
	const slack = time.Minute // a transition is dated before its commit
	first, last := ids[0].From, ids[len(ids)-1].To
	to = time.Now().Add(24 * time.Hour)
	seals, err := h.cfg.Outbox.Seals(ctx, shard, 0, last)
	if err != nil {
		return from, to, err
	}
	for _, s := range seals {
		if s.ToID < first {
			from = s.SealedAt.Add(-slack)
		}
		if s.ToID > last {
			to = s.SealedAt.Add(slack)
			break
		}
	}
	return from, to, nil
}

// Confirm tells whether a healing gap is healed: intake's group has passed the
// records that heal it, and the log still has them, so that they cannot have
// been lost before. Records that were lost open the gap again.
func (h *Healer) Confirm(ctx context.Context, g control.Gap) (healed bool, err error) {
	if g.SentFirst == nil || g.SentLast == nil {
		return false, nil
	}
	// In this order: what the log has later it had before.
	group := h.cfg.Topology.Group(topology.IntakeGroup).ID
	committed, err := h.admin.FetchOffsets(ctx, group)
	if err != nil {
		return false, fmt.Errorf("reading the position of group %s: %w", group, err)
	}
	start, err := h.start(ctx, g.Shard)
	if err != nil {
		return false, err
	}
	if start > *g.SentFirst {
		return false, h.cfg.Control.Reopen(ctx, g, who, "the broker lost the records that were to heal it")
	}
	at, ok := committed.Lookup(h.topic, int32(g.Shard))
	if !ok || at.At <= *g.SentLast {
		return false, nil
	}
	return true, h.cfg.Control.MarkHealed(ctx, g, g.HealedBy)
}

// start is the first offset that a shard's partition still has.
func (h *Healer) start(ctx context.Context, shard int) (int64, error) {
	offsets, err := h.admin.ListStartOffsets(ctx, h.topic)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("reading the start of %s/%d: %w", h.topic, shard, err)
	}
	o, _ := offsets.Lookup(h.topic, int32(shard))
	return o.Offset, nil
}

// truncated tells whether holes that intake met are the log's lost beginning.
func (h *Healer) truncated(ctx context.Context, shard int, holes []*tidemarkv1.OffsetHole) (bool, error) {
	if len(holes) == 0 {
		return false, nil
	}
	start, err := h.start(ctx, shard)
	if err != nil {
		return false, err
	}
	for _, hole := range holes {
		if start > hole.From {
			return true, nil
		}
	}
	return false, nil
}

// outlet sends records and keeps the offsets that they got.
type outlet struct {
	client *kgo.Client

	mu          sync.Mutex
	first, last int64
	err         error
}

func (o *outlet) send(ctx context.Context, r *kgo.Record, err error) error {
	if err != nil {
		return err
	}
	o.client.Produce(ctx, r, func(r *kgo.Record, err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if err != nil {
			if o.err == nil {
				o.err = err
			}
			return
		}
		if o.first < 0 || r.Offset < o.first {
			o.first = r.Offset
		}
		o.last = max(o.last, r.Offset)
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// wait ends when every record is acknowledged.
func (o *outlet) wait(ctx context.Context) error {
	if err := o.client.Flush(ctx); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
