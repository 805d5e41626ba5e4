package main

import (
	"context"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/internal/pagetoken"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/processors/privacyfeed"
)

// lists serves lists, if there are keys for their page tokens. A key made up
// here would be good in this process only, and until its end. Readiness does
// not ask for what lists need besides: without it counts are served all the
// same.
func (b *builder) lists(ctx context.Context, a *api.API, users api.UserLister, rules *privacy.Store, counts api.CountReader) error {
	if len(b.cfg.API.PageTokenKeyFiles) == 0 {
		b.log.Info("lists are not served: api.page_token_key_files is not set")
		return nil
	}
	keys, err := b.cfg.API.PageTokenKeys()
	if err != nil {
		return err
	}
	tokens, err := pagetoken.NewSigner(keys...)
	if err != nil {
		return err
	}
	targets, err := b.likersView(ctx)
	if err != nil {
		return err
	}
	api.RegisterLists(a, api.ListSources{Users: users, Targets: targets, Privacy: rules, Counts: counts, Tokens: tokens})
	return nil
}

// privacy applies the events of stream privacy-events.
func (b *builder) privacy(ctx context.Context) error {
	rules, err := privacy.Open(ctx, b.cfg.Control)
	if err != nil {
		return err
	}
	b.close = append(b.close, rules.Close)
	f, err := privacyfeed.New(privacyfeed.Config{
		Client: b.client, Topology: b.topo, Apply: rules.Apply, Instance: b.cfg.Instance, Logger: b.log, Registerer: b.metrics,
	})
	if err != nil {
		return err
	}
	b.addKafka("privacy", f.Run, f.Ready)
	return nil
}
