package main

import (
	"context"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/privacy"
	"github.com/tidemark/tidemark/relations"
)

// visibility gives the privacy rules, and what this process remembers of them for
// commands and counts. Its listener is no condition of readiness: without it
// every command asks the control database.
func (b *builder) visibility(ctx context.Context, store *relations.Store) (*privacy.Store, *privacy.Snapshot, error) {
	rules, err := privacy.Open(ctx, b.cfg.Control)
	if err != nil {
		return nil, nil, err
	}
	b.close = append(b.close, rules.Close)
	rules.UseFriends(store.Friends)
	v := b.cfg.Visibility
	remembered, err := privacy.NewSnapshot(privacy.SnapshotConfig{
		Store: rules, Subjects: v.RememberedSubjects, Logger: b.log, Registerer: b.metrics,
		Policy: privacy.Policy{
			RefuseUnknown:   v.UnknownTargets == config.RefuseCommand,
			AllowBlocked:    v.Blocks == config.AllowCommand,
			RefuseUndecided: v.Unavailable == config.RefuseCommand,
			Strong:          v.StrongCheck,
		},
	})
	if err != nil {
		return nil, nil, err
	}
	b.actors = append(b.actors, actor{name: "visibility", run: remembered.Run, ready: remembered.Ready, detail: remembered.Detail})
	return rules, remembered, nil
}
