package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/risk"
	"github.com/tidemark/tidemark/topology"
)

func newRisk() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "risk",
		Short: "What risk refuses or hides: check and try rules, hide and show relations",
		Long: "Rules, and a service, decide on commands that would begin a relation: allow, refuse, or hide, which\n" +
			"keeps the relation and leaves it out of the count that users see. Operators hide and show relations\n" +
			"that exist.",
	})
	cmd.AddCommand(newRiskCheck(), newRiskTry(), newRiskHide(), newRiskShow(), newRiskCases())
	return cmd
}

// checkedRulesJSON is what --output json prints of a rule file.
type checkedRulesJSON struct {
	Valid   bool   `json:"valid"`
	Version string `json:"version,omitempty"`
	Rules   int    `json:"rules"`
	Fault   string `json:"fault,omitempty"`
}

func newRiskCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "check",
		Short:   "Check a rule file: exit code 3 if it cannot be used",
		Long:    "Read a rule file and the lists that it names, as a process would, and say every fault, or its version.",
		Example: "  tidemark risk check --file rules.yaml",
		Args:    noArgs,
	}
	out := outputFlag(cmd, "text", "json")
	var file string
	cmd.Flags().StringVar(&file, "file", "", "rule `FILE` (required)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		if file == "" {
			return usagef("--file is not given")
		}
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("reading rules of risk: %w", err)
		}
		rules, err := risk.Load(file)
		checked := checkedRulesJSON{Valid: err == nil}
		if err != nil {
			checked.Fault = err.Error()
		} else {
			checked.Version, checked.Rules = rules.Version(), len(rules.List())
		}
		printed := out.print(cmd.OutOrStdout(), checked, func(w io.Writer) (err error) {
			if checked.Valid {
				_, err = fmt.Fprintf(w, "%d rules, version %s\n", checked.Rules, checked.Version)
			} else {
				_, err = fmt.Fprintln(w, checked.Fault)
			}
			return err
		})
		if printed == nil && err != nil {
			return errDifferent
		}
		return printed
	}
	return cmd
}

// triedJSON is what --output json prints of a verdict.
type triedJSON struct {
	Verdict string   `json:"verdict"`
	By      string   `json:"by,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Source  string   `json:"source"`
	Rule    string   `json:"rule,omitempty"`
	DryRuns []string `json:"dryRuns"` // rules with dryRun that match, before that rule
}

func newRiskTry() *cobra.Command {
	var q risk.Question
	var f struct{ rules, kind, state, class, address, at string }
	cmd := &cobra.Command{
		Use:   "try",
		Short: "Say which verdict a command would get, from which rule",
		Long: "Say what the rules of --file, or of the configuration, decide on a command. A service is not asked:\n" +
			"verdict allow from source none is what it would be asked about.",
		Example: "  tidemark risk try --file rules.yaml --user u7 --target V9001 --device device-a --address 203.0.113.7",
		Args:    noArgs,
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.Flags().StringVar(&f.rules, "file", "", "rule `FILE`, instead of that of the configuration")
	cmd.Flags().StringVar(&q.Relation.User, "user", "", "`ID` of the user (required)")
	cmd.Flags().StringVar(&q.Relation.Target, "target", "", "`ID` of the video, or of the followed user (required)")
	cmd.Flags().StringVar(&f.kind, "kind", topology.Like.String(), "`KIND` of relation: like, favorite, follow")
	cmd.Flags().StringVar(&f.state, "state", "", "desired `STATE` (default: the kind's counted one)")
	cmd.Flags().StringVar(&q.Device, "device", "", "`ID` of the device")
	cmd.Flags().StringVar(&f.address, "address", "", "`ADDRESS` of the client")
	cmd.Flags().StringVar(&f.class, "class", "", "`CLASS` of the client: subscriber, gateway, unknown (default: subscriber with an address)")
	cmd.Flags().StringVar(&f.at, "at", "", "`TIME` of the command, such as 2026-07-01T12:00:00Z (default now)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := out.check(); err != nil {
			return err
		}
		if err := readQuestion(&q, f.kind, f.state, f.class, f.address, f.at); err != nil {
			return usageError{err}
		}
		if f.rules == "" {
			cfg, err := at.load()
			if err != nil {
				return err
			}
			if f.rules = cfg.Risk.RulesFile; f.rules == "" {
				return usagef("the configuration has no risk.rules_file: name one with --file")
			}
		}
		rules, err := risk.Load(f.rules)
		if err != nil {
			return err
		}
		tried := tryRules(rules, q)
		return out.print(cmd.OutOrStdout(), tried, tried.table)
	}
	return cmd
}

func readQuestion(q *risk.Question, kind, state, class, address, at string) (err error) {
	if q.Relation.Kind, err = topology.ParseKind(kind); err != nil {
		return fmt.Errorf("--kind: %w", err)
	}
	if err := q.Relation.Check(); err != nil {
		return fmt.Errorf("--user and --target: %w", err)
	}
	if q.Desired = q.Relation.Kind.Active(); state != "" {
		if q.Desired, err = topology.ParseState(q.Relation.Kind, state); err != nil {
			return fmt.Errorf("--state: %w", err)
		}
	}
	if q.Desired == q.Relation.Kind.Initial() {
		return fmt.Errorf("--state: %s ends a relation, and is never asked about", q.Desired)
	}
	q.Class = risk.Unknown
	if address != "" {
		if q.Address, err = netip.ParseAddr(address); err != nil {
			return fmt.Errorf("--address: %w", err)
		}
		q.Address, q.Class = q.Address.Unmap(), risk.Subscriber
	}
	if class != "" {
		if q.Class, err = risk.ParseClass(class); err != nil {
			return fmt.Errorf("--class: %w", err)
		}
	}
	q.At = time.Now()
	if at != "" {
		if q.At, err = time.Parse(time.RFC3339, at); err != nil {
			return errors.New("--at is not a time such as 2026-07-01T12:00:00Z")
		}
	}
	return nil
}

func tryRules(rules *risk.Rules, q risk.Question) triedJSON {
	ruling, tried := rules.Decide(q), triedJSON{DryRuns: []string{}}
	var v risk.Verdict
	if ruling.Rule != nil {
		v, tried.Rule = ruling.Rule.Verdict, ruling.Rule.Name
	}
	tried.Verdict, tried.By, tried.Reason, tried.Source = v.Action.String(), v.By.String(), v.Reason, v.Source.String()
	for _, r := range ruling.Tried {
		tried.DryRuns = append(tried.DryRuns, r.Name)
	}
	return tried
}

func (t triedJSON) table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, line := range [][2]string{{"verdict", t.Verdict}, {"by", t.By}, {"reason", t.Reason}, {"source", t.Source}, {"rule", t.Rule}} {
		if line[1] != "" {
			fmt.Fprintf(tw, "%s\t%s\n", line[0], line[1])
		}
	}
	for _, name := range t.DryRuns {
		fmt.Fprintf(tw, "dry run\t%s\n", name)
	}
	return tw.Flush()
}
