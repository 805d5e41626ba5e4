package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by a release build with -ldflags. commit is set by make build,
// for where Go is told not to ask git; what Go knows of the build goes first.
var version, commit = "dev", ""

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a changed tree
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readVersion() versionInfo {
	v := versionInfo{Version: version, Commit: commit, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if b, ok := debug.ReadBuildInfo(); ok {
		for _, s := range b.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	return v
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print version, commit and platform", Args: noArgs}
	out := outputFlag(cmd, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		v := readVersion()
		return out.print(cmd.OutOrStdout(), v, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, "tidemark", v.Version, v.Commit, v.Go, v.Platform)
			return err
		})
	}
	return cmd
}
