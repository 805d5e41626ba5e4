package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

func exportJob(operation string) ExportJob {
	return ExportJob{Who: "ann", OperationID: operation, Kind: "like", Target: "V1", Format: "csv", Accounts: "shown", Purpose: "a test"}
}

func TestExportJobs(t *testing.T) {
	db, ctx := openEmpty(t), t.Context()
	first, err := db.QueueExport(ctx, exportJob("op1"), "export:like:V1", 2)
	if err != nil || first.State != ExportQueued || first.ID == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := db.QueueExport(ctx, exportJob("op1"), "export:like:V1", 2); err != nil || again.ID != first.ID {
		t.Errorf("again: %+v, %v", again, err)
	}
	other := exportJob("op1")
	other.Purpose = "another"
	if _, err := db.QueueExport(ctx, other, "export:like:V1", 2); !errors.Is(err, ErrExportReused) {
		t.Errorf("reused: %v", err)
	}
	if lines, err := db.Entries(ctx, "export:like:V1", 10); err != nil || len(lines) != 1 || lines[0].Reason != "a test" || lines[0].Detail["job"] != first.ID {
		t.Errorf("audit %+v, %v", lines, err)
	}
	second, err := db.QueueExport(ctx, exportJob("op2"), "export:like:V1", 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.QueueExport(ctx, exportJob("op3"), "export:like:V1", 2); !errors.Is(err, ErrTooManyExports) {
		t.Errorf("a third: %v", err)
	}
	claim := func(runner string, lease time.Duration) ExportJob {
		t.Helper()
		j, err := db.ClaimExport(ctx, runner, lease)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	if j := claim("a", -time.Second); j.ID != first.ID || j.State != ExportRunning || j.Attempts != 1 {
		t.Errorf("claimed %+v", j)
	}
	taken := claim("b", time.Minute) // a has not said a word
	if taken.ID != first.ID || taken.Attempts != 2 {
		t.Errorf("taken over %+v", taken)
	}
	taken.Relations, taken.Rows, taken.Note = 5, 4, "reads"
	if err := db.ReportExport(ctx, taken, "a", time.Minute); !errors.Is(err, ErrExportLost) {
		t.Errorf("a report of one that lost it: %v", err)
	}
	if err := db.ReportExport(ctx, taken, "b", time.Minute); err != nil {
		t.Error(err)
	}
	if j := claim("a", time.Minute); j.ID != second.ID {
		t.Errorf("claimed %+v", j)
	}
	if _, err := db.ClaimExport(ctx, "c", time.Minute); !errors.Is(err, ErrNoExport) {
		t.Errorf("nothing is left: %v", err)
	}
	if err := db.ReleaseExport(ctx, second, "a", 0); err != nil {
		t.Error(err)
	}
	if j := claim("c", time.Minute); j.ID != second.ID {
		t.Errorf("released and claimed %+v", j)
	}
	taken.State, taken.Manifest, taken.Note = ExportFinished, json.RawMessage(`{"rows": 4}`), ""
	if err := db.EndExport(ctx, taken, "b"); err != nil {
		t.Fatal(err)
	}
	ended, err := db.Export(ctx, first.ID)
	if err != nil || ended.State != ExportFinished || ended.Rows != 4 || string(ended.Manifest) != `{"rows": 4}` || ended.EndedAt == nil {
		t.Errorf("ended %+v, %v", ended, err)
	}
	for _, id := range []string{"", "x", "00000000-0000-0000-0000-000000000000"} {
		if _, err := db.Export(ctx, id); !errors.Is(err, ErrNoExport) {
			t.Errorf("job %q: %v", id, err)
		}
	}
}

// However many ask at once, no more are queued than may be, and none is claimed
// twice.
func TestExportJobsAtOnce(t *testing.T) {
	db, ctx := openEmpty(t), t.Context()
	var g errgroup.Group
	for i := range 20 {
		g.Go(func() error {
			if _, err := db.QueueExport(ctx, exportJob(fmt.Sprint(i)), "export:like:V1", 5); !errors.Is(err, ErrTooManyExports) {
				return err
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	claimed := make(chan string, 20)
	for range 20 {
		g.Go(func() error {
			j, err := db.ClaimExport(ctx, "a", time.Minute)
			if errors.Is(err, ErrNoExport) {
				return nil
			}
			claimed <- j.ID
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	close(claimed)
	all := map[string]bool{}
	for id := range claimed {
		if all[id] {
			t.Errorf("%s is claimed twice", id)
		}
		all[id] = true
	}
	if len(all) != 5 {
		t.Errorf("%d claimed, want 5", len(all))
	}
}
