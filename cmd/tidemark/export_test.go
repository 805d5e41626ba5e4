package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark/tidemark/exports"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// exportedRow is a row of a JSON lines export.
type exportedRow struct {
	UserID, LikedAt string
	Version         uint64
}

// rowsOfExport reads a finished export in JSON lines, part by part.
func rowsOfExport(t testing.TB, dir string) (rows []exportedRow) {
	t.Helper()
	m, err := exports.ReadManifest(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range m.Parts {
		f, err := os.Open(filepath.Join(dir, p.Name))
		if err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			var r exportedRow
			mustJSON(t, lines.Text(), &r)
			rows = append(rows, r)
		}
		_ = f.Close()
	}
	return rows
}

// likersIn makes of a barrier's facts the rows that an export of a target has to
// have.
func likersIn(t testing.TB, b *relations.Barrier, target string) (rows []exportedRow) {
	t.Helper()
	for _, s := range b.Shards {
		err := b.Facts(t.Context(), s.Shard, func(f relations.Fact) error {
			if f.Relation.Kind == topology.Like && f.Relation.Target == target && f.State == topology.Liked {
				rows = append(rows, exportedRow{f.Relation.User, f.StateChangedAt.UTC().Format("2006-01-02T15:04:05.000000Z"), f.Version})
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.SortFunc(rows, func(a, b exportedRow) int {
		return cmp.Or(strings.Compare(b.LikedAt, a.LikedAt), strings.Compare(a.UserID, b.UserID))
	})
	return rows
}

func rowsDiffer(have, want []exportedRow) string {
	for i := range min(len(have), len(want)) {
		if have[i] != want[i] {
			return fmt.Sprintf("row %d of %d is %+v, want %+v of %d", i, len(have), have[i], want[i], len(want))
		}
	}
	if len(have) != len(want) {
		return fmt.Sprintf("%d rows, want %d", len(have), len(want))
	}
	return ""
}

// replay sends likes and unlikes of a target.
func (s *system) replay(t testing.TB, changes []string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "changes.csv")
	var b strings.Builder
	b.WriteString("time,user,kind,target,state\n")
	for i, c := range changes {
		fmt.Fprintf(&b, "%s,%s\n", time.UnixMilli(int64(i)).UTC().Format(time.RFC3339Nano), c)
	}
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	must(t, exitOK, s.at("load", "--replay", file, "--speed", "0")...)
}

// awaitList waits until the live list's newest entry is of a user.
func (c *client) awaitNewest(video, user string) {
	c.t.Helper()
	eventually(c.t, func() error {
		var page struct{ Items []struct{ UserID string } }
		if err := c.try(http.MethodGet, "/v1/videos/"+video+"/likers?pageSize=1", "", nil, &page); err != nil {
			return err
		}
		if len(page.Items) == 0 || page.Items[0].UserID != user {
			return fmt.Errorf("the newest of %s is %v, want %s", video, page.Items, user)
		}
		return nil
	})
}

// Under traffic, an export has exactly the relations that the shards' snapshots
// at its barrier show as active. Changes after the barrier are already in the
// live list when the first row is read, so that a list read then differs.
func TestAnExportIsTheFactsAtItsBarrier(t *testing.T) {
	s := theSystem(t)
	c := newClient(t, s.endpoints(t).API, "export-last", "--data-dir", s.dir)
	rnd := rand.New(rand.NewPCG(1, 2))
	churn := func(video string, n int) (changes []string) {
		for range n {
			changes = append(changes, fmt.Sprintf("export%d,like,%s,%s", rnd.IntN(300), video, []string{"LIKED", "LIKED", "UNLIKED"}[rnd.IntN(3)]))
		}
		return changes
	}
	const video = "VX1"
	s.replay(t, churn(video, 600))
	source, err := openExportSource(t.Context(), s.config(t), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer source.close()
	store, err := relations.Open(t.Context(), relations.Config{URLs: s.config(t).Postgres, Map: topology.NewShardMap(1, s.config(t).Shards)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	traffic := run(t, s.at("load", "--commands", "0", "--rate", "100", "--users", "300", "--targets", "50")...)
	for round := range 3 {
		var want, after []exportedRow
		source.RowsPerPart = 17
		source.Barrier = func(ctx context.Context, id string) (cuts []exports.Cut, err error) {
			b, err := store.BarrierNamed(ctx, id)
			if err != nil {
				return nil, err
			}
			defer b.Close()
			want = likersIn(t, b, video)
			for _, s := range b.Shards {
				cuts = append(cuts, exports.Cut{Shard: s.Shard, Seal: s.Seal, OutboxID: s.OutboxID, SealedAt: s.SealedAt})
			}
			s.replay(t, churn(video, 150))
			c.do(http.MethodPut, "/v1/videos/"+video+"/like-relation", fmt.Sprintf("off%d", round), map[string]string{"desiredState": "UNLIKED"}, nil)
			c.like(video, fmt.Sprintf("on%d", round))
			c.awaitNewest(video, "export-last")
			now, err := store.Barrier(ctx)
			if err != nil {
				return nil, err
			}
			defer now.Close()
			after = likersIn(t, now, video)
			return cuts, nil
		}
		dir := filepath.Join(t.TempDir(), "x")
		spec := exports.Spec{Kind: topology.Like, Target: video, Format: exports.JSONL, Accounts: exports.All, Purpose: "a test", By: "ann"}
		m, err := exports.Run(t.Context(), source.Config, spec, dir)
		if err != nil {
			t.Fatal(err)
		}
		rows := rowsOfExport(t, dir)
		if differ := rowsDiffer(rows, want); differ != "" {
			t.Fatalf("round %d: %s", round, differ)
		}
		if len(want) < 50 || rowsDiffer(rows, after) == "" || len(m.BegunAnew) > 0 {
			t.Errorf("round %d proves nothing: %d rows, begun anew %v", round, len(want), m.BegunAnew)
		}
		must(t, exitOK, "export", "verify", dir)
	}
	traffic.stop(t)
}

// A killed export goes on at its barrier, whatever has changed meanwhile; and
// its audit says who, what for, and what came out.
func TestAKilledExportGoesOn(t *testing.T) {
	s := theSystem(t)
	const video, likers = "VX2", 400
	var likes, unlikes []string
	for i := range likers {
		likes = append(likes, fmt.Sprintf("killed%d,like,%s,LIKED", i, video))
		unlikes = append(unlikes, fmt.Sprintf("killed%d,like,%s,UNLIKED", i, video))
	}
	s.replay(t, likes)
	newClient(t, s.endpoints(t).API, "export-reader", "--data-dir", s.dir).awaitCount(video, likers)
	dir := filepath.Join(t.TempDir(), "x")
	export := s.at("export", "likers", "--target", video, "--format", "jsonl", "--purpose", "a test", "--as", "ann", "--out", dir, "--part-rows", "1", "--output", "json")
	r := run(t, export...)
	eventually(t, func() error {
		if _, err := os.Stat(filepath.Join(dir, "part-000005.jsonl")); err != nil {
			return fmt.Errorf("%w\n%s", err, r.errOut.String())
		}
		return nil
	})
	_ = r.cmd.Process.Signal(syscall.SIGKILL)
	<-r.ended
	if _, err := exports.ReadManifest(dir); err == nil {
		t.Fatal("it was finished before it was killed")
	}
	var begun struct{ AsOf exports.Moment }
	journal, err := os.ReadFile(filepath.Join(dir, ".journal.json"))
	if err != nil {
		t.Fatal(err)
	}
	mustJSON(t, string(journal), &begun)
	s.replay(t, unlikes[:200])
	var m exports.Manifest
	mustJSON(t, must(t, exitOK, export...).out, &m)
	if m.AsOf.Barrier != begun.AsOf.Barrier || len(m.BegunAnew) > 0 || m.Rows != likers || m.Relations != likers {
		t.Errorf("%d rows of %d relations at %s, begun at %s; %v", m.Rows, m.Relations, m.AsOf.Barrier, begun.AsOf.Barrier, m.BegunAnew)
	}
	users := map[string]bool{}
	for _, row := range rowsOfExport(t, dir) {
		users[row.UserID] = true
	}
	if len(users) != likers {
		t.Errorf("%d users, want %d", len(users), likers)
	}
	db, err := control.Open(t.Context(), s.config(t).Control)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	lines, err := db.Entries(t.Context(), exports.AuditSubject(topology.Like, video), 10)
	if err != nil {
		t.Fatal(err)
	}
	var actions []string
	for _, e := range slices.Backward(lines) {
		actions = append(actions, e.Action)
		if e.Who != "ann" || e.Reason != "a test" || e.Detail["barrier"] != m.AsOf.Barrier {
			t.Errorf("audit %+v", e)
		}
	}
	if want := []string{"export.begun", "export.resumed", "export.finished"}; !slices.Equal(actions, want) || lines[0].Detail["checksum"] != m.Checksum {
		t.Errorf("audit %v, want %v; %v", actions, want, lines)
	}
	// What was tampered with is found.
	part := filepath.Join(dir, "part-000001.jsonl")
	b, err := os.ReadFile(part)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(part, []byte(strings.Replace(string(b), "killed", "kilted", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	var check struct {
		Verdict     string
		Differences []string
	}
	mustJSON(t, must(t, exitDifferent, "export", "verify", dir, "--output", "json").out, &check)
	if check.Verdict != "different" || len(check.Differences) == 0 {
		t.Errorf("found %+v", check)
	}
	must(t, exitError, "export", "verify", t.TempDir())
	must(t, exitUsage, export...) // finished
}

// A target that nobody knows has an export of nobody.
func TestAnExportOfNobody(t *testing.T) {
	s := theSystem(t)
	for _, format := range []string{"parquet", "csv", "jsonl"} {
		dir := filepath.Join(t.TempDir(), "x")
		var m exports.Manifest
		mustJSON(t, must(t, exitOK, s.at("export", "likers", "--target", "no such video", "--kind", "favorite", "--format", format, "--purpose", "a test", "--out", dir, "--output", "json")...).out, &m)
		if m.Rows != 0 || m.Relations != 0 || len(m.AsOf.Shards) != 2 || m.Checksum == "" {
			t.Errorf("%s: %+v", format, m)
		}
		if b, err := json.Marshal(m); err != nil || strings.Contains(string(b), `"parts":null`) {
			t.Errorf("%s: %s %v", format, b, err)
		}
		must(t, exitOK, "export", "verify", dir)
	}
}
