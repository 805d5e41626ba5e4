package main

import (
	"context"
	"fmt"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/relations"
)

// retention drops the shards' old time partitions. Component outbox.K says in
// its detail why one that is too old has to stay.
func (b *builder) retention(ctx context.Context) error {
	shared, err := b.overloadLevels(ctx)
	if err != nil {
		return err
	}
	for shard, url := range b.cfg.Postgres {
		name := fmt.Sprintf("outbox.%d", shard)
		r, err := relations.NewRetention(relations.RetentionConfig{
			Shard: shard, URL: url, Outbox: b.cfg.OutboxRetention, Commands: b.cfg.CommandRetention,
			Paused: shared.consumersPaused, Holds: b.holds, Report: func(detail string) { b.health.Set(name, nil, detail) },
			Logger: b.log, Registerer: b.metrics,
		})
		if err != nil {
			return err
		}
		b.health.Set(name, nil, "")
		b.add(fmt.Sprintf("retention.%d", shard), r.Run, always)
	}
	return nil
}

// holds keeps the outbox rows that intake has not verified and those that open
// gaps name: both may have to be read again.
func (b *builder) holds(ctx context.Context, shard int) ([]relations.Hold, error) {
	db, err := control.Open(ctx, b.cfg.Control)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	s, err := db.Source(ctx, shard)
	if err != nil {
		return nil, err
	}
	holds := []relations.Hold{{FromID: s.SettledID + 1, Reason: fmt.Sprintf("intake has verified the change feed only up to seal %d", s.VerifiedSeal)}}
	open, err := db.Gaps(ctx, control.GapFilter{Shard: &shard, States: []control.GapState{control.GapOpen, control.GapHealing}})
	if err != nil {
		return nil, err
	}
	for _, g := range open {
		if len(g.Missing) > 0 {
			holds = append(holds, relations.Hold{FromID: g.Missing[0].From, Reason: fmt.Sprintf("the gap of seal %d is not healed", g.Seal)})
		}
	}
	return holds, nil
}
