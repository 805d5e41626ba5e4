package load

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report is what a run did and measured, with what it takes to judge it.
type Report struct {
	Workload    string  `json:"workload"`
	Preparation string  `json:"preparation,omitempty"`
	Commit      string  `json:"commit,omitempty"`
	Machine     Machine `json:"machine"`

	Started  time.Time `json:"started"`
	Duration float64   `json:"durationSeconds"`
	WarmUp   float64   `json:"warmUpSeconds"`
	Workers  int       `json:"workers"`
	Seed     uint64    `json:"seed"`

	// Users and Targets are the cardinalities drawn from; Relations those met.
	Users     int   `json:"users,omitempty"`
	Targets   int   `json:"targets,omitempty"`
	Relations int64 `json:"relations"`

	Mix        *Mix          `json:"mix,omitempty"`  // as configured
	Made       *Made         `json:"made,omitempty"` // as it came out
	TargetSkew *Skew         `json:"targetSkew,omitempty"`
	UserSkew   *Skew         `json:"userSkew,omitempty"`
	Replay     *ReplayReport `json:"replay,omitempty"`

	Scheduled int64            `json:"scheduled"`
	Decided   int64            `json:"decided"` // abandoned ones not counted
	Outcomes  map[string]int64 `json:"outcomes"`
	Events    map[string]int64 `json:"events"`   // on the way to the outcomes
	Requests  int64            `json:"requests"` // of commands, retries included
	BodyBytes float64          `json:"bodyBytes"`

	// OfferedRate is the schedule's; 0: flat out. MissedRate is how much of it
	// could not even be sent in time.
	OfferedRate  float64 `json:"offeredPerSecond"`
	AchievedRate float64 `json:"achievedPerSecond"`
	MissedRate   float64 `json:"missedPerSecond"`

	// Latency counts from when a command was due until it was decided, all
	// retries and waits included; Service from its first attempt; Late is the
	// difference.
	Latency Latency `json:"latency"`
	Service Latency `json:"service"`
	Late    Latency `json:"late"`

	Reads *ReadReport `json:"reads,omitempty"`

	// LimitedBy says what kept the rate from being higher.
	LimitedBy string `json:"limitedBy"`
	// ErrorMeans is the definition of an error here.
	ErrorMeans string `json:"errorMeans"`
}

// ReadReport is about the batch queries.
type ReadReport struct {
	OfferedRate  float64          `json:"offeredPerSecond"`
	AchievedRate float64          `json:"achievedPerSecond"`
	ItemsPerRead float64          `json:"itemsPerRead"`
	Skew         Skew             `json:"skew"`
	Outcomes     map[string]int64 `json:"outcomes"` // by status
	Latency      Latency          `json:"latency"`  // from when a read was due
}

const errorMeans = "refused (4xx other than a deliberate stale base), gave-up (no deciding answer after all attempts), abandoned (run ended first)"

// Errors is the number of commands that failed, as ErrorMeans defines it.
func (r Report) Errors() int64 { return failed(r.Outcomes) }

func (r *run) report() Report {
	c, m := r.config, &r.measures
	seconds := r.end.Sub(r.start).Seconds()
	out := Report{
		Workload: "LIKES-1", Preparation: c.Preparation, Commit: c.Commit, Machine: thisMachine(),
		Started: r.start.UTC(), Duration: seconds, WarmUp: c.WarmUp.Seconds(), Workers: c.Workers, Seed: c.Seed,
		Relations: r.relations.cardinality(), Scheduled: r.scheduled.Load(),
		Outcomes: m.outcomes.get(), Events: m.events.get(), Requests: m.sent.Load(),
		Latency: m.latency.latency(), Service: m.service.latency(), Late: m.late.latency(),
		ErrorMeans: errorMeans,
	}
	out.Decided = total(out.Outcomes) - out.Outcomes[Abandoned]
	out.AchievedRate = float64(out.Decided) / seconds
	if out.Requests > 0 {
		out.BodyBytes = float64(m.bytes.Load()) / float64(out.Requests)
	}
	r.describeSource(&out)
	if out.OfferedRate > 0 {
		started := float64(out.Decided) / max(1e-9, max(r.lastDue, time.Duration(r.lastStart.Load())).Seconds())
		if late := time.Duration(r.lastStart.Load()) - r.lastDue; late > tolerated {
			out.MissedRate = max(0, out.OfferedRate-started)
		}
	}
	if now, ok := readProcessorTime(); ok {
		out.Machine.CPUBusy = now.since(r.processor)
	}
	if c.ReadRate > 0 {
		out.Reads = r.readReport(seconds)
	}
	out.LimitedBy = out.limit(r.blocked, time.Duration(m.waited.Load()))
	return out
}

func (r *run) describeSource(out *Report) {
	c := r.config
	if r.replayer != nil {
		replay := r.replayer.report
		out.Workload, out.Replay = "replay", &replay
		if last := r.lastDue.Seconds(); c.Replay.Speed > 0 && last > 0 {
			out.OfferedRate = float64(out.Scheduled) / last
		}
		return
	}
	made := r.generator.made
	out.Mix, out.Made, out.TargetSkew, out.UserSkew = &c.Mix, &made, &c.TargetSkew, &c.UserSkew
	out.Users, out.Targets, out.OfferedRate = c.Users, c.Targets, c.Rate
}

