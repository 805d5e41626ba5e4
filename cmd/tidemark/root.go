package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
)

// Exit codes.
const (
	exitOK        = 0
	exitError     = 1
	exitUsage     = 2
	exitDifferent = 3 // checked, and found different
)

// usageError is a wrong call; different is a check that found a difference
// and has already said so on stdout.
type usageError struct{ error }

var errDifferent = errors.New("differences were found")

func isQuiet(err error) bool { return errors.Is(err, errDifferent) }

func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errDifferent):
		return exitDifferent
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command"):
		return exitUsage
	}
	return exitError
}

func usagef(format string, a ...any) error { return usageError{fmt.Errorf(format, a...)} }

// args makes a wrong number of arguments a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := check(cmd, given); err != nil {
			return usageError{err}
		}
		return nil
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tidemark",
		Short:         "Counts likes, favorites and follows, and can prove each count",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          args(cobra.NoArgs),
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddGroup(&cobra.Group{ID: "run", Title: "Running:"}, &cobra.Group{ID: "see", Title: "Looking and checking:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("run", newDev(), newRun(), newSchema(), newToken(), newLoad(), newDemo())
	add("see", newTopology(), newTap(), newVerify(), newDoctor(), newVersion())
	return root
}

// output is the --output flag.
type output struct {
	form  string
	forms []string
}

// outputFlag adds --output with these forms; the first is the default.
func outputFlag(cmd *cobra.Command, forms ...string) *output {
	o := &output{forms: forms}
	cmd.Flags().StringVar(&o.form, "output", forms[0], "output form: "+strings.Join(forms, ", "))
	return o
}

func (o *output) check() error {
	if !slices.Contains(o.forms, o.form) {
		return usagef("--output %q is not one of %s", o.form, strings.Join(o.forms, ", "))
	}
	return nil
}

func (o *output) json() bool { return o.form == "json" }

// print writes v as JSON, or calls table.
func (o *output) print(w io.Writer, v any, table func(io.Writer) error) error {
	if !o.json() {
		return table(w)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// where is the --config and --data-dir flags of commands that need a running
// system.
type where struct{ file, dataDir string }

func whereFlags(cmd *cobra.Command) *where {
	w := new(where)
	cmd.Flags().StringVar(&w.file, "config", "", "configuration file")
	cmd.Flags().StringVar(&w.dataDir, "data-dir", "", "data directory of `tidemark dev` (default .tidemark)")
	return w
}

func (w *where) load() (config.Config, error) {
	path, err := config.Resolve(w.file, w.dataDir)
	if err != nil {
		return config.Config{}, err
	}
	return config.Load(path)
}
