package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/embedded"
)

// finding is one thing that the doctor looked at.
type finding struct {
	Check string `json:"check"`
	State string `json:"state"` // ok, warning or bad
	Found string `json:"found"`
	Do    string `json:"do,omitempty"` // what helps
}

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Look for what keeps tidemark from working; exit 3 when something does",
		Long: "Look at the machine (programs, ports), the configuration, the databases (versions, settings, schema,\n" +
			"contracts, replication slots), Kafka (topics, groups, lag), Redis and what processes say of themselves,\n" +
			"and say what to do about what is wrong. Warnings do not keep tidemark from working.",
		Args: noArgs,
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		d := &doctor{at: at}
		if err := d.examine(cmd.Context()); err != nil {
			return err
		}
		err := out.print(cmd.OutOrStdout(), d.found, func(w io.Writer) error { return writeFindings(w, d.found) })
		for _, f := range d.found {
			if f.State == "bad" && err == nil {
				err = errDifferent
			}
		}
		return err
	}
	return cmd
}

func writeFindings(w io.Writer, all []finding) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range all {
		fmt.Fprintf(tw, "%s\t%s\t%s\n", f.State, f.Check, f.Found)
		if f.Do != "" {
			fmt.Fprintf(tw, "\t\tdo: %s\n", f.Do)
		}
	}
	return tw.Flush()
}

// doctorTimeout bounds each question.
const doctorTimeout = 5 * time.Second

// doctor gathers findings.
type doctor struct {
	at    *where
	cfg   config.Config
	found []finding
}

func (d *doctor) ok(check, format string, a ...any) {
	d.found = append(d.found, finding{Check: check, State: "ok", Found: fmt.Sprintf(format, a...)})
}

func (d *doctor) warn(check, found, do string) {
	d.found = append(d.found, finding{Check: check, State: "warning", Found: found, Do: do})
}

func (d *doctor) bad(check, found, do string) {
	d.found = append(d.found, finding{Check: check, State: "bad", Found: found, Do: do})
}

// examine looks at the machine and, if there is a configuration, at what it
// names. Its error is a wrong call.
func (d *doctor) examine(ctx context.Context) error {
	d.programs(ctx)
	d.leftovers()
	cfg, err := d.at.load()
	switch {
	case errors.As(err, new(usageError)):
		return err
	case errors.Is(err, fs.ErrNotExist) && !d.at.given():
		d.ports("127.0.0.1:8080", "127.0.0.1:8081")
		d.warn("configuration", "there is none yet", "start `tidemark dev`, which writes one, or name one with --config FILE or --data-dir DIR")
		return nil
	case err != nil:
		d.bad("configuration", err.Error(), "correct the file, or name another with --config FILE or --data-dir DIR")
		return nil
	}
	d.cfg = cfg
	d.ok("configuration", "instance %s, %d shards, %d count partitions", cfg.Instance, cfg.Shards, cfg.CountPartitions)
	d.dev()
	d.databases(ctx)
	d.kafka(ctx)
	d.redis(ctx)
	d.processes(ctx)
	return nil
}

func (d *doctor) programs(ctx context.Context) {
	const check = "PostgreSQL programs"
	installed := embedded.InstalledPostgres(ctx)
	if len(installed) == 0 {
		d.warn(check, "none on this machine", "`tidemark dev` will download some; or install your distribution's postgresql")
		return
	}
	d.ok(check, "PostgreSQL %d in %s", installed[0].Major, installed[0].Dir)
}

func (d *doctor) leftovers() {
	for _, l := range embedded.Leftovers() {
		d.warn("leftover", fmt.Sprintf("%s has PostgreSQL's files of data directory %s, which is gone", l.Place, l.Owner),
			"if that directory does not come back: rm -r "+l.Place)
	}
}

// ports looks whether a first `tidemark dev` can listen.
func (d *doctor) ports(api, operators string) {
	for _, p := range []struct{ what, address, flag string }{{"API", api, "--listen"}, {"operators", operators, "--ops-listen"}} {
		check := fmt.Sprintf("address %s (%s)", p.address, p.what)
		l, err := net.Listen("tcp", p.address)
		if err != nil {
			d.warn(check, "in use", fmt.Sprintf("start `tidemark dev` with another %s, or stop what uses it", p.flag))
			continue
		}
		_ = l.Close()
		d.ok(check, "free")
	}
}

// dev tells whether the data directory's `tidemark dev` runs.
func (d *doctor) dev() {
	dir := d.at.dataDir()
	if dir == "" {
		return
	}
	lock := filepath.Join(dir, devLock)
	if isLocked(lock) {
		d.ok("tidemark dev", "runs on %s (process %d)", dir, readPID(lock))
		return
	}
	d.bad("tidemark dev", "does not run on "+dir, d.startDev())
	if !strings.HasSuffix(d.cfg.API.Listen, ":0") {
		d.ports(d.cfg.API.Listen, "127.0.0.1:8081")
	}
}

func (d *doctor) startDev() string {
	if dir := d.at.dataDir(); dir != "" && dir != config.DefaultDataDir {
		return "start `tidemark dev --data-dir " + dir + "`"
	}
	return "start `tidemark dev`"
}
