package drills

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/drills/paging"
	"github.com/tidemark/tidemark/emitters/load"
)

// Verdict on a drill.
type Verdict string

// The verdicts.
const (
	Equal     Verdict = "equal"     // no difference
	Different Verdict = "different" // something is wrong
	Failed    Verdict = "failed"    // the drill itself could not be done
	Skipped   Verdict = "skipped"   // it needs what is not there
)

// Result is the report of one drill.
type Result struct {
	Drill    string         `json:"drill"`
	Bench    Bench          `json:"bench"`
	Seed     uint64         `json:"seed"`
	Verdict  Verdict        `json:"verdict"`
	Reason   string         `json:"reason,omitempty"` // of failed and skipped
	Notes    []string       `json:"notes,omitempty"`  // on how it was done
	Seconds  float64        `json:"seconds"`
	Injected map[string]int `json:"injected"` // how often, by injection
	Checked  Checked        `json:"checked"`
	Figures  Figures        `json:"figures"`
	// Found are all differences by class; Differences describes some.
	Found       map[oracle.Class]int64 `json:"found,omitempty"`
	Differences []string               `json:"differences,omitempty"`
	Kept        string                 `json:"kept,omitempty"` // folder with logs and state
}

// Checked is what a verdict rests on.
type Checked struct {
	Relations int64          `json:"relations"` // compared with their facts
	Targets   int64          `json:"targets"`   // compared in four places
	Watched   oracle.Watched `json:"watched"`
	// Lists were told by the API at the end, and compared with their facts.
	Lists int             `json:"lists,omitempty"`
	Pages *paging.Figures `json:"pages,omitempty"` // read while the drill ran
	Cache *CacheChecked   `json:"cache,omitempty"`
}

// Figures are how much went on.
type Figures struct {
	Events     int64        `json:"events"` // changes (or commands) that were sent
	PerSecond  float64      `json:"eventsPerSecond"`
	Poison     int64        `json:"poison"`
	Kills      int          `json:"kills"`         // kill -9 of any process
	Pauses     int          `json:"pauses"`        // of an owner with a successor running
	Faults     int          `json:"brokerFaults"`  // the broker, its answers or its connections
	Handled    int64        `json:"handled"`       // records by all members, up to the last sign of each life
	Rebuilds   int64        `json:"rebuilds"`      // processors built anew
	Fenced     int64        `json:"fenced"`        // stopped by a foreign record
	Repairs    int64        `json:"repairs"`       // winners written again
	MostMemory int64        `json:"mostMemory"`    // bytes, of the largest member
	ToFirst    Spread       `json:"startToRecord"` // start of a member to its first record
	Stop       Spread       `json:"stop"`          // graceful stops
	Load       *load.Report `json:"load,omitempty"`
}

// Spread of durations, in seconds.
type Spread struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	Max float64 `json:"max"`
}

func spread(all []time.Duration) Spread {
	if len(all) == 0 {
		return Spread{}
	}
	all = slices.Sorted(slices.Values(all))
	return Spread{len(all), all[len(all)/2].Seconds(), all[len(all)-1].Seconds()}
}

// Report is what a run of drills found.
type Report struct {
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Seed    uint64    `json:"seed"`
	Broker  string    `json:"broker"` // embedded, or host:port of a real one
	Machine string    `json:"machine"`
	Commit  string    `json:"commit,omitempty"`
	Verdict Verdict   `json:"verdict"`
	Results []Result  `json:"results"`
}

// judge gives the verdict on all: the worst of the drills'.
func (r *Report) judge() {
	r.Verdict = Equal
	for _, worse := range []Verdict{Failed, Different} {
		if slices.ContainsFunc(r.Results, func(x Result) bool { return x.Verdict == worse }) {
			r.Verdict = worse
		}
	}
}

// Totals adds up what was done in all drills.
func (r *Report) Totals() (injected map[string]int, f Figures) {
	injected = map[string]int{}
	for _, x := range r.Results {
		for name, n := range x.Injected {
			injected[name] += n
		}
		f.Events += x.Figures.Events
		f.Poison += x.Figures.Poison
		f.Kills += x.Figures.Kills
		f.Pauses += x.Figures.Pauses
		f.Faults += x.Figures.Faults
		f.Handled += x.Figures.Handled
		f.Rebuilds += x.Figures.Rebuilds
		f.Fenced += x.Figures.Fenced
		f.Repairs += x.Figures.Repairs
		f.MostMemory = max(f.MostMemory, x.Figures.MostMemory)
	}
	return injected, f
}

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "DRILL\tVERDICT\tSECONDS\tEVENTS\tKILLS\tPAUSES\tFAULTS\tREBUILDS\tFENCED\tREPAIRS\tRELATIONS\tCOMMITS\tBELOW THEM\tMEMORY")
	for _, x := range r.Results {
		f := x.Figures
		fmt.Fprintf(tw, "%s\t%s\t%.0f\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d MB\n", x.Drill, x.Verdict, x.Seconds, f.Events, f.Kills, f.Pauses, f.Faults,
			f.Rebuilds, f.Fenced, f.Repairs, x.Checked.Relations, x.Checked.Watched.Samples, x.Checked.Watched.Finished, f.MostMemory>>20)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, x := range r.Results {
		x.writeDetails(w)
	}
	injected, f := r.Totals()
	fmt.Fprintf(w, "\ninjected: %s\n", tally(injected))
	fmt.Fprintf(w, "%d events, %d poisoned, %d kills, %d pauses of owners, %d broker faults; %d processors built anew, %d fenced, %d rows repaired\n",
		f.Events, f.Poison, f.Kills, f.Pauses, f.Faults, f.Rebuilds, f.Fenced, f.Repairs)
	_, err := fmt.Fprintf(w, "seed %d, broker %s, %s, commit %s, %.0f s\nverdict: %s\n", r.Seed, r.Broker, r.Machine, r.Commit, r.Seconds, r.Verdict)
	return err
}

func (x Result) writeDetails(w io.Writer) {
	if x.Reason == "" && len(x.Differences) == 0 && len(x.Notes) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s: %s %s\n", x.Drill, x.Verdict, x.Reason)
	for _, n := range x.Notes {
		fmt.Fprintf(w, "  %s\n", n)
	}
	for _, d := range x.Differences {
		fmt.Fprintf(w, "  %s\n", d)
	}
	if x.Kept != "" {
		fmt.Fprintf(w, "  logs and state: %s\n", x.Kept)
	}
}

func tally(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	if parts == nil {
		return "nothing"
	}
	return strings.Join(parts, ", ")
}
