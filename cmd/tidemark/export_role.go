package main

import (
	"context"

	"github.com/google/uuid"

	"github.com/tidemark/tidemark/api"
	"github.com/tidemark/tidemark/exports"
)

// exports serves export jobs and runs them, if there is a folder for their
// files.
func (b *builder) exports(ctx context.Context, a *api.API) error {
	if b.cfg.Exports.Dir == "" {
		b.log.Info("exports are not served: exports.dir is not set")
		return nil
	}
	source, err := openExportSource(ctx, b.cfg, exports.DefaultPatience)
	if err != nil {
		return err
	}
	b.close = append(b.close, source.close)
	db, err := b.openControl(ctx)
	if err != nil {
		return err
	}
	api.RegisterExports(a, db, b.cfg.Exports.Dir)
	name := b.cfg.Instance + "." + uuid.NewString() // a process that was killed is another runner
	shared, err := b.overloadLevels(ctx)
	if err != nil {
		return err
	}
	runner := &exports.Runner{Paused: shared.consumersPaused, Queue: db, Source: source.Config, Dir: b.cfg.Exports.Dir, Name: name, Logger: b.log}
	b.add("exports", runner.Run, always)
	return nil
}
