package main

import (
	"fmt"
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
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
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
		w := cmd.OutOrStdout()
		for _, r := range reports {
			fmt.Fprintf(w, "%s: %s, said %v ago\n", r.Instance, r.Why, r.Silent.Round(time.Millisecond))
		}
		if len(reports) == 0 {
			fmt.Fprintln(w, "no process with an API has said anything lately")
		}
		if order != nil {
			fmt.Fprintf(w, "ordered: %s, by %s at %s: %s\n", overload.Level(order.Level), order.Who, order.At.UTC().Format(time.RFC3339), order.Reason)
		}
		return nil
	}
	return cmd
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
		return change(cmd, func(db *control.DB, who, reason string) (string, error) {
			return "ordered: " + level.String(), db.OrderOverload(cmd.Context(), int(level), level.String(), who, reason)
		})
	}
	return cmd
}

func newOverloadAuto() *cobra.Command {
	cmd := &cobra.Command{Use: "auto", Short: "Let processes decide their level again", Args: noArgs}
	change := overloadOrder(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return change(cmd, func(db *control.DB, who, reason string) (string, error) {
			changed, err := db.FreeOverload(cmd.Context(), who, reason)
			if !changed {
				return "processes decided already", err
			}
			return "processes decide again", err
		})
	}
	return cmd
}

// overloadOrder adds the flags of an order and does it.
func overloadOrder(cmd *cobra.Command) func(*cobra.Command, func(db *control.DB, who, reason string) (string, error)) error {
	at := whereFlags(cmd)
	as := asFlag(cmd)
	var reason string
	cmd.Flags().StringVar(&reason, "reason", "", "`WHY`, for the audit; required")
	return func(cmd *cobra.Command, do func(db *control.DB, who, reason string) (string, error)) error {
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
		said, err := do(db, who, reason)
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), said)
		}
		return err
	}
}
