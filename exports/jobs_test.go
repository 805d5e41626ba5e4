package exports

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark/tidemark/internal/control"
)

// queue is one job, with the rules of control.DB.
type queue struct {
	mu       sync.Mutex
	job      control.ExportJob
	free     time.Time // when it may be claimed
	runner   string
	silent   bool // reports are not heard
	lost     bool // the job is another runner's
	released []string
	ended    chan struct{}
}

func newQueue(s Spec) *queue {
	return &queue{ended: make(chan struct{}), job: control.ExportJob{
		ID: "job", State: control.ExportQueued, Who: s.By, Kind: "like", Target: s.Target, Format: string(s.Format), Accounts: string(s.Accounts), Purpose: s.Purpose,
	}}
}

func (q *queue) ClaimExport(_ context.Context, runner string, lease time.Duration) (control.ExportJob, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.job.State != control.ExportQueued && q.job.State != control.ExportRunning || time.Now().Before(q.free) {
		return control.ExportJob{}, control.ErrNoExport
	}
	q.job.State, q.job.Attempts, q.runner, q.free = control.ExportRunning, q.job.Attempts+1, runner, time.Now().Add(lease)
	return q.job, nil
}

func (q *queue) ReportExport(_ context.Context, j control.ExportJob, runner string, lease time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.silent {
		return errors.New("away")
	}
	if q.lost || q.runner != runner {
		return control.ErrExportLost
	}
	q.job.Relations, q.job.Rows, q.job.Note, q.free = j.Relations, j.Rows, j.Note, time.Now().Add(lease)
	return nil
}

func (q *queue) ReleaseExport(_ context.Context, j control.ExportJob, _ string, after time.Duration) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.job.State, q.job.Note, q.free = control.ExportQueued, j.Note, time.Now().Add(after)
	q.released = append(q.released, j.Note)
	return nil
}

func (q *queue) EndExport(_ context.Context, j control.ExportJob, _ string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.job = j
	close(q.ended)
	return nil
}

// work runs a runner until the job has ended, or for as long as given.
func (q *queue) work(t *testing.T, s *system, dir string, atMost time.Duration) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), atMost)
	defer stop()
	r := &Runner{Queue: q, Source: s.config(), Dir: dir, Name: "a", Logger: slog.New(slog.DiscardHandler)}
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	select {
	case <-q.ended:
	case <-ctx.Done():
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAJobIsRunAndTriedAgain(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, q := newSystem(60), newQueue(spec(JSONL))
		failures := 0
		s.fail = func(told int) error {
			if failures < 2 && told > 20 {
				failures++
				return errStopped
			}
			return nil
		}
		q.work(t, s, dir, time.Hour)
		if q.job.State != control.ExportFinished || q.job.Rows != int64(len(s.shown())) || q.job.Attempts != 3 || len(q.released) != 2 || !strings.Contains(string(q.job.Manifest), `"checksum":"sha256:`) {
			t.Errorf("job %+v, released %v", q.job, q.released)
		}
		if len(s.lists) != 1 {
			t.Errorf("%d barriers", len(s.lists))
		}
	})
	if rows := rowsOf(t, JobDir(dir, "job")); len(rows) == 0 {
		t.Error("no rows")
	}
}

func TestAJobThatNeverEndsFails(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, q := newSystem(60), newQueue(spec(CSV))
		s.fail = func(int) error { return errStopped }
		q.work(t, s, dir, time.Hour)
		if q.job.State != control.ExportFailed || q.job.Attempts != maxAttempts || !strings.Contains(q.job.Note, "stopped") {
			t.Errorf("job %+v", q.job)
		}
	})
}

// A process that ends leaves its job to the next one, which goes on; one that
// cannot say that it is there, or is told that the job is another's, stops.
func TestAJobIsHandedOn(t *testing.T) {
	for name, harm := range map[string]func(q *queue, stop context.CancelFunc){
		"shutdown": func(_ *queue, stop context.CancelFunc) { stop() },
		"silence":  func(q *queue, _ context.CancelFunc) { q.silent = true },
		"lost":     func(q *queue, _ context.CancelFunc) { q.lost = true },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				s, q := newSystem(60), newQueue(spec(CSV))
				ctx, stop := context.WithCancel(context.Background())
				s.hold = 30
				r := &Runner{Queue: q, Source: s.config(), Dir: dir, Name: "a", Logger: slog.New(slog.DiscardHandler)}
				done := make(chan struct{})
				go func() { defer close(done); _ = r.Run(ctx) }()
				time.Sleep(time.Minute) // of the bubble: the list waits at its 30th relation
				q.mu.Lock()
				if q.job.State != control.ExportRunning || q.job.Relations == 0 {
					t.Errorf("job %+v", q.job)
				}
				harm(q, stop)
				q.mu.Unlock()
				time.Sleep(20 * time.Second)
				stop()
				<-done
				if _, err := ReadManifest(JobDir(dir, "job")); !errors.Is(err, ErrNoManifest) {
					t.Fatalf("it went on: %v", err)
				}
				s.hold, q.silent, q.lost = 0, false, false
				q.work(t, s, dir, time.Hour)
				if q.job.State != control.ExportFinished || len(s.lists) != 1 {
					t.Errorf("job %+v, %d barriers", q.job, len(s.lists))
				}
			})
		})
	}
}

// A manifest of which the queue was not told is found.
func TestAFinishedJobIsNotRunAgain(t *testing.T) {
	dir := t.TempDir()
	s := newSystem(60)
	mustRun(t, s, spec(CSV), JobDir(dir, "job"))
	s.fail = func(int) error { return errStopped }
	q := newQueue(spec(CSV))
	if q.work(t, s, dir, time.Minute); q.job.State != control.ExportFinished {
		t.Errorf("job %+v", q.job)
	}
}

// Under overload no job is begun, and the one that waits is begun after it.
func TestLevelPauseConsumers(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s, q := newSystem(60), newQueue(spec(JSONL))
		ctx, stop := context.WithCancel(t.Context())
		var pressed atomic.Bool
		pressed.Store(true)
		r := &Runner{Queue: q, Source: s.config(), Dir: dir, Name: "a", Logger: slog.New(slog.DiscardHandler), Paused: pressed.Load}
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		synctest.Wait()
		select {
		case <-q.ended:
			t.Error("a job ran under overload")
		case <-time.After(time.Minute):
		}
		pressed.Store(false)
		<-q.ended
		stop()
		if err := <-done; err != nil || q.job.State != control.ExportFinished {
			t.Errorf("%v, job %+v", err, q.job)
		}
	})
}
