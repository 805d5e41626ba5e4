package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/drills"
	"github.com/tidemark/tidemark/drills/faultbroker"
	"github.com/tidemark/tidemark/drills/member"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/verify"
)

func newDrill() *cobra.Command {
	cmd := group(&cobra.Command{Use: "drill", Short: "Break a system on purpose and prove that its counts are right; exit 3 on any difference"})
	cmd.AddCommand(newDrillList(), newDrillRun())
	return cmd
}

func newDrillList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the drills and suites", Args: noArgs}
	out := outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		catalogue := drills.Catalogue()
		return out.print(cmd.OutOrStdout(), catalogue, func(w io.Writer) error {
			tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			fmt.Fprintln(tw, "DRILL\tBENCH\tROUNDS\tWHAT IT DOES")
			for _, d := range catalogue {
				fmt.Fprintf(tw, "%s\t%s\t%d\t%s\n", d.Name, d.Bench, d.Rounds, d.About)
			}
			fmt.Fprintln(tw, "\nSUITE\t\tDRILLS\tWHAT IT IS")
			for _, s := range drills.Suites() {
				fmt.Fprintf(tw, "%s\t\t%d\t%s\n", s.Name, len(s.Entries), s.About)
			}
			return tw.Flush()
		})
	}
	return cmd
}

func newDrillRun() *cobra.Command {
	o := drills.Options{}
	var weaken []string
	var selfTest bool
	cmd := &cobra.Command{
		Use:   "run NAME...",
		Short: "Run drills or suites and report what was injected, what was checked, and the verdict",
		Long: "Run drills or suites (`tidemark drill list` names them) and report, for each, what was injected and\n" +
			"how often, what was checked, and the verdict. Exit 0: no difference; 3: differences; 1: a drill could\n" +
			"not be done.\n\n" +
			"--self-test switches off each mechanism that the counts rely on, one at a time, and demands that a\n" +
			"drill notices: exit 3 when one does not.",
		Args: func(cmd *cobra.Command, given []string) error {
			if (len(given) > 0) == selfTest {
				return usagef("%s needs one or more names (`tidemark drill list` has them), or --self-test alone", cmd.CommandPath())
			}
			return nil
		},
	}
	out := outputFlag(cmd, "table", "json")
	f := cmd.Flags()
	f.BoolVar(&selfTest, "self-test", false, "show that the drills can fail")
	f.Uint64Var(&o.Seed, "seed", 0, "`SEED` that chooses what happens when; 0: another one each time")
	f.IntVar(&o.Rounds, "rounds", 0, "`NUMBER` of rounds of each drill (default: the drill's own)")
	f.IntVar(&o.Parallel, "parallel", 1, "`NUMBER` of drills at a time, each with a broker of its own")
	f.StringVar(&o.Kafka, "real-kafka", "", "`HOST:PORT` of a real broker instead of the embedded one")
	f.StringVar(&o.Connect, "connect", "", "`URL` of that broker's Connect worker, for switch-feed")
	f.BoolVar(&o.Keep, "keep", false, "keep logs and state even when nothing was found")
	f.StringVar(&o.Dir, "dir", "", "folder `DIR` where logs and state go (default: a temporary folder)")
	f.StringVar(&o.BrokersCommand, "brokers-command", "", "`COMMAND` that ends a broker of a real cluster when run with \"kill N\", and starts those that do not run with \"up\"")
	f.StringVar(&o.Previous, "previous", "", "`FILE` of another version's binary (default: tidemark-previous beside this one or in .bin)")
	f.StringSliceVar(&weaken, "weaken", nil, "switch a mechanism off: the drill must then find something")
	f.BoolVar(&o.LeaveGaps, "leave-gaps", false, "leave gaps of the change feed unhealed: its drills must then find something")
	_ = f.MarkHidden("weaken")
	_ = f.MarkHidden("leave-gaps")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if err := out.check(); err != nil {
			return err
		}
		if o.Seed == 0 {
			o.Seed = uint64(time.Now().UnixNano())
		}
		entries, err := drills.Entries(names)
		if err != nil {
			return usageError{err}
		}
		if o.Weakness, err = drills.ParseWeakness(weaken); err != nil {
			return usageError{err}
		}
		if o.Previous == "" {
			o.Previous = drills.FindPrevious()
		}
		o.Commit = readVersion().Commit
		o.Progress = cmd.ErrOrStderr()
		o.Verify = func(ctx context.Context, cfg config.Config) (verify.Report, error) {
			return verifyAll(ctx, cfg, 2*time.Minute, newScreen(io.Discard))
		}
		o.VerifyCache = func(ctx context.Context, cfg config.Config) (verify.CacheReport, verify.CountsReport, error) {
			r, err := verifyCache(ctx, cfg)
			return r.CacheReport, r.Counts, err
		}
		if selfTest {
			return drillSelfTest(cmd, o, out)
		}
		report, err := drills.Run(cmd.Context(), entries, o)
		if err != nil && report == nil {
			return usageError{err}
		}
		if err := out.print(cmd.OutOrStdout(), report, report.WriteTable); err != nil {
			return err
		}
		switch report.Verdict {
		case drills.Different:
			return errDifferent
		case drills.Failed:
			return fmt.Errorf("a drill could not be done")
		}
		return err
	}
	return cmd
}

func drillSelfTest(cmd *cobra.Command, o drills.Options, out *output) error {
	proofs, err := drills.SelfTest(cmd.Context(), o)
	if err != nil {
		return err
	}
	if err := out.print(cmd.OutOrStdout(), proofs, func(w io.Writer) error { return drills.WriteProofs(w, proofs) }); err != nil {
		return err
	}
	for _, p := range proofs {
		if !p.Noticed {
			return errDifferent
		}
	}
	return nil
}

// newDrillBroker is the broker that breaks on demand, in a process of its own.
func newDrillBroker() *cobra.Command {
	cmd := &cobra.Command{Use: faultbroker.Command + " DATADIR PORT[,PORT...]", Hidden: true, Args: exactly(2, "DATADIR and PORTs")}
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		ports, err := faultbroker.ParsePorts(given[1])
		if err != nil {
			return usageError{err}
		}
		return faultbroker.Serve(cmd.Context(), faultbroker.ServeConfig{DataDir: given[0], Ports: ports, Admin: "127.0.0.1:0", Seed: uint64(os.Getpid()),
			Out: cmd.OutOrStdout(), Logger: config.Log{Level: "warn", Format: "text"}.New(cmd.ErrOrStderr())})
	}
	return cmd
}

// newDrillMember is a member that drills kill.
func newDrillMember() *cobra.Command {
	cmd := &cobra.Command{Use: member.Command + " SPEC", Hidden: true, Args: exactly(1, "a SPEC")}
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		var spec member.Spec
		if err := json.Unmarshal([]byte(given[0]), &spec); err != nil {
			return usagef("the member's specification: %w", err)
		}
		return member.Run(cmd.Context(), spec, cmd.OutOrStdout(), config.Log{Level: "info", Format: "text"}.New(cmd.ErrOrStderr()))
	}
	return cmd
}