func (r *run) readReport(seconds float64) *ReadReport {
	out := &ReadReport{OfferedRate: r.config.ReadRate, Skew: r.config.ReadSkew, Outcomes: r.measures.reads.get(), Latency: r.measures.readLatency.latency()}
	out.AchievedRate = float64(total(out.Outcomes)) / seconds
	if out.Latency.Count > 0 {
		out.ItemsPerRead = float64(r.measures.readItems.Load()) / float64(out.Latency.Count)
	}
	return out
}

// tolerated is how late commands may leave before the rate counts as missed.
const tolerated = 50 * time.Millisecond

// limit names the limiting resource, the first that fits.
func (r Report) limit(b blocked, waited time.Duration) string {
	workers := time.Duration(float64(r.Workers) * r.Duration * float64(time.Second))
	share := func(d time.Duration) float64 { return float64(d) / max(1, r.Duration*float64(time.Second)) }
	switch {
	case r.OfferedRate > 0 && (r.MissedRate < 0.01*r.OfferedRate || r.Late.P99 < float64(tolerated.Milliseconds())):
		return "nothing: the offered rate was met"
	case r.Machine.CPUBusy >= 0.9:
		return fmt.Sprintf("processor: this machine was %.0f %% busy, the server included if it is here", 100*r.Machine.CPUBusy)
	case float64(waited) > 0.2*float64(workers):
		return fmt.Sprintf("server: it refused or asked to wait for %.0f %% of the workers' time", 100*float64(waited)/float64(workers))
	case b.order > b.workers && share(b.order) > 0.05:
		return "relations: commands wait for the one before them of the same relation; more users or targets, or a shorter round trip, would help"
	}
	return fmt.Sprintf("workers: %d commands in flight at %.1f ms each (median); raise the workers, unless the server is what is slow", r.Workers, r.Service.P50)
}

// WriteTable writes the report for people.
func (r Report) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	row("workload", "%s, seed %d", r.Workload, r.Seed)
	if r.Made != nil {
		row("drawn from", "%d users (%s), %d targets (%s); hottest target %.1f %%", r.Users, r.UserSkew.Shape, r.Targets, r.TargetSkew.Shape, 100*float64(r.Made.Hottest)/float64(max(1, r.Made.Total)))
		row("made", "%d on, %d off, %d switch, %d stale base, %d resend", r.Made.On, r.Made.Off, r.Made.Switch, r.Made.Stale, r.Made.Resend)
	}
	if r.Replay != nil {
		row("replayed", "%s: %d lines, %d commands, %d bad, %d back in time", r.Replay.Path, r.Replay.Lines, r.Replay.Commands, r.Replay.BadLines, r.Replay.Backwards)
		for _, b := range r.Replay.Bad {
			row("", "line %d: %s", b.Number, b.Reason)
		}
	}
	row("commands", "%d decided of %d in %.1f s, %d relations", r.Decided, r.Scheduled, r.Duration, r.Relations)
	row("rate", "%.0f/s achieved, %s", r.AchievedRate, r.offered())
	row("outcomes", "%s", countsLine(r.Outcomes))
	row("on the way", "%s", countsLine(r.Events))
	row("errors", "%d: %s", r.Errors(), r.ErrorMeans)
	row("latency", "%s (from when due)", r.Latency)
	row("service", "%s (from the first attempt)", r.Service)
	row("late", "%s (due to first attempt)", r.Late)
	if r.Reads != nil {
		row("reads", "%.0f/s achieved, %.0f/s offered, %.1f items each, %s", r.Reads.AchievedRate, r.Reads.OfferedRate, r.Reads.ItemsPerRead, countsLine(r.Reads.Outcomes))
		row("read latency", "%s", r.Reads.Latency)
	}
	row("limited by", "%s", r.LimitedBy)
	row("body", "%.0f bytes", r.BodyBytes)
	row("machine", "%s, %d cores, %.1f GiB, %.0f %% busy", r.Machine.OS, r.Machine.Cores, float64(r.Machine.MemoryBytes)/(1<<30), 100*r.Machine.CPUBusy)
	row("workers", "%d, warm-up %.0f s", r.Workers, r.WarmUp)
	if r.Preparation != "" {
		row("preparation", "%s", r.Preparation)
	}
	if r.Commit != "" {
		row("commit", "%s", r.Commit)
	}
	return tw.Flush()
}

func (r Report) offered() string {
	if r.OfferedRate == 0 {
		return "flat out"
	}
	return fmt.Sprintf("%.0f/s offered, %.0f/s missed", r.OfferedRate, r.MissedRate)
}

// String is one line.
func (l Latency) String() string {
	return fmt.Sprintf("p50 %.1f ms, p95 %.1f, p99 %.1f, max %.1f", l.P50, l.P95, l.P99, l.Max)
}

func countsLine(counts map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
	}
	if parts == nil {
		return "-"
	}
	return strings.Join(parts, ", ")
}
