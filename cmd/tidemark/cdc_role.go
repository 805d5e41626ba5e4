package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/tidemark/tidemark/emitters/cdc"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// slotName is the replication slot of a shard: unique within a server, since
// several shards may be databases of one.
func slotName(prefix string, shard int) string {
	return fmt.Sprintf("%s_shard_%d", strings.ReplaceAll(prefix, ".", "_"), shard)
}

func (b *builder) cdc(ctx context.Context) error {
	outbox, err := b.openOutbox()
	if err != nil {
		return err
	}
	db, err := b.openControl(ctx)
	if err != nil {
		return err
	}
	orders := &feedOrders{control: db, instance: b.cfg.Instance, log: b.log.With("component", "cdc")}
	for shard, url := range b.cfg.Postgres {
		e, err := cdc.New(cdc.Config{
			Shard: shard, URL: url, Slot: slotName(b.cfg.Prefix, shard), Publication: relations.Publication,
			Brokers: b.client.Brokers, Access: b.client.Access,
			Topic: b.topo.Topic(topology.CDC), Partition: shard, ServerName: b.cfg.Prefix,
			Backlog: backlogOf(outbox, shard), Logger: b.log, Registerer: b.metrics,
		})
		if err != nil {
			return err
		}
		orders.take(e)
		b.addDetailed(fmt.Sprintf("cdc.%d", shard), feeding(e, b.log), orders.first(e.Ready), func() string { return e.Status().Detail() })
	}
	b.actors = append(b.actors, actor{"cdc.orders", orders.run, always, orders.detail})
	return nil
}

func backlogOf(outbox *relations.Outbox, shard int) func(context.Context, pglogrepl.LSN) (cdc.Backlog, error) {
	return func(ctx context.Context, position pglogrepl.LSN) (cdc.Backlog, error) {
		l, err := outbox.Backlog(ctx, shard, uint64(position))
		return cdc.Backlog{Rows: l.Rows, Oldest: l.Oldest, Bytes: l.Bytes}, err
	}
}

// feeding makes an emitter that has failed for good stay as one that is not
// ready, while the rest of the process goes on, until a person has given it a
// slot that it can use.
func feeding(e *cdc.Emitter, log *slog.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			err := e.Run(ctx)
			if err == nil || ctx.Err() != nil {
				return nil
			}
			log.Error("the change feed of a shard stands until its slot can be used again; see `tidemark cdc status`", "component", "cdc", "error", err)
			if e.AwaitSlot(ctx) != nil {
				return nil
			}
			log.Info("the slot can be used again", "component", "cdc", "shard", e.Status().Shard)
		}
	}
}

// ordersInterval is how soon a pause is obeyed.
const ordersInterval = time.Second

// errOrders: an emitter that does not know whether it is paused must not begin.
var errOrders = errors.New("waiting for the control database to say whether the feed is paused")

// feedOrders brings the emitters of a process what operators have told them,
// and the control database how they are. While the control database is away
// the last that it said holds.
type feedOrders struct {
	control  *control.DB
	instance string
	log      *slog.Logger
	emitters []*cdc.Emitter

	mu    sync.Mutex
	known bool  // the control database has answered once
	err   error // of the last round
}

func (o *feedOrders) take(e *cdc.Emitter) {
	e.Pause(errOrders.Error())
	o.emitters = append(o.emitters, e)
}

// first makes ready one that is not before the orders are known.
func (o *feedOrders) first(ready func() error) func() error {
	return func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if !o.known {
			return errOrders
		}
		return ready()
	}
}

func (o *feedOrders) detail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return fmt.Sprintf("not asked now, so that a pause or resume is not heard: %v", o.err)
	}
	return ""
}

func (o *feedOrders) run(ctx context.Context) error {
	defer o.leave(context.WithoutCancel(ctx))
	for {
		err := o.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		o.note(err)
		if !pause.For(ctx, ordersInterval) {
			return nil
		}
	}
}

func (o *feedOrders) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil && o.err == nil {
		o.log.Warn("whether a feed is paused cannot be asked now; what was last heard holds", "error", err)
	}
	o.err, o.known = err, o.known || err == nil
}

// round tells how the emitters are, and obeys what comes back.
func (o *feedOrders) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	reports := make([]control.FeedEmitter, len(o.emitters))
	for i, e := range o.emitters {
		reports[i] = o.report(e.Status())
	}
	pauses, err := o.control.ReportEmitters(ctx, reports)
	if err != nil {
		return err
	}
	for _, e := range o.emitters {
		if p, paused := pauses[e.Status().Shard]; paused {
			e.Pause(whyPaused(p))
		} else {
			e.Resume()
		}
	}
	return nil
}

func (o *feedOrders) report(s cdc.Status) control.FeedEmitter {
	r := control.FeedEmitter{
		Shard: s.Shard, Instance: o.instance, State: string(s.State), Since: s.Since, PID: s.PID,
		Restarts: int64(s.Restarts), LastError: s.LastError,
	}
	if !s.LastErrorAt.IsZero() {
		r.LastErrorAt = &s.LastErrorAt
	}
	if !s.PublishedAt.IsZero() {
		r.PublishedAt = &s.PublishedAt
	}
	return r
}

func whyPaused(p control.FeedPause) string {
	why := fmt.Sprintf("by %s since %s", p.Who, p.At.UTC().Format(time.RFC3339))
	if p.Reason != "" {
		why += ": " + p.Reason
	}
	return why
}

// leave takes the emitters out of the list of those that work.
func (o *feedOrders) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if err := o.control.ForgetEmitters(ctx, o.instance); err != nil {
		o.log.Debug("the emitters stay listed for some seconds", "error", err)
	}
}
