package gaps

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/evidence"
	"github.com/tidemark/tidemark/internal/idset"
	"github.com/tidemark/tidemark/topology"
)

// Outbox is the shards' side of a gap; relations.Outbox is one.
type Outbox interface {
	rows
	trail
	feed
}

type rows interface {
	AwaitWriters(ctx context.Context, shard int) error
	RelationIDs(ctx context.Context, shard int, ids idset.Ranges) (idset.Ranges, error)
	PresentIDs(ctx context.Context, shard int, ids idset.Ranges) (idset.Ranges, error)
	Rows(ctx context.Context, shard int, ids idset.Ranges, visit func(topology.OutboxRow) error) error
	Events(ctx context.Context, shard int, from, to int64, visit func(id int64, event string) error) (first int64, err error)
	Supersede(ctx context.Context, shard int, r topology.Relation, version uint64, operationID string) error
	Fact(ctx context.Context, shard int, r topology.Relation) (f evidence.Fact, ok bool, err error)
	FactsChanged(ctx context.Context, shard int, from, to time.Time, visit func(evidence.Fact) error) error
}

type trail interface {
	Deleted(ctx context.Context, shard int, ids idset.Ranges) ([]evidence.Deleted, error)
	UnnamedDeletions(ctx context.Context, shard int, upTo int64) ([]evidence.Deleted, error)
	NameDeletions(ctx context.Context, shard int, ids idset.Ranges) error
}

type feed interface {
	Seals(ctx context.Context, shard int, from, to int64) ([]evidence.Seal, error)
	Proofs(ctx context.Context, shard int, from int64, first, last uint64) ([]topology.SealProof, error)
	Feed(ctx context.Context, shard int, slot, publication string) (evidence.Feed, error)
}

// Config of a Keeper.
type Config struct {
	Control *control.DB
	Outbox  Outbox
	Healer  *Healer
	Shards  int
	// Slot names a shard's replication slot; Publication the outbox's.
	Slot        func(shard int) string
	Publication string
	// Auto heals gaps as they are raised.
	Auto bool
	// Interval between two looks at gaps and feeds: 2 s.
	Interval   time.Duration
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// Keeper records gaps and watches over their healing. Any number may work on
// the same deployment.
type Keeper struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	mu   sync.Mutex
	err  error         // of the last round; nil when all is well
	seen map[int]sight // by shard
}

// sight is how a feed looked when it was seen.
type sight struct {
	feed *evidence.Feed
	at   time.Time
}

// who is what the audit calls this part.
const who = "tidemark intake"

// New makes a Keeper; Run starts its watch.
func New(cfg Config) (*Keeper, error) {
	if cfg.Interval == 0 {
		cfg.Interval = 2 * time.Second
	}
	m, err := newMetrics(cfg.Registerer, cfg.Shards)
	if err != nil {
		return nil, fmt.Errorf("gaps: registering metrics: %w", err)
	}
	return &Keeper{cfg: cfg, log: cfg.Logger.With("component", "gaps"), metrics: m, err: errors.New("not looked yet"), seen: map[int]sight{}}, nil
}

// Verified notes how far a shard's feed was compared, and names the rows up to
// there that someone deleted from the outbox by hand.
func (k *Keeper) Verified(ctx context.Context, shard int, seal uint64, settledID, cdcOffset int64) error {
	now, err := k.look(ctx, shard)
	if err != nil {
		return err
	}
	s := control.Source{Shard: shard, VerifiedSeal: seal, SettledID: settledID, CDCOffset: cdcOffset, Feed: &now}
	if err := k.cfg.Control.SetVerified(ctx, s); err != nil {
		return err
	}
	return k.nameDeletions(ctx, shard, settledID)
}

// Run watches until ctx ends; it returns nil then.
func (k *Keeper) Run(ctx context.Context) error {
	tick := time.NewTicker(k.cfg.Interval)
	defer tick.Stop()
	for {
		err := k.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		k.note(err)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (k *Keeper) note(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil && k.err == nil {
		k.log.Warn("gaps cannot be watched now", "error", err)
	}
	k.err = err
}

// Ready is nil when the last look succeeded. Open gaps do not make a process
// unready: they have a metric and a command of their own.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

func (k *Keeper) round(ctx context.Context) error {
	all, err := k.cfg.Control.Gaps(ctx, control.GapFilter{States: []control.GapState{control.GapOpen, control.GapHealing}})
	if err != nil {
		return err
	}
	k.metrics.set(all)
	var errs []error
	for shard := range k.cfg.Shards {
		errs = append(errs, k.lookAt(ctx, shard))
	}
	if len(all) == 0 {
		return errors.Join(errs...)
	}
	// One process at a time is enough; two would do no harm.
	_, err = k.cfg.Control.Exclusively(ctx, "healing gaps", func(ctx context.Context) error {
		for _, g := range all {
			errs = append(errs, k.tend(ctx, g))
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// tend takes a gap one step on.
func (k *Keeper) tend(ctx context.Context, g control.Gap) (err error) {
	switch {
	case g.State == control.GapHealing:
		_, err = k.cfg.Healer.Confirm(ctx, g)
	case k.cfg.Auto:
		_, err = k.cfg.Healer.Heal(ctx, g, who+", automatically")
	}
	if errors.Is(err, control.ErrGapChanged) {
		return nil // the next round sees it as it is
	}
	return err
}

// lookEvery is how often a feed is looked at that brings no proofs.
const lookEvery = 10 * time.Second

// look sees how a shard's feed is now, and notes what was done to it since it
// was last seen, here or, after a start, by whoever was here before.
func (k *Keeper) look(ctx context.Context, shard int) (evidence.Feed, error) {
	now, err := k.cfg.Outbox.Feed(ctx, shard, k.cfg.Slot(shard), k.cfg.Publication)
	if err != nil {
		return now, err
	}
	k.mu.Lock()
	was, known := k.seen[shard]
	k.mu.Unlock()
	if !known {
		s, err := k.cfg.Control.Source(ctx, shard)
		if err != nil {
			return now, err
		}
		was.feed = s.Feed
	}
	events := changes(was.feed, now)
	for _, e := range events {
		k.log.Warn("the change feed was changed", "shard", shard, "what", e.Detail)
	}
	if len(events) > 0 || was.feed == nil {
		if err := k.cfg.Control.SetFeed(ctx, shard, now, events); err != nil {
			return now, err
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seen[shard] = sight{&now, time.Now()}
	return now, nil
}

// lookAt looks at a shard's feed unless that was done of late.
func (k *Keeper) lookAt(ctx context.Context, shard int) error {
	k.mu.Lock()
	recent := time.Since(k.seen[shard].at) < lookEvery
	k.mu.Unlock()
	if recent {
		return nil
	}
	_, err := k.look(ctx, shard)
	return err
}

// changes tells what was done to a feed between two looks.
func changes(was *evidence.Feed, now evidence.Feed) (out []control.FeedEvent) {
	if was == nil {
		return nil
	}
	event := func(c control.Cause, detail string) { out = append(out, control.FeedEvent{Cause: c, Detail: detail}) }
	switch {
	case was.SlotExists && !now.SlotExists:
		event(control.CauseSlotRecreated, "the replication slot is gone")
	case !was.SlotExists && now.SlotExists:
		event(control.CauseSlotRecreated, "the replication slot was created")
	case now.Transactions >= 0 && was.Transactions > now.Transactions:
		event(control.CauseSlotRecreated, "the replication slot was created anew, or its statistics were reset")
	}
	if was.Publication != now.Publication {
		event(control.CausePublication, "the publication was altered")
	}
	return out
}
