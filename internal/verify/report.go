package verify

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Verdict is the answer to "are the counts right?".
type Verdict string

// The verdicts.
const (
	Equal     Verdict = "equal"
	Different Verdict = "different"
	Unknown   Verdict = "unknown"
)

// ExitCode of the command that says the verdict.
func (v Verdict) ExitCode() int {
	switch v {
	case Equal:
		return 0
	case Different:
		return 3
	}
	return 1
}

// Report is the outcome of a verification.
type Report struct {
	Verdict Verdict `json:"verdict"`
	// Reason says why the verdict is unknown, or what an equal one leaves open.
	Reason string `json:"reason,omitempty"`
	// Quiet is true when everything committed before the comparison had been
	// displayed, and nothing was committed during it.
	Quiet   bool      `json:"quiet"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`

	Targets   int64    `json:"targets"`
	Relations int64    `json:"relations"`
	Rows      Rows     `json:"rows"`
	Totals    []Totals `json:"totals"`

	// Counts are all differences by class; Differences the first of each.
	Counts      map[Class]int64 `json:"counts"`
	Differences []Difference    `json:"differences"`
}

// WriteJSON writes the report as one JSON object.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// WriteTable writes the report for people.
func (r Report) WriteTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "KIND\tSTATE\tFACTS\tRELATIONS\tBUCKETS\tDISPLAYED")
	for _, t := range r.Totals {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\t%d\t%d\n", t.Kind, t.State, t.Facts, t.Relations, t.Buckets, t.Displayed)
	}
	if len(r.Differences) > 0 {
		fmt.Fprintln(tw)
		fmt.Fprintln(tw, "CLASS\tKIND\tTARGET\tUSER\tSTATE\tFACTS\tRELATIONS\tBUCKETS\tDISPLAYED\tREASON")
	}
	for _, d := range r.Differences {
		sides := "-\t-\t-\t-"
		if d.Sides != nil {
			sides = fmt.Sprintf("%d\t%d\t%d\t%d", d.Sides.Facts, d.Sides.Relations, d.Sides.Buckets, d.Sides.Displayed)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.Class, dash(d.Kind), dash(d.Target), dash(d.User), dash(d.State), sides, d.Reason)
	}
	fmt.Fprintln(tw)
	if len(r.Counts) > 0 {
		var counts []string
		for _, c := range slices.Sorted(maps.Keys(r.Counts)) {
			counts = append(counts, fmt.Sprintf("%s %d", c, r.Counts[c]))
		}
		fmt.Fprintf(tw, "differences: %s\n", strings.Join(counts, ", "))
	}
	fmt.Fprintf(tw, "%d targets, %d relations; %d facts, %d projection records, %d display records, %d liker records read in %.1f s\n",
		r.Targets, r.Relations, r.Rows.Facts, r.Rows.Projection, r.Rows.Display, r.Rows.Likers, r.Seconds)
	fmt.Fprintf(tw, "verdict: %s", r.Verdict)
	if r.Reason != "" {
		fmt.Fprintf(tw, ", %s", r.Reason)
	}
	fmt.Fprintln(tw)
	return tw.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
