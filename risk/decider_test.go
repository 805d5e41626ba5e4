package risk

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/tidemark/tidemark/topology"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// Two writes within the clock's step of the file system look alike.
	stamps++
	if err := os.Chtimes(path, time.Time{}, noon.Add(time.Duration(stamps)*time.Second)); err != nil {
		t.Fatal(err)
	}
}

var stamps int

func newDecider(t *testing.T, c Config) (*Decider, *prometheus.Registry, *bytes.Buffer) {
	t.Helper()
	registry, log := prometheus.NewRegistry(), new(bytes.Buffer)
	c.Registerer, c.Logger = registry, slog.New(slog.NewTextHandler(log, nil))
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if d.service != nil {
		t.Cleanup(d.service.client.CloseIdleConnections)
	}
	return d, registry, log
}

// A changed file, or list of ids, is used from then on; one that cannot be used
// leaves the rules before in use, and everybody is told.
func TestRulesAreReadAgain(t *testing.T) {
	dir := t.TempDir()
	path, ids := filepath.Join(dir, "rules.yaml"), filepath.Join(dir, "farm.txt")
	write(t, ids, "u8\n")
	write(t, path, when("usersFile: farm.txt"))
	d, registry, log := newDecider(t, Config{RulesFile: path})
	refuses := func(want bool) {
		t.Helper()
		d.renew()
		if got := d.Decide(t.Context(), like(nil)).Action == Refuse; got != want {
			t.Errorf("refused: %v", got)
		}
	}
	refuses(false)
	write(t, ids, "u7\n")
	refuses(true)
	good := d.Detail()
	write(t, path, when("usersFile: farm.txt, nonsense: 1"))
	refuses(true)
	refuses(true)
	if text := d.Detail(); !strings.HasPrefix(text, good) || !strings.Contains(text, "nonsense") || d.Ready() != nil {
		t.Errorf("the detail is %q", text)
	}
	if n := strings.Count(log.String(), "cannot be used"); n != 1 {
		t.Errorf("the log says it %d times:\n%s", n, log)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	refuses(true)
	report, err := d.Report(t.Context())
	if r := report.(Report); err != nil || r.Failure == "" || len(r.Rules) != 1 || r.Rules[0].Matched != 4 {
		t.Errorf("the report is %+v, %v", report, err)
	}
	write(t, path, when("users: [u9]"))
	refuses(false)
	if text := d.Detail(); strings.Contains(text, "nonsense") || strings.HasPrefix(text, good) {
		t.Errorf("the detail is %q", text)
	}
	for _, m := range []struct {
		name, label string
		want        []float64
	}{{"tidemark_risk_rules_outdated", "", []float64{0}}, {"tidemark_risk_rules_reloads_total", "error", []float64{2}}, {"tidemark_risk_rules_reloads_total", "ok", []float64{2}}, {"tidemark_risk_rules_info", "", []float64{1}}} {
		if got := gathered(t, registry, m.name, m.label); !slices.Equal(got, m.want) {
			t.Errorf("%s %s is %v", m.name, m.label, got)
		}
	}
}

// gathered are the values of a metric, or the numbers of observations, of those
// series that have a label of a value.
func gathered(t *testing.T, from *prometheus.Registry, metric, label string) (values []float64) {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == metric && (label == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetValue() == label })) {
				values = append(values, m.GetCounter().GetValue()+m.GetGauge().GetValue()+float64(m.GetHistogram().GetSampleCount()))
			}
		}
	}
	return values
}

func TestABadFileStartsNothing(t *testing.T) {
	if _, err := New(Config{RulesFile: filepath.Join(t.TempDir(), "none.yaml")}); err == nil {
		t.Error("it began without its rules")
	}
	if _, err := New(Config{Service: &ServiceConfig{InFlight: 1, SecretFile: filepath.Join(t.TempDir(), "none")}}); err == nil {
		t.Error("it began without its secret")
	}
}

func TestDryRunsAreCountedOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write(t, path, "rules: [{name: a, dryRun: true, action: hide, by: risk, reason: trial, when: {kinds: [like]}}]")
	d, registry, _ := newDecider(t, Config{RulesFile: path})
	if v := d.Decide(t.Context(), like(nil)); v != (Verdict{}) {
		t.Errorf("a dry run decided %+v", v)
	}
	if n := gathered(t, registry, "tidemark_risk_dry_runs_total", "trial"); !slices.Equal(n, []float64{1}) {
		t.Errorf("counted %v times", n)
	}
}

// A metric does not grow with the reasons that a service thinks of.
func TestReasonsInMetricsAreBounded(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := newMeasures(registry)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 * maxReasons {
		for range 2 {
			m.decided(Verdict{Action: Hide, By: topology.HiddenByRisk, Reason: "r" + string(rune('a'+i%26)) + strings.Repeat("x", i/26), Source: ByService})
		}
	}
	if n := len(gathered(t, registry, "tidemark_risk_verdicts_total", "")); n != maxReasons+1 {
		t.Errorf("%d series", n)
	}
	if n := gathered(t, registry, "tidemark_risk_verdicts_total", otherReason); !slices.Equal(n, []float64{4 * maxReasons}) {
		t.Errorf("%v others", n)
	}
}
