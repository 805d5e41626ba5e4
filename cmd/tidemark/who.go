package main

import (
	"fmt"
	"os/user"

	"github.com/spf13/cobra"
)

// as is the --as flag of commands that are audited.
type as struct{ given string }

func asFlag(cmd *cobra.Command) *as {
	a := new(as)
	cmd.Flags().StringVar(&a.given, "as", "", "`NAME` for the audit (default the user of the operating system)")
	return a
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
