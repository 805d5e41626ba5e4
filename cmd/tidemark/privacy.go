package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/privacy"
)

func newPrivacy() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "privacy",
		Short: "Who may see what in lists: apply events",
		Long:  "Lists show what the privacy rules allow at each read. The rules are what versioned events said last.",
	})
	cmd.AddCommand(newPrivacyApply())
	return cmd
}

// appliedJSON is what --output json prints of events.
type appliedJSON struct {
	Applied int `json:"applied"`
	// Passed events were not newer than what is stored.
	Passed int `json:"passed"`
}

func newPrivacyApply() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply FILE",
		Short: "Apply account, video and block events, one JSON object a line",
		Long: "Apply account, video and block events, one JSON object a line; - reads standard input. What is not\n" +
			"newer than the stored version changes nothing, so the same file may be applied again, also after an\n" +
			"error in its middle.",
		Example: `  echo '{"type":"block","blockerId":"u7","blockedId":"u8","version":1,"active":true}' | tidemark privacy apply -`,
		Args:    exactly(1, "a FILE of events, or -"),
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg, err := at.load(config.PartControl)
		if err != nil {
			return err
		}
		in := cmd.InOrStdin()
		if given[0] != "-" {
			f, err := os.Open(given[0])
			if err != nil {
				return fmt.Errorf("reading privacy events: %w", err)
			}
			defer func() { _ = f.Close() }()
			in = f
		}
		rules, err := privacy.Open(cmd.Context(), cfg.Control)
		if err != nil {
			return err
		}
		defer rules.Close()
		n, err := applyPrivacy(cmd.Context(), rules, in)
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), n, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%d events applied, %d not newer than what is stored\n", n.Applied, n.Passed)
			return err
		})
	}
	return cmd
}

// applyPrivacy applies events up to the first that cannot be.
func applyPrivacy(ctx context.Context, rules *privacy.Store, in io.Reader) (n appliedJSON, err error) {
	lines := bufio.NewScanner(in)
	for number := 1; lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		e, err := privacy.ParseEvent(lines.Bytes())
		if err != nil {
			return n, fmt.Errorf("line %d: %w", number, err)
		}
		applied, err := rules.Apply(ctx, e)
		switch {
		case err != nil:
			return n, fmt.Errorf("line %d: %w", number, err)
		case applied:
			n.Applied++
		default:
			n.Passed++
		}
	}
	if err := lines.Err(); err != nil {
		return n, fmt.Errorf("reading privacy events: %w", err)
	}
	return n, nil
}
