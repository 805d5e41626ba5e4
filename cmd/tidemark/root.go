package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
)

func newRoot() *cobra.Command {
	root := group(&cobra.Command{
		Use:   "tidemark",
		Short: "Counts likes, favorites and follows, and can prove each count",
		Long: "Counts likes, favorites and follows, and can prove each count.\n\n" +
			"Exit codes: 0 fine, 1 an error, 2 a wrong call, 3 checked and found different.",
		SilenceUsage:  true,
		SilenceErrors: true,
		Example: "  tidemark dev                 run everything on this machine\n" +
			"  tidemark verify              compare every count with the facts\n" +
			"  tidemark doctor              when something does not work",
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.SetHelpCommand(newHelp())
	root.AddGroup(&cobra.Group{ID: "run", Title: "Running:"}, &cobra.Group{ID: "see", Title: "Looking and checking:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("run", newDev(), newRun(), newSchema(), newToken(), newLoad(), newDemo())
	add("see", newTopology(), newTap(), newVerify(), newCDC(), newGaps(), newCache(), newQuarantine(), newLikers(), newPrivacy(), newRisk(), newBarrier(), newShards(), newOverload(), newExport(), newDoctor(), newVersion(), newDrill())
	root.AddCommand(newDrillBroker(), newDrillMember())
	return root
}

// group makes cmd one that only has commands below it: alone it prints its
// help, and anything else is a usage error.
func group(cmd *cobra.Command) *cobra.Command {
	cmd.SuggestionsMinimumDistance = 2
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		if len(given) == 0 {
			return cmd.Help()
		}
		return unknownCommand(cmd, given[0])
	}
	return cmd
}

func unknownCommand(below *cobra.Command, name string) error {
	similar := ""
	if s := below.SuggestionsFor(name); len(s) > 0 {
		similar = fmt.Sprintf(": did you mean %s?", strings.Join(s, " or "))
	}
	return usagef("%s has no command %q%s", below.CommandPath(), name, similar)
}

func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Explain a command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, given []string) error {
			about, rest, err := cmd.Root().Find(given)
			if err != nil {
				return usageError{err}
			}
			if len(rest) > 0 {
				return unknownCommand(about, rest[0])
			}
			about.InitDefaultHelpFlag()
			return about.Help()
		},
	}
}

// exactly makes another number of arguments a usage error that names what is
// wanted, such as "a STREAM".
func exactly(n int, wanted string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		switch {
		case len(given) < n:
			return usagef("%s needs %s", cmd.CommandPath(), wanted)
		case len(given) > n:
			return usagef("%s does not take %q", cmd.CommandPath(), given[n])
		}
		return nil
	}
}

var noArgs = exactly(0, "")

// output is the --output flag.
type output struct {
	form  string
	forms []string
}

// outputFlag adds --output with these forms; the first is the default.
func outputFlag(cmd *cobra.Command, forms ...string) *output {
	o := &output{forms: forms}
	cmd.Flags().StringVar(&o.form, "output", forms[0], "output `FORM`: "+strings.Join(forms, ", "))
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
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// where is the --config and --data-dir flags of commands that need a running
// system.
type where struct{ file, dir string }

func whereFlags(cmd *cobra.Command) *where {
	w := new(where)
	cmd.Flags().StringVar(&w.file, "config", "", "configuration `FILE`")
	cmd.Flags().StringVar(&w.dir, "data-dir", "", "data directory `DIR` of tidemark dev, instead of --config (default "+config.DefaultDataDir+")")
	return w
}

// given tells whether a flag says where to look.
func (w *where) given() bool { return w.file != "" || w.dir != "" }

// dataDir is the data directory to look in; "" when a file was named instead.
func (w *where) dataDir() string {
	switch {
	case w.file != "":
		return ""
	case w.dir == "":
		return config.DefaultDataDir
	}
	return w.dir
}

// load reads the configuration; parts are those that must be set.
func (w *where) load(parts ...config.Part) (config.Config, error) {
	if w.file != "" && w.dir != "" {
		return config.Config{}, usagef("--config and --data-dir are both given: give one")
	}
	path, err := config.Resolve(w.file, w.dir)
	if err != nil {
		return config.Config{}, err
	}
	cfg, err := config.Load(path)
	if err != nil {
		return cfg, err
	}
	return cfg, cfg.Require(parts...)
}
