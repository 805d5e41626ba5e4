package main

import (
	"context"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/gaps"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// feedTools are what gaps are named and healed with.
type feedTools struct {
	control *control.DB
	outbox  *relations.Outbox
	healer  *gaps.Healer
}

func (t *feedTools) close() {
	if t.healer != nil {
		t.healer.Close()
	}
	if t.outbox != nil {
		t.outbox.Close()
	}
	if t.control != nil {
		t.control.Close()
	}
}

// openFeedTools connects to the control database, and to the rest when it is
// used.
func openFeedTools(ctx context.Context, cfg config.Config, topo *topology.Topology) (_ *feedTools, err error) {
	t := &feedTools{}
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	if t.control, err = control.Open(ctx, cfg.Control); err != nil {
		return nil, err
	}
	if t.outbox, err = relations.OpenOutbox(cfg.Postgres); err != nil {
		return nil, err
	}
	access, err := cfg.Kafka.Access()
	if err != nil {
		return nil, err
	}
	t.healer, err = gaps.NewHealer(gaps.HealerConfig{
		Brokers: cfg.Kafka.Brokers, Access: access, Topology: topo, Control: t.control, Outbox: t.outbox,
		Slot: slotsOf(cfg), Publication: relations.Publication,
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func slotsOf(cfg config.Config) func(int) string {
	return func(shard int) string { return slotName(cfg.Prefix, shard) }
}

// gaps names what intake's seals show to be missing, and watches over its
// healing.
func (b *builder) gaps(ctx context.Context) (*gaps.Keeper, error) {
	t, err := openFeedTools(ctx, b.cfg, b.topo)
	if err != nil {
		return nil, err
	}
	b.close = append(b.close, t.close)
	k, err := gaps.New(gaps.Config{
		Control: t.control, Outbox: t.outbox, Healer: t.healer, Shards: b.cfg.Shards, Slot: slotsOf(b.cfg), Publication: relations.Publication,
		Auto: b.cfg.GapHealing == config.HealAutomatically, Logger: b.log, Registerer: b.metrics,
	})
	if err != nil {
		return nil, err
	}
	b.add("gaps", k.Run, k.Ready)
	return k, nil
}
