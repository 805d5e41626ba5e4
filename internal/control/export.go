package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ExportState is how far an export job is.
type ExportState string

// The states of an export job.
const (
	ExportQueued   ExportState = "QUEUED"
	ExportRunning  ExportState = "RUNNING"
	ExportFinished ExportState = "FINISHED"
	ExportFailed   ExportState = "FAILED"
)

// ExportJob is an export that someone asked for over the API.
type ExportJob struct {
	ID          string
	Who         string
	OperationID string // of Who, once
	Kind        string
	Target      string
	Format      string
	Accounts    string
	Purpose     string
	State       ExportState
	CreatedAt   time.Time
	EndedAt     *time.Time
	Relations   int64 // so far
	Rows        int64
	Note        string          // what it does, or why it failed
	Manifest    json.RawMessage // when it is finished
	Attempts    int
}

// Errors of export jobs.
var (
	ErrNoExport       = errors.New("no such export job")
	ErrTooManyExports = errors.New("too many export jobs wait or run")
	// ErrExportReused says that the operation id is that of another export.
	ErrExportReused = errors.New("the operation id belongs to another export")
	// ErrExportLost says that a job is another runner's by now.
	ErrExportLost = errors.New("the export job is not this runner's any more")
)

const exportColumns = `id::text, who, operation_id, kind, target_id, format, accounts, purpose, state, created_at, ended_at, relations, rows, note, manifest, attempts`

// exportQueueLock is an advisory lock: whoever counts the queue holds it.
const exportQueueLock = 0x7469646578706f72

// QueueExport adds a job with an audit line under subject, unless limit are
// waiting or running. The same operation again gives the job that it made.
func (d *DB) QueueExport(ctx context.Context, j ExportJob, subject string, limit int) (out ExportJob, err error) {
	err = pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", exportQueueLock); err != nil {
			return err
		}
		out, err = oneExport(tx.Query(ctx, "SELECT "+exportColumns+" FROM export_job WHERE who = $1 AND operation_id = $2", j.Who, j.OperationID))
		if err == nil {
			if same := [5]string{j.Kind, j.Target, j.Format, j.Accounts, j.Purpose}; same != [5]string{out.Kind, out.Target, out.Format, out.Accounts, out.Purpose} {
				return ErrExportReused
			}
			return nil
		}
		if !errors.Is(err, ErrNoExport) {
			return err
		}
		var pending int
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM export_job WHERE state IN ('QUEUED', 'RUNNING')").Scan(&pending); err != nil {
			return err
		}
		if pending >= limit {
			return ErrTooManyExports
		}
		out, err = oneExport(tx.Query(ctx, `
			INSERT INTO export_job (who, operation_id, kind, target_id, format, accounts, purpose) VALUES ($1, $2, $3, $4, $5, $6, $7)
			RETURNING `+exportColumns, j.Who, j.OperationID, j.Kind, j.Target, j.Format, j.Accounts, j.Purpose))
		if err != nil {
			return err
		}
		return audit(ctx, tx, Entry{Who: j.Who, Action: "export.asked", Subject: subject, Reason: j.Purpose, Detail: map[string]any{
			"job": out.ID, "accounts": j.Accounts, "format": j.Format,
		}})
	})
	return out, namedExport("queueing an export", err)
}

// namedExport leaves the errors of jobs as they are.
func namedExport(doing string, err error) error {
	for _, known := range []error{ErrNoExport, ErrTooManyExports, ErrExportReused, ErrExportLost} {
		if errors.Is(err, known) {
			return known
		}
	}
	if err != nil {
		return named(fmt.Errorf("%s: %w", doing, err))
	}
	return nil
}

func oneExport(rows pgx.Rows, err error) (ExportJob, error) {
	if err != nil {
		return ExportJob{}, err
	}
	j, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[ExportJob])
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNoExport
	}
	return j, err
}

// Export reads a job.
func (d *DB) Export(ctx context.Context, id string) (ExportJob, error) {
	j, err := oneExport(d.pool.Query(ctx, "SELECT "+exportColumns+" FROM export_job WHERE id::text = $1", id))
	return j, namedExport("reading an export", err)
}

// ClaimExport gives a runner the oldest job that waits, or that its runner has
// not said a word of for as long as its lease; ErrNoExport when there is none.
func (d *DB) ClaimExport(ctx context.Context, runner string, lease time.Duration) (ExportJob, error) {
	j, err := oneExport(d.pool.Query(ctx, `
		UPDATE export_job SET state = 'RUNNING', runner = $1, lease_until = clock_timestamp() + make_interval(secs => $2), attempts = attempts + 1
		WHERE id = (SELECT id FROM export_job WHERE state IN ('QUEUED', 'RUNNING') AND lease_until < clock_timestamp()
		            ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED)
		RETURNING `+exportColumns, runner, lease.Seconds()))
	return j, namedExport("taking an export", err)
}

// ReportExport notes how far a runner's job is, and keeps it the runner's for
// another lease.
func (d *DB) ReportExport(ctx context.Context, j ExportJob, runner string, lease time.Duration) error {
	return d.changeExport(ctx, "UPDATE export_job SET relations = $3, rows = $4, note = $5, lease_until = clock_timestamp() + make_interval(secs => $6)",
		j.ID, runner, j.Relations, j.Rows, j.Note, lease.Seconds())
}

// ReleaseExport leaves a job to be taken up again, by anybody, after a while.
func (d *DB) ReleaseExport(ctx context.Context, j ExportJob, runner string, after time.Duration) error {
	return d.changeExport(ctx, "UPDATE export_job SET state = 'QUEUED', note = $3, lease_until = clock_timestamp() + make_interval(secs => $4)",
		j.ID, runner, j.Note, after.Seconds())
}

// EndExport ends a job as j says.
func (d *DB) EndExport(ctx context.Context, j ExportJob, runner string) error {
	return d.changeExport(ctx, "UPDATE export_job SET state = $3, relations = $4, rows = $5, note = $6, manifest = $7, ended_at = clock_timestamp()",
		j.ID, runner, j.State, j.Relations, j.Rows, j.Note, j.Manifest)
}

// changeExport runs an update of a job that is a runner's.
func (d *DB) changeExport(ctx context.Context, update, id, runner string, args ...any) error {
	tag, err := d.pool.Exec(ctx, update+" WHERE id::text = $1 AND runner = $2 AND state = 'RUNNING'", append([]any{id, runner}, args...)...)
	if err == nil && tag.RowsAffected() == 0 {
		err = ErrExportLost
	}
	return namedExport("noting how far an export is", err)
}
