package main

import (
	"context"
	"fmt"
	"os/user"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
)

// as is the --as flag of commands that are audited.
type as struct{ given string }

func asFlag(cmd *cobra.Command) *as {
	a := new(as)
	cmd.Flags().StringVar(&a.given, "as", "", "`NAME` for the audit (default the user of the operating system)")
	return a
}

// reasonFlag is the --reason of commands that can do without one.
func reasonFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("reason", "", "`WHY`, for the audit")
}

// auditBefore writes what is about to be done or shown: without a line in the
// audit nothing is.
func auditBefore(ctx context.Context, cfg config.Config, e control.Entry) error {
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	return db.Audit(ctx, e)
}

// name is who the audit says did it.
func (a *as) name() (string, error) {
	if a.given != "" {
		return a.given, nil
	}
	u, err := user.Current()
	if err != nil {
		return "", fmt.Errorf("asking who you are: %w: say it with --as NAME", err)
	}
	return u.Username, nil
}
