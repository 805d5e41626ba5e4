package main

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/tidemark/tidemark/drills"
	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/verify"
)

// Every drill of the change feed finds wrong counts when nobody heals the gaps
// that it has named, and nothing else than that.
func TestFeedDrillsCanFail(t *testing.T) {
	if testing.Short() {
		t.Skip("runs whole systems for a minute")
	}
	dir, err := systemDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeSystem(t, &system{dir: dir}) })
	names := []string{"drop-slot", "alter-publication", "delete-outbox-row", "truncate-cdc", "failover", "failover-behind"}
	args := append([]string{"drill", "run", "--rounds", "1", "--seed", "7", "--parallel", "2", "--leave-gaps", "--output", "json", "--dir", filepath.Join(dir, "drills")}, names...)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := program(ctx, args...)
	out, _ := cmd.Output()
	if code := cmd.ProcessState.ExitCode(); code != exitDifferent {
		t.Fatalf("exit %d, %v: %s", code, ctx.Err(), out)
	}
	var report drills.Report
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatal(err)
	}
	wrong := map[oracle.Class]bool{
		drills.GapLeft: true, oracle.Class(verify.Count): true, oracle.Class(verify.RelationBelow): true, oracle.Class(verify.RelationAbove): true, oracle.Class(verify.RelationState): true,
		drills.ListDiffers: true, oracle.Class(verify.LikerBelow): true, oracle.Class(verify.LikerAbove): true, oracle.Class(verify.LikerState): true, oracle.Class(verify.LikerTime): true,
	}
	for _, r := range report.Results {
		if r.Verdict == drills.Skipped {
			t.Logf("%s: %s", r.Drill, r.Reason)
			continue
		}
		if r.Verdict != drills.Different || r.Found[drills.GapLeft] == 0 || r.Found[oracle.Class(verify.Count)]+r.Found[oracle.Class(verify.RelationBelow)] == 0 {
			t.Errorf("%s: %s, found %v %s", r.Drill, r.Verdict, r.Found, r.Reason)
		}
		for class := range r.Found {
			if !wrong[class] {
				t.Errorf("%s: found %s, too: %v", r.Drill, class, r.Differences)
			}
		}
	}
}
