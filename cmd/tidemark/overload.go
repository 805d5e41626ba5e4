package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/overload"
)

func newOverload() *cobra.Command {
	cmd := group(&cobra.Command{Use: "overload", Short: "How far processes have gone under overload, and how far they shall go"})
	cmd.AddCommand(newOverloadShow(), newOverloadSet(), newOverloadAuto())
	return cmd
}

func newOverloadShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show", Short: "Show each process's level, and an operator's", Args: noArgs}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg, err := at.load(config.PartControl)
		if err != nil {
			return err
		}
		db, err := control.Open(cmd.Context(), cfg.Control)
		if err != nil {
			return err
		}
		defer db.Close()
		reports, order, err := db.Overload(cmd.Context(), levelsSilence)
		if err != nil {
			return err
		}
		shown := overloadJSONOf(reports, order)
		return out.print(cmd.OutOrStdout(), shown, shown.text)
	}
	return cmd
}

// overloadJSON is what --output json prints of the levels.
type overloadJSON struct {
	Processes []processLevelJSON `json:"processes"` // that have said something lately, by instance
	Order     *orderedLevelJSON  `json:"order"`     // null: processes decide
}

type processLevelJSON struct {
	Instance string `json:"instance"`
	Level    string `json:"level"` // that it has gone to by itself
	Why      string `json:"why"`
	SilentMS int64  `json:"silentMs"` // since it said so
}

type orderedLevelJSON struct {
	Level  string    `json:"level"`
	Who    string    `json:"who"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

func overloadJSONOf(reports []control.OverloadReport, order *control.OverloadOrder) overloadJSON {
	j := overloadJSON{Processes: []processLevelJSON{}}
	for _, r := range reports {
		j.Processes = append(j.Processes, processLevelJSON{r.Instance, overload.Level(r.Level).String(), r.Why, r.Silent.Milliseconds()})
	}
	if order != nil {
		j.Order = &orderedLevelJSON{overload.Level(order.Level).String(), order.Who, order.Reason, order.At.UTC()}
	}
	return j
}

func (j overloadJSON) text(w io.Writer) (err error) {
	for _, p := range j.Processes {
		_, err = fmt.Fprintf(w, "%s: %s, said %v ago\n", p.Instance, p.Why, time.Duration(p.SilentMS)*time.Millisecond)
	}
	if len(j.Processes) == 0 {
		_, err = fmt.Fprintln(w, "no process with an API has said anything lately")
	}
	if o := j.Order; o != nil {
		_, err = fmt.Fprintf(w, "ordered: %s, by %s at %s: %s\n", o.Level, o.Who, o.At.Format(time.RFC3339), o.Reason)
	}
	return err
}

func newOverloadSet() *cobra.Command {
	cmd := &cobra.Command{Use: "set LEVEL", Short: "Set the level of all processes until `overload auto`", Args: cobra.ExactArgs(1)}
	cmd.Long = "Set the level of all processes until `tidemark overload auto`, whatever they measure. LEVEL is one of normal,\n" +
		"slow-display, pause-consumers, tight-limits, bound-reads, refuse; each includes those before it. Processes\n" +
		"follow within two seconds; the audit keeps who and why."
	change := overloadOrder(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		level, err := overload.ParseLevel(args[0])
		if err != nil {
			return usageError{err}
		}
		return change(cmd, func(db *control.DB, who, reason string) (changedLevelJSON, error) {
			name := level.String()
			return changedLevelJSON{Ordered: &name, Changed: true}, db.OrderOverload(cmd.Context(), int(level), name, who, reason)
		})
	}
	return cmd
}

func newOverloadAuto() *cobra.Command {
	cmd := &cobra.Command{Use: "auto", Short: "Let processes decide their level again", Args: noArgs}
	change := overloadOrder(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return change(cmd, func(db *control.DB, who, reason string) (changedLevelJSON, error) {
			changed, err := db.FreeOverload(cmd.Context(), who, reason)
			return changedLevelJSON{Changed: changed}, err
		})
	}
	return cmd
}

// changedLevelJSON is what --output json prints of an order.
type changedLevelJSON struct {
	Ordered *string `json:"ordered"` // null: processes decide
	Changed bool    `json:"changed"` // false: processes decided already
}

func (j changedLevelJSON) text(w io.Writer) (err error) {
	switch {
	case j.Ordered != nil:
		_, err = fmt.Fprintln(w, "ordered: "+*j.Ordered)
	case j.Changed:
		_, err = fmt.Fprintln(w, "processes decide again")
	default:
		_, err = fmt.Fprintln(w, "processes decided already")
	}
	return err
}

// overloadOrder adds the flags of an order and does it.
func overloadOrder(cmd *cobra.Command) func(*cobra.Command, func(db *control.DB, who, reason string) (changedLevelJSON, error)) error {
	at := whereFlags(cmd)
	out := outputFlag(cmd, "text", "json")
	as := asFlag(cmd)
	var reason string
	cmd.Flags().StringVar(&reason, "reason", "", "`WHY`, for the audit; required")
	return func(cmd *cobra.Command, do func(db *control.DB, who, reason string) (changedLevelJSON, error)) error {
		if err := out.check(); err != nil {
			return err
		}
		if strings.TrimSpace(reason) == "" {
			return usagef("--reason is not given")
		}
		cfg, err := at.load(config.PartControl)
		if err != nil {
			return err
		}
		who, err := as.name()
		if err != nil {
			return err
		}
		db, err := control.Open(cmd.Context(), cfg.Control)
		if err != nil {
			return err
		}
		defer db.Close()
		changed, err := do(db, who, reason)
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), changed, changed.text)
	}
}
