package exports

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// system is what an export comes from: one list, which is another one at each
// barrier.
type system struct {
	lists    map[string][]views.Liker // by barrier
	now      []views.Liker
	walked   []*views.Liker // where each walk began
	step     int            // likers that Walk tells at once
	fail     func(told int) error
	hold     int // Walk waits for the end of its context before so many likers; 0: never
	open     map[string]bool
	revision int64
	gaps     []control.Gap
	verified uint64
	seal     uint64
	audit    []string // actions
}

func newSystem(likers int) *system {
	s := &system{lists: map[string][]views.Liker{}, open: map[string]bool{}, step: 7, revision: 3, verified: 1000}
	for i := range likers {
		s.now = append(s.now, views.Liker{User: fmt.Sprintf("user %d", i), LikedAt: time.UnixMicro(int64(1e15 - i/3)).UTC(), Version: uint64(1 + i%5)})
	}
	slices.SortFunc(s.now, func(a, b views.Liker) int { return compareRows(Row(a), Row(b)) })
	return s
}

func (s *system) Open(_ context.Context, l views.ListAt) error { s.open[l.Barrier] = true; return nil }

func (s *system) Close(_ context.Context, l views.ListAt) error {
	delete(s.open, l.Barrier)
	return nil
}

func (s *system) barrier(_ context.Context, id string) ([]Cut, error) {
	if !s.open[id] {
		return nil, errors.New("the barrier is taken before its list is open")
	}
	s.seal++
	s.lists[id] = slices.Clone(s.now)
	return []Cut{{Shard: 0, Seal: s.seal, OutboxID: 10, SealedAt: time.UnixMicro(1e15).UTC()}}, nil
}

