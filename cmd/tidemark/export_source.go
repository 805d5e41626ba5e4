package main

import (
	"context"
	"slices"
	"time"

	"github.com/tidemark/tidemark/exports"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// exportSource is what exports come from.
type exportSource struct {
	exports.Config
	opened []func()
}

func (s *exportSource) close() {
	for _, f := range slices.Backward(s.opened) {
		f()
	}
}

// openExportSource connects to everything that an export needs.
func openExportSource(ctx context.Context, cfg config.Config, patience time.Duration) (_ *exportSource, err error) {
	s := &exportSource{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return nil, err
	}
	s.opened = append(s.opened, db.Close)
	reverse, err := db.ReverseGeneration(ctx)
	if err != nil {
		return nil, err
	}
	store, err := openFacts(ctx, cfg, db)
	if err != nil {
		return nil, err
	}
	s.opened = append(s.opened, store.Close)
	rules, err := privacy.Open(ctx, cfg.Control)
	if err != nil {
		return nil, err
	}
	s.opened = append(s.opened, rules.Close)
	lists, err := listsAtBarriers(cfg, reverse, patience)
	if err != nil {
		return nil, err
	}
	s.opened = append(s.opened, lists.Stop)
	s.Config = exports.Config{
		Lists: lists, Barrier: cutsOf(store), Rules: rules, Feed: db, Audit: db, ReverseGeneration: reverse.ID, Patience: patience,
	}
	return s, nil
}

// listsAtBarriers asks the owners of the reverse index.
func listsAtBarriers(cfg config.Config, reverse topology.ReverseGeneration, patience time.Duration) (*views.LikersAt, error) {
	topo, err := cfg.Topology()
	if err != nil {
		return nil, err
	}
	client, err := gokaClient(cfg, "export")
	if err != nil {
		return nil, err
	}
	tls, err := cfg.Likers.ClientTLS()
	if err != nil {
		return nil, err
	}
	return views.NewLikersAt(views.LikersConfig{Client: client, Topology: topo, Reverse: reverse, TLS: tls, Patience: patience})
}

// cutsOf takes barriers. Their snapshots are not needed: what was active is read
// from the reverse index.
func cutsOf(store *relations.Store) func(context.Context, string) ([]exports.Cut, error) {
	return func(ctx context.Context, id string) (cuts []exports.Cut, err error) {
		b, err := store.BarrierNamed(ctx, id)
		if err != nil {
			return nil, err
		}
		defer b.Close()
		for _, s := range b.Shards {
			cuts = append(cuts, exports.Cut{Shard: s.Shard, Seal: s.Seal, OutboxID: s.OutboxID, SealedAt: s.SealedAt})
		}
		return cuts, nil
	}
}
