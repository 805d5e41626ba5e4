package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/exports"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/topology"
)

func newExport() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "export",
		Short: "Exact lists as of one barrier: write one, check one",
		Long: "A list that the API pages through is a live one. An export is of one moment: a barrier through all\n" +
			"shards. Every relation that was active there is in it once, and no other.",
	})
	cmd.AddCommand(newExportLikers(), newExportVerify())
	return cmd
}

func newExportLikers() *cobra.Command {
	var spec exports.Spec
	var asOf, dir string
	var wait time.Duration
	var partRows int
	cmd := &cobra.Command{
		Use:   "likers",
		Short: "Write who likes, favorites or follows a target, as of one barrier",
		Long: "Take a barrier and write who likes, favorites or follows a target as of it: files of rows, newest\n" +
			"first, and manifest.json, last. What was interrupted goes on at its barrier when the same command\n" +
			"is given again within ten minutes; if the barrier is gone it says so and begins anew. The purpose\n" +
			"stands in the audit.",
		Example: `  tidemark export likers --target V9001 --purpose "campaign 12, ticket 4711" --out likers-V9001`,
		Args:    noArgs,
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	who := asFlag(cmd)
	cmd.Flags().StringVar(&spec.Target, "target", "", "`ID` of the video, or of the followed user")
	cmd.Flags().StringVar(&spec.KindName, "kind", topology.Like.String(), "`KIND` of relation: like, favorite, follow")
	cmd.Flags().StringVar(&asOf, "as-of", "now", "moment of the list: now")
	cmd.Flags().StringVar((*string)(&spec.Format), "format", string(exports.Parquet), "`FORMAT` of the rows: "+choices(exports.Formats()))
	cmd.Flags().StringVar((*string)(&spec.Accounts), "accounts", string(exports.Shown), "`WHOSE` relations: shown (accounts that are active and not private), all")
	cmd.Flags().StringVar(&spec.Purpose, "purpose", "", "`TEXT`: what the rows are wanted for (required)")
	cmd.Flags().StringVar(&dir, "out", "", "`DIR` to write to; a new or an empty one, or one with an export that was interrupted")
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait for a partition that is not served, and for the proof of the change feed")
	cmd.Flags().IntVar(&partRows, "part-rows", exports.DefaultRowsPerPart, "`ROWS` of a file, which are in memory until it is written, 1..1000000")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := out.check(); err != nil {
			return err
		}
		if spec.By, err = who.name(); err != nil {
			return err
		}
		if err := checkExport(&spec, asOf, dir, wait); err != nil {
			return err
		}
		if partRows < 1 || partRows > 1_000_000 {
			return usagef("--part-rows %d is not in 1..1000000", partRows)
		}
		cfg, err := at.load(config.PartPostgres, config.PartControl, config.PartKafka)
		if err != nil {
			return err
		}
		source, err := openExportSource(cmd.Context(), cfg, wait)
		if err != nil {
			return err
		}
		defer source.close()
		source.RowsPerPart = partRows
		m, err := exportLikers(cmd.Context(), source.Config, spec, dir, newScreen(cmd.ErrOrStderr()))
		if errors.Is(err, exports.ErrDirectory) {
			return usageError{err}
		}
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), m, func(w io.Writer) error { return exportTable(w, dir, m) })
	}
	return cmd
}

func choices[T ~string](all []T) string {
	text := make([]string, len(all))
	for i, v := range all {
		text[i] = string(v)
	}
	return strings.Join(text, ", ")
}

func checkExport(spec *exports.Spec, asOf, dir string, wait time.Duration) error {
	switch {
	case spec.Target == "":
		return usagef("--target is not given")
	case spec.Purpose == "":
		return usagef("--purpose is not given: say what the rows are wanted for")
	case dir == "":
		return usagef("--out is not given")
	case asOf != "now":
		return usagef("--as-of %q is not now: a moment that has passed cannot be exported", asOf)
	case wait <= 0:
		return usagef("--wait %v is not positive", wait)
	}
	if err := spec.Check(); err != nil {
		return usageError{err}
	}
	return nil
}

// exportLikers runs an export and shows on scr how far it is.
func exportLikers(ctx context.Context, source exports.Config, spec exports.Spec, dir string, scr *screen) (exports.Manifest, error) {
	m := scr.meter("export", 0)
	defer m.end()
	start, said := time.Now(), time.Time{}
	source.Tell = func(p exports.Progress) {
		if p.Turn != "" {
			scr.say("%s", p.Turn)
		}
		if scr.terminal && time.Since(said) < 100*time.Millisecond || !scr.terminal && time.Since(said) < 5*time.Second {
			return
		}
		said = time.Now()
		m.set(p.Relations, fmt.Sprintf("%d relations, %d rows in %d parts, %v", p.Relations, p.Rows, p.Parts, time.Since(start).Round(time.Millisecond)))
	}
	return exports.Run(ctx, source, spec, dir)
}

func exportTable(w io.Writer, dir string, m exports.Manifest) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "export\t%s, %s of %s\n", dir, m.KindName, m.Target)
	fmt.Fprintf(tw, "barrier\t%s\n", m.AsOf.Barrier)
	for _, c := range m.AsOf.Shards {
		fmt.Fprintf(tw, "shard %d\tseal %d, %s\n", c.Shard, c.Seal, c.SealedAt.Format(time.RFC3339Nano))
	}
	fmt.Fprintf(tw, "rules, generation\t%d, %d\n", m.AsOf.RulesRevision, m.AsOf.ReverseGeneration)
	fmt.Fprintf(tw, "relations\t%d: %d rows in %d parts, %d withheld\n", m.Relations, m.Rows, len(m.Parts), m.Withheld)
	fmt.Fprintf(tw, "checksum\t%s\n", m.Checksum)
	for _, why := range m.BegunAnew {
		fmt.Fprintf(tw, "begun anew\t%s\n", why)
	}
	return tw.Flush()
}

// exportCheckJSON is what --output json prints of a check.
type exportCheckJSON struct {
	Verdict string `json:"verdict"` // intact or different
	exports.Report
}

func newExportVerify() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check a finished export against its manifest; exit 0 intact, 3 different",
		Long: "Read every row of a finished export and compare files, rows, order and checksum with its manifest.\n" +
			"The audit has the checksum, too: compare it where the manifest itself is in doubt.",
		Args: exactly(1, "a DIR with a finished export"),
	}
	out := outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if err := out.check(); err != nil {
			return err
		}
		report, err := exports.Verify(cmd.Context(), given[0])
		if err != nil {
			return fmt.Errorf("could not tell: %w", err)
		}
		answer := exportCheckJSON{"intact", report}
		if len(report.Differences) > 0 {
			answer.Verdict = "different"
		}
		if err := out.print(cmd.OutOrStdout(), answer, func(w io.Writer) error { return answer.table(w, given[0]) }); err != nil {
			return err
		}
		if len(report.Differences) > 0 {
			return errDifferent
		}
		return nil
	}
	return cmd
}

func (a exportCheckJSON) table(w io.Writer, dir string) error {
	if err := exportTable(w, dir, a.Manifest); err != nil {
		return err
	}
	for _, d := range a.Differences {
		fmt.Fprintln(w, d)
	}
	fmt.Fprintln(w, "verdict:", a.Verdict)
	return nil
}
