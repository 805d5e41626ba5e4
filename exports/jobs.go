package exports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
)

// Queue holds the jobs that the API takes; see control.DB.
type Queue interface {
	ClaimExport(ctx context.Context, runner string, lease time.Duration) (control.ExportJob, error)
	ReportExport(ctx context.Context, j control.ExportJob, runner string, lease time.Duration) error
	ReleaseExport(ctx context.Context, j control.ExportJob, runner string, after time.Duration) error
	EndExport(ctx context.Context, j control.ExportJob, runner string) error
}

// Runner runs the jobs of a queue, one at a time, each in a folder of its own
// below Dir. A job whose runner was killed is taken up by the next one, at its
// barrier if it finds the folder.
type Runner struct {
	Queue  Queue
	Source Config
	Dir    string
	// Name of the runner; two that run at once have two.
	Name string
	// Paused tells that no job is to be begun now; nil: none ever is.
	Paused func() bool
	Logger *slog.Logger
}

// How the queue is worked on.
const (
	jobLease    = 30 * time.Second
	jobReport   = 2 * time.Second // how often a job says how far it is
	queuePause  = time.Second
	retryPause  = 10 * time.Second
	maxAttempts = 5 // shutdowns and kills count, too
)

// JobDir is the folder of a job.
func JobDir(dir, id string) string { return filepath.Join(dir, id) }

// SpecOf is what a job asks for.
func SpecOf(j control.ExportJob) Spec {
	return Spec{KindName: j.Kind, Target: j.Target, Format: Format(j.Format), Accounts: Accounts(j.Accounts), Purpose: j.Purpose, By: j.Who}
}

// Run works until ctx ends; it returns nil then.
func (r *Runner) Run(ctx context.Context) error {
	log := r.Logger.With("component", "exports")
	for pause.While(ctx, r.Paused) {
		j, err := r.Queue.ClaimExport(ctx, r.Name, jobLease)
		if err == nil {
			r.job(ctx, j, log.With("job", j.ID))
			continue
		}
		if !errors.Is(err, control.ErrNoExport) && ctx.Err() == nil {
			log.Warn("export jobs cannot be read now", "error", err)
		}
		pause.For(ctx, queuePause)
	}
	return nil
}

// job runs a job and says in the queue what became of it.
func (r *Runner) job(ctx context.Context, j control.ExportJob, log *slog.Logger) {
	m, err := r.export(ctx, &j)
	told, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	switch {
	case err == nil:
		j.State, j.Note, j.Relations, j.Rows = control.ExportFinished, "", m.Relations, m.Rows
		if j.Manifest, err = json.Marshal(m); err == nil {
			err = r.Queue.EndExport(told, j, r.Name)
		}
	case errors.Is(err, control.ErrExportLost):
	case ctx.Err() != nil:
		j.Note = "its process has ended; another one goes on"
		err = r.Queue.ReleaseExport(told, j, r.Name, 0)
	case errors.Is(err, ErrSpec) || j.Attempts >= maxAttempts:
		log.Error("an export has failed", "error", err)
		j.State, j.Note = control.ExportFailed, err.Error()
		err = r.Queue.EndExport(told, j, r.Name)
	default:
		log.Warn("an export is tried again", "error", err, "attempt", j.Attempts)
		j.Note = "is tried again: " + err.Error()
		err = r.Queue.ReleaseExport(told, j, r.Name, retryPause)
	}
	if err != nil { // the job is taken up again when its lease ends
		log.Warn("what became of an export cannot be noted", "error", err)
	}
}

// export runs a job, which says how far it is meanwhile. It stops when the job
// is lost to another runner.
func (r *Runner) export(ctx context.Context, j *control.ExportJob) (Manifest, error) {
	dir := JobDir(r.Dir, j.ID)
	if m, err := ReadManifest(dir); err == nil {
		return m, nil // finished, and the queue was not told
	}
	ctx, stop := context.WithCancelCause(ctx)
	var reporting sync.WaitGroup
	defer reporting.Wait()
	defer stop(nil)
	var mu sync.Mutex
	now := *j
	source := r.Source
	source.Tell = func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		now.Relations, now.Rows = p.Relations, p.Rows
		if p.Turn != "" {
			now.Note = p.Turn
		}
	}
	reporting.Go(func() {
		for silent := time.Duration(0); pause.For(ctx, jobReport); {
			mu.Lock()
			report := now
			mu.Unlock()
			err := r.Queue.ReportExport(ctx, report, r.Name, jobLease)
			silent += jobReport
			if err == nil {
				silent = 0
			}
			if errors.Is(err, control.ErrExportLost) || silent > jobLease/2 {
				stop(fmt.Errorf("%w: %w", control.ErrExportLost, err))
			}
		}
	})
	m, err := Run(ctx, source, SpecOf(*j), dir)
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, control.ErrExportLost) {
		err = cause
	}
	mu.Lock()
	defer mu.Unlock()
	j.Relations, j.Rows = now.Relations, now.Rows
	return m, err
}
