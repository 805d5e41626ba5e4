package drills

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark/tidemark/drills/faultbroker"
	"github.com/tidemark/tidemark/drills/member"
	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/testenv"
)

// The processes of a drill are this test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == member.Command || os.Args[1] == faultbroker.Command) {
		if err := child(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testenv.Main(m)
}

func child(command string, args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if command == faultbroker.Command {
		ports, err := faultbroker.ParsePorts(args[1])
		if err != nil {
			return err
		}
		return faultbroker.Serve(ctx, faultbroker.ServeConfig{DataDir: args[0], Ports: ports, Admin: "127.0.0.1:0", Out: os.Stdout, Logger: log})
	}
	var spec member.Spec
	if err := json.Unmarshal([]byte(args[0]), &spec); err != nil {
		return err
	}
	return member.Run(ctx, spec, os.Stdout, log)
}

func run(t *testing.T, o Options, entries ...Entry) Result {
	t.Helper()
	o.Dir = t.TempDir()
	r, err := Run(t.Context(), entries, o)
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil {
		t.Fatal(err)
	}
	t.Log(table.String())
	return r.Results[0]
}

// A drill finds nothing where nothing is wrong, and something as soon as a
// mechanism is switched off.
func TestDrill(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for half a minute")
	}
	x := run(t, Options{Seed: 4}, Entry{"kill-burst", 2})
	if x.Verdict != Equal || x.Figures.Kills != 4 || x.Injected["kill-burst"] != 2 || x.Checked.Relations == 0 || x.Checked.Watched.Samples == 0 || x.Checked.Watched.Finished == 0 {
		t.Fatalf("%+v", x)
	}
	for attempt := range uint64(3) {
		weak, err := ParseWeakness([]string{"barrier"})
		if err != nil {
			t.Fatal(err)
		}
		x = run(t, Options{Seed: 4 + attempt, Weakness: weak}, Entry{"kill-burst", 3})
		if x.Verdict == Different && x.Found[oracle.EarlyCommit] > 0 {
			return
		}
	}
	t.Fatalf("without its commit barrier nothing was found: %+v", x)
}

func TestCatalogue(t *testing.T) {
	names := map[string]bool{}
	used := map[string]bool{}
	for _, d := range Catalogue() {
		if err := d.check(); err != nil {
			t.Error(err)
		}
		if names[d.Name] {
			t.Errorf("two drills are called %s", d.Name)
		}
		names[d.Name] = true
		for _, lane := range d.Lanes {
			for _, i := range lane {
				used[i] = true
			}
		}
	}
	for name := range injections {
		if !used[name] {
			t.Errorf("no drill uses injection %s", name)
		}
	}
	for name := range systemInjections {
		if !used[name] {
			t.Errorf("no drill uses injection %s", name)
		}
	}
	for _, p := range proofs {
		if _, err := ParseWeakness([]string{p.mechanism}); err != nil || !names[p.drill] {
			t.Errorf("proof %+v: %v", p, err)
		}
	}
	for _, s := range Suites() {
		if names[s.Name] {
			t.Errorf("suite %s has the name of a drill", s.Name)
		}
		if _, err := Entries([]string{s.Name}); err != nil {
			t.Error(err)
		}
		for _, e := range s.Entries {
			if !names[e.Drill] || e.Rounds < 1 {
				t.Errorf("suite %s: %+v", s.Name, e)
			}
		}
	}
	if _, err := Entries([]string{"nothing"}); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("got %v", err)
	}
}

// The torture that is promised is in the suite.
func TestTortureIsLargeEnough(t *testing.T) {
	kills, pauses, faults := 0, 0, 0
	perInjection := map[string]int{"kill": 1, "kill-burst": 2, "kill-recovery": 2, "kill-rebalance": 1, "kill-stopping": 1, "wipe-state": 1, "old-state": 2}
	for _, e := range Suites()[0].Entries {
		d, err := Find(e.Drill)
		if err != nil {
			t.Fatal(err)
		}
		if d.Random {
			continue
		}
		for _, i := range slices.Concat(d.Lanes...) {
			kills += perInjection[i] * e.Rounds
			if i == "zombie" {
				pauses += e.Rounds
			}
			if injections[i].faults && i != "offset-ahead" && i != "compact" {
				faults += e.Rounds
			}
		}
	}
	if kills < 300 || pauses < 30 || faults < 20 {
		t.Errorf("%d kills, %d pauses, %d broker faults", kills, pauses, faults)
	}
}

func TestScheduleFollowsItsSeed(t *testing.T) {
	lane := []string{"a", "b", "c"}
	if got := schedule(lane, false, 2, source(1, "x")); !slices.Equal(got, []string{"a", "b", "c", "a", "b", "c"}) {
		t.Errorf("in turn: %v", got)
	}
	one, again, other := schedule(lane, true, 50, source(1, "x")), schedule(lane, true, 50, source(1, "x")), schedule(lane, true, 50, source(2, "x"))
	if len(one) != 50 || !slices.Equal(one, again) || slices.Equal(one, other) {
		t.Errorf("at random: %v, %v, %v", one, again, other)
	}
	if slices.Equal(one, schedule(lane, true, 50, source(1, "y"))) {
		t.Error("two uses of a seed draw the same")
	}
	if schedule(nil, true, 3, source(1, "x")) != nil {
		t.Error("an empty lane does something")
	}
	for range 100 {
		if d := between(source(3, "z"), time.Second, 2*time.Second); d < time.Second || d > 2*time.Second {
			t.Fatal(d)
		}
	}
}

func TestReportSaysTheWorst(t *testing.T) {
	for _, c := range []struct {
		verdicts []Verdict
		want     Verdict
	}{{nil, Equal}, {[]Verdict{Equal, Skipped}, Equal}, {[]Verdict{Equal, Failed, Equal}, Failed}, {[]Verdict{Different, Failed}, Different}} {
		r := Report{}
		for _, v := range c.verdicts {
			r.Results = append(r.Results, Result{Verdict: v})
		}
		if r.judge(); r.Verdict != c.want {
			t.Errorf("%v: %s, want %s", c.verdicts, r.Verdict, c.want)
		}
	}
	r := Report{Verdict: Different, Results: []Result{{Drill: "kill", Verdict: Different, Injected: map[string]int{"kill": 3}, Figures: Figures{Events: 10, Kills: 3}, Differences: []string{"count: wrong"}, Kept: "/there"}}}
	var table bytes.Buffer
	if err := r.WriteTable(&table); err != nil || !strings.Contains(table.String(), "count: wrong") || !strings.Contains(table.String(), "injected: kill 3") {
		t.Errorf("%v: %s", err, table.String())
	}
}

func TestRunRefusesUnknownDrills(t *testing.T) {
	if _, err := Run(t.Context(), []Entry{{Drill: "nothing"}}, Options{Progress: io.Discard}); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("got %v", err)
	}
	d := Drill{Name: "x", About: "x", Bench: Projection, Lanes: one("nothing")}
	if err := d.check(); err == nil || !strings.Contains(err.Error(), `"nothing"`) {
		t.Errorf("got %v", err)
	}
}
