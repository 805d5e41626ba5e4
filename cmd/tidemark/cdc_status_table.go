package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/tidemark/tidemark/internal/control"
)

func feedTable(w io.Writer, list []feedJSON) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SHARD\tSLOT\tWAL\tFEED\tREADER\tCONFIRMED\tLAG BYTES\tLAG\tUNPUBLISHED\tOLDEST\tRETAINED\tPUBLICATION\tGAPS\tOUTBOX")
	for _, f := range list {
		if f.Error != "" {
			fmt.Fprintf(tw, "%d\tdoes not answer\n", f.Shard)
			continue
		}
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", f.Shard, f.slotWord(), orDash(f.Slot.WALStatus), f.feedWord(), f.readerWord(),
			orDash(f.Slot.ConfirmedLSN), number(f.LagBytes), age(f.LagSeconds), number(f.UnpublishedRows), age(f.OldestUnpublishedSeconds),
			byteCount(f.Slot.RetainedBytes), f.publicationWord(), f.OpenGaps, byteCount(f.Outbox.Bytes))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, f := range list {
		f.lines(w)
	}
	return nil
}

// lines prints what does not fit into the table.
func (f *feedJSON) lines(w io.Writer) {
	for _, p := range f.Problems {
		fmt.Fprintf(w, "shard %d: WRONG: %s\n", f.Shard, p)
	}
	if p := f.Paused; p != nil {
		fmt.Fprintf(w, "shard %d: paused %s\n", f.Shard, whyPaused(control.FeedPause{Shard: f.Shard, At: p.Since, Who: p.By, Reason: p.Reason}))
	}
	if f.OpenGaps > 0 {
		fmt.Fprintf(w, "shard %d: %d open gaps name %d rows: `tidemark gaps list`\n", f.Shard, f.OpenGaps, f.MissingRows)
	}
	for _, e := range f.Emitters {
		last := ""
		if e.LastError != "" {
			last = ", last error: " + e.LastError
			if e.LastErrorAt != nil {
				last += " (" + e.LastErrorAt.UTC().Format(time.RFC3339) + ")"
			}
		}
		fmt.Fprintf(w, "shard %d: emitter %s: %s since %s, %d restarts%s\n", f.Shard, e.Instance, e.State, e.Since.Format(time.RFC3339), e.Restarts, last)
	}
}

func (f *feedJSON) slotWord() string {
	switch {
	case !f.Slot.Exists:
		return "missing"
	case f.Slot.Active:
		return "active"
	}
	return "inactive"
}

func (f *feedJSON) feedWord() string {
	switch {
	case f.Paused != nil:
		return "paused"
	case f.Slot.Active:
		return "flows"
	}
	return "stands"
}

func (f *feedJSON) readerWord() string {
	switch r := f.Reader; {
	case r == nil:
		return "-"
	case r.Instance != "":
		return fmt.Sprintf("%s (pid %d)", r.Instance, r.PID)
	default:
		return fmt.Sprintf("%s (pid %d)", orDash(r.Application), r.PID)
	}
}

func (f *feedJSON) publicationWord() string {
	switch {
	case !f.Publication.Exists:
		return "missing"
	case !f.Publication.Complete:
		return "altered"
	}
	return "complete"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func age(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	return fmt.Sprintf("%.1fs", *seconds)
}

func byteCount(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