func (s *system) Walk(ctx context.Context, l views.ListAt, after *views.Liker, do func([]views.Liker) error) error {
	s.walked = append(s.walked, after)
	list := s.lists[l.Barrier]
	if after != nil {
		list = list[1+slices.IndexFunc(list, func(x views.Liker) bool { return x.User == after.User }):]
	}
	for told := 0; told < len(list); told += s.step {
		if s.fail != nil {
			if err := s.fail(told); err != nil {
				return err
			}
		}
		if s.hold > 0 && told >= s.hold {
			<-ctx.Done()
			return context.Cause(ctx)
		}
		if err := do(list[told:min(len(list), told+s.step)]); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *system) Revision(context.Context) (int64, error) { return s.revision, nil }

// HiddenAt hides every fourth user under revision 3.
func (s *system) HiddenAt(_ context.Context, revision int64, users []string) (hidden []bool, err error) {
	for _, u := range users {
		hidden = append(hidden, revision == 3 && strings.HasSuffix(u, "4"))
	}
	return hidden, nil
}

func (s *system) Gaps(context.Context, control.GapFilter) ([]control.Gap, error) { return s.gaps, nil }

func (s *system) Source(context.Context, int) (control.Source, error) {
	return control.Source{VerifiedSeal: s.verified}, nil
}

func (s *system) Audit(_ context.Context, e control.Entry) error {
	if e.Who != "ann" || e.Reason != "a test" || e.Subject != "export:like:V1" {
		return fmt.Errorf("an audit of %+v", e)
	}
	s.audit = append(s.audit, e.Action)
	return nil
}

func (s *system) config() Config {
	return Config{Lists: s, Barrier: s.barrier, Rules: s, Feed: s, Audit: s, ReverseGeneration: 1, RowsPerPart: 10}
}

func spec(f Format) Spec {
	return Spec{Kind: topology.Like, Target: "V1", Format: f, Accounts: Shown, Purpose: "a test", By: "ann"}
}

// rowsOf reads a finished export that Verify has nothing against.
func rowsOf(t *testing.T, dir string) (rows []Row) {
	t.Helper()
	r, err := Verify(t.Context(), dir)
	if err != nil || len(r.Differences) > 0 {
		t.Fatalf("verify: %v, %v", r.Differences, err)
	}
	for _, p := range r.Manifest.Parts {
		if err := readPart(dir, p, r.Manifest.Format, func(r Row) error { rows = append(rows, r); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	return rows
}

func (s *system) shown() (rows []Row) {
	for _, l := range s.now {
		if !strings.HasSuffix(l.User, "4") {
			rows = append(rows, Row(l))
		}
	}
	return rows
}

func mustRun(t *testing.T, s *system, sp Spec, dir string) Manifest {
	t.Helper()
	m, err := Run(t.Context(), s.config(), sp, dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.open) > 0 {
		t.Errorf("%d lists are still open", len(s.open))
	}
	return m
}

func TestEveryFormatHasTheSameRows(t *testing.T) {
	s := newSystem(123)
	sums := map[string]bool{}
	for _, f := range Formats() {
		dir := filepath.Join(t.TempDir(), "new", "export")
		m := mustRun(t, s, spec(f), dir)
		if rows := rowsOf(t, dir); !slices.Equal(rows, s.shown()) {
			t.Fatalf("%s: %d rows, want %d", f, len(rows), len(s.shown()))
		}
		if m.Relations != 123 || m.Rows != int64(len(s.shown())) || m.Withheld != m.Relations-m.Rows || m.AsOf.RulesRevision != 3 || m.AsOf.ReverseGeneration != 1 || m.AsOf.Shards[0].Seal == 0 {
			t.Errorf("%s: manifest %+v", f, m)
		}
		sums[m.Checksum] = true
	}
	if len(sums) != 1 {
		t.Errorf("checksums %v", sums)
	}
	everybody := spec(JSONL)
	everybody.Accounts = All
	if m := mustRun(t, s, everybody, filepath.Join(t.TempDir(), "x")); m.Rows != 123 || m.Withheld != 0 {
		t.Errorf("all accounts: %d rows, %d withheld", m.Rows, m.Withheld)
	}
}

func TestNobodyIsAnExportToo(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	if m := mustRun(t, newSystem(0), spec(Parquet), dir); m.Relations != 0 || len(m.Parts) != 0 {
		t.Errorf("manifest %+v", m)
	}
	if rows := rowsOf(t, dir); len(rows) != 0 {
		t.Errorf("rows %v", rows)
	}
}

var errStopped = errors.New("stopped")

// Wherever an export stops, the same call goes on behind its last whole part, at
// its barrier, whatever has changed since.
func TestAnInterruptedExportGoesOn(t *testing.T) {
	const likers = 60
	for stop := 0; stop < likers; stop += 9 {
		s := newSystem(likers)
		dir := filepath.Join(t.TempDir(), "x")
		s.fail = func(told int) error {
			if told >= stop {
				return errStopped
			}
			return nil
		}
		if _, err := Run(t.Context(), s.config(), spec(CSV), dir); !errors.Is(err, errStopped) {
			t.Fatalf("stopped at %d: %v", stop, err)
		}
		if _, err := ReadManifest(dir); !errors.Is(err, ErrNoManifest) {
			t.Fatalf("it is finished: %v", err)
		}
		want := s.shown()
		s.fail, s.now, s.revision = nil, nil, 4
		// What a crash leaves: a part that the journal does not name, and one
		// without its name.
		for _, name := range []string{"part-000099.csv", ".part-000100.csv.tmp"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m := mustRun(t, s, spec(CSV), dir)
		if rows := rowsOf(t, dir); !slices.Equal(rows, want) {
			t.Fatalf("stopped at %d: %d rows, want %d", stop, len(rows), len(want))
		}
		if len(s.lists) != 1 || len(m.BegunAnew) != 0 {
			t.Errorf("stopped at %d: %d barriers, %v", stop, len(s.lists), m.BegunAnew)
		}
		if want := []string{"export.begun", "export.resumed", "export.finished"}; !slices.Equal(s.audit, want) {
			t.Errorf("audit %v, want %v", s.audit, want)
		}
		if first := s.walked[len(s.walked)-1]; stop >= 27 && first == nil {
			t.Errorf("stopped at %d, it read all again", stop)
		}
	}
}

// A list that the owners have forgotten is read at another barrier, and the
// manifest says so.
func TestAnExportWhoseBarrierIsGoneBeginsAnew(t *testing.T) {
	s := newSystem(60)
	dir := filepath.Join(t.TempDir(), "x")
	first := true
	s.fail = func(told int) error {
		if first && told > 30 {
			first, s.now = false, s.now[5:]
			return fmt.Errorf("partition 3: %w: a new owner", views.ErrListGone)
		}
		return nil
	}
	m := mustRun(t, s, spec(JSONL), dir)
	if rows := rowsOf(t, dir); !slices.Equal(rows, s.shown()) {
		t.Errorf("%d rows, want %d", len(rows), len(s.shown()))
	}
	if len(m.BegunAnew) != 1 || !strings.Contains(m.BegunAnew[0], "a new owner") {
		t.Errorf("begun anew: %v", m.BegunAnew)
	}
	s.fail = func(int) error { return views.ErrListGone }
	if _, err := Run(t.Context(), s.config(), spec(JSONL), filepath.Join(t.TempDir(), "y")); !errors.Is(err, views.ErrListGone) {
		t.Errorf("always gone: %v", err)
	}
}

// A change that was missing in the feed when the barrier passed makes the list
// another one: the export is not finished at that barrier.
func TestAnExportBehindAGap(t *testing.T) {
	healed := func(seal uint64, revision int64) control.Gap {
		return control.Gap{Shard: 0, Seal: seal, State: control.GapHealed, Revision: revision}
	}
	s := newSystem(30)
	s.gaps = []control.Gap{healed(1, 3)}
	s.seal = 10
	s.fail = func(told int) error {
		if s.seal == 11 { // the first barrier
			s.gaps = append([]control.Gap{}, healed(1, 3), healed(11, 2), healed(40, 1))
		}
		return nil
	}
	if m := mustRun(t, s, spec(CSV), filepath.Join(t.TempDir(), "x")); len(m.BegunAnew) != 1 || m.AsOf.Shards[0].Seal != 12 {
		t.Errorf("begun anew %v, at %+v", m.BegunAnew, m.AsOf)
	}
	s.gaps[0].State = control.GapOpen
	if _, err := Run(t.Context(), s.config(), spec(CSV), filepath.Join(t.TempDir(), "y")); err == nil || !strings.Contains(err.Error(), "tidemark gaps list") {
		t.Errorf("with an open gap: %v", err)
	}
}

// Without the proof there is no manifest; when it comes, the export goes on.
func TestAnExportWaitsForTheProof(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	s := newSystem(30)
	synctest.Test(t, func(t *testing.T) {
		s.verified = 0
		if _, err := Run(t.Context(), s.config(), spec(CSV), dir); err == nil || !strings.Contains(err.Error(), "verified up to seal 0") {
			t.Errorf("without a proof: %v", err)
		}
	})
	s.verified = 1
	if mustRun(t, s, spec(CSV), dir); len(s.lists) != 1 {
		t.Errorf("%d barriers", len(s.lists))
	}
}

func TestDirectoriesThatCannotTakeAnExport(t *testing.T) {
	s := newSystem(30)
	finished := filepath.Join(t.TempDir(), "x")
	mustRun(t, s, spec(CSV), finished)
	begun := filepath.Join(t.TempDir(), "x")
	s.fail = func(int) error { return errStopped }
	if _, err := Run(t.Context(), s.config(), spec(CSV), begun); !errors.Is(err, errStopped) {
		t.Fatal(err)
	}
	s.fail = nil
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	held := t.TempDir()
	d, err := openDirectory(held)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	for dir, want := range map[string]string{finished: "finished export", begun: "not finished, of like \"V1\" as csv", foreign: "thesis.txt", held: "another process"} {
		if _, err := Run(t.Context(), s.config(), spec(JSONL), dir); !errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	// A crash between the manifest and the end of the journal.
	if err := os.WriteFile(filepath.Join(finished, journalName), must(os.ReadFile(filepath.Join(begun, journalName))), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, err := Run(t.Context(), s.config(), spec(CSV), finished); err != nil || m.Rows == 0 {
		t.Errorf("left by a crash: %+v, %v", m, err)
	}
	if rows := rowsOf(t, finished); len(rows) == 0 {
		t.Error("no rows")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestSpecCheck(t *testing.T) {
	for name, change := range map[string]func(*Spec){
		"kind":       func(s *Spec) { s.Kind, s.KindName = 0, "dislike" },
		"target":     func(s *Spec) { s.Target = "" },
		"format":     func(s *Spec) { s.Format = "xlsx" },
		"accounts":   func(s *Spec) { s.Accounts = "" },
		"purpose":    func(s *Spec) { s.Purpose = " \t" },
		"of 501":     func(s *Spec) { s.Purpose = strings.Repeat("x", MaxPurpose+1) },
		"one line":   func(s *Spec) { s.Purpose = "a\nb" },
		"nobody ask": func(s *Spec) { s.By = "" },
	} {
		s := spec(CSV)
		change(&s)
		if err := s.Check(); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
