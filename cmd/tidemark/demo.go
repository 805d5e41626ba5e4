package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/emitters/load"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/views"
)

type demoFlags struct {
	dataDir  string
	commands int64
	rate     float64
	kills    int
}

func newDemo() *cobra.Command {
	f := new(demoFlags)
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show that counts survive kills: traffic, kill -9 of the projection, verification",
		Long: "Start everything in a fresh directory with the projection in a process of its own, send short-video\n" +
			"traffic over HTTP while that process is killed, then compare every count with the facts.",
		Args: noArgs,
	}
	out := outputFlag(cmd, "table", "json")
	cmd.Flags().StringVar(&f.dataDir, "data-dir", "", "folder `DIR` that keeps the data (default: a temporary one, removed at the end)")
	cmd.Flags().Int64Var(&f.commands, "commands", 50_000, "`NUMBER` of commands to send")
	cmd.Flags().Float64Var(&f.rate, "rate", 2000, "commands per second, `RATE`; 0: flat out")
	cmd.Flags().IntVar(&f.kills, "kills", 2, "`NUMBER` of kills of the projection, spread over the traffic")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		if f.commands < 1 || f.kills < 0 || f.rate < 0 {
			return usagef("--commands must be positive, --rate and --kills must not be negative")
		}
		report, err := demo(cmd.Context(), f, newScreen(cmd.ErrOrStderr()))
		if err != nil {
			return err
		}
		if err := out.print(cmd.OutOrStdout(), report, report.writeTable); err != nil {
			return err
		}
		return verdictError(report.Verify)
	}
	return cmd
}

// demoReport is what a demonstration did and found.
type demoReport struct {
	Load      load.Report   `json:"load"`
	Kills     int           `json:"kills"`
	Freshness freshness     `json:"freshness"` // commit to view
	Verify    verify.Report `json:"verify"`
}

// freshness is the time from a commit until a view shows a count with it, of
// every update that the view took.
type freshness struct {
	Updates int     `json:"updates"`
	P50     float64 `json:"p50Seconds"`
	P99     float64 `json:"p99Seconds"`
	Max     float64 `json:"maxSeconds"`
}

func (r demoReport) writeTable(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "commands\t%d decided, %.0f/s, %d failed\n", r.Load.Decided, r.Load.AchievedRate, r.Load.Errors())
	fmt.Fprintf(tw, "kill -9 of the projection\t%d\n", r.Kills)
	fmt.Fprintf(tw, "freshness, commit to view\tp50 %.0f ms, p99 %.0f ms, max %.0f ms (%d updates, recoveries included)\n",
		r.Freshness.P50*1e3, r.Freshness.P99*1e3, r.Freshness.Max*1e3, r.Freshness.Updates)
	fmt.Fprintln(tw)
	if err := tw.Flush(); err != nil {
		return err
	}
	return r.Verify.WriteTable(w)
}

func demo(ctx context.Context, f *demoFlags, scr *screen) (report demoReport, err error) {
	dir := f.dataDir
	if dir == "" {
		if dir, err = demoDir(); err != nil {
			return report, err
		}
		defer func() { err = errors.Join(err, removeDemo(dir)) }()
	}
	say := func(format string, a ...any) { scr.say("demo: "+format, a...) }
	say("starting everything but the projection in %s", dir)
	base, err := startKid("dev", scr, "dev", "--data-dir", dir, "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
		"--roles", "commands,cdc,intake,likers,display,queries")
	if err != nil {
		return report, err
	}
	defer base.stop()
	if err := base.awaitReady(ctx); err != nil {
		return report, err
	}
	file := filepath.Join(dir, config.FileName)
	cfg, err := config.Load(file)
	if err != nil {
		return report, err
	}
	say("starting the projection in a process of its own")
	victim, err := startKid("projection", scr, "run", "projection", "--config", file, "--instance", "projection-1")
	if err != nil {
		return report, err
	}
	defer func() { victim.stop() }()
	if err := victim.awaitReady(ctx); err != nil {
		return report, err
	}
	watch, err := watchFreshness(ctx, cfg)
	if err != nil {
		return report, err
	}
	defer watch.stop()
	report.Load, err = demoTraffic(ctx, f, cfg, dir, scr, func() error {
		say("kill -9 of the projection")
		report.Kills++
		next, err := victim.kill()
		if err == nil {
			victim = next
		}
		return err
	})
	if err != nil {
		return report, err
	}
	say("comparing every count with the facts")
	report.Verify, err = verifyAll(ctx, cfg, time.Minute, scr)
	report.Freshness = watch.freshness()
	return report, err
}

// demoDir makes a temporary folder that PostgreSQL's user may enter.
func demoDir() (string, error) {
	dir, err := os.MkdirTemp("", "tidemark-demo-")
	if err == nil {
		err = os.Chmod(dir, 0o711)
	}
	if err != nil {
		return "", fmt.Errorf("making a temporary folder: %w", err)
	}
	return dir, nil
}

func removeDemo(dir string) error {
	err := errors.Join(embedded.RemovePostgres(filepath.Join(dir, "postgres")), os.RemoveAll(dir))
	if err != nil {
		return fmt.Errorf("removing the temporary folder: %w", err)
	}
	return nil
}

// demoTraffic sends the traffic and calls kill at even distances within it.
func demoTraffic(ctx context.Context, f *demoFlags, cfg config.Config, dir string, scr *screen, kill func() error) (load.Report, error) {
	mint, err := minter(cfg)
	if err != nil {
		return load.Report{}, err
	}
	endpoints, err := config.ReadEndpoints(dir)
	if err != nil {
		return load.Report{}, err
	}
	c := load.Default()
	c.BaseURL, c.Token, c.RunID = endpoints.API, mint, newRunID()
	c.Rate, c.Commands = f.rate, f.commands
	c.Users, c.Targets = 20_000, 1_000_000
	c.Commit = readVersion().Commit
	var decided atomic.Int64
	m := scr.loadMeter("demo: traffic", &c)
	defer m.end()
	show, every := c.Progress, c.ProgressEvery
	c.ProgressEvery = 100 * time.Millisecond
	var shown load.Progress
	c.Progress = func(p load.Progress) {
		decided.Store(p.Decided)
		if over := p.Elapsed - shown.Elapsed; over >= every || p.Decided == f.commands {
			p.PerSecond = float64(p.Decided-shown.Decided) / over.Seconds()
			shown = p
			show(p)
		}
	}
	l, err := load.New(c)
	if err != nil {
		return load.Report{}, usageError{err}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	killed := make(chan error, 1)
	go func() { killed <- killAlong(ctx, f, &decided, kill) }()
	report, err := l.Run(ctx)
	cancel(nil)
	if killErr := <-killed; err == nil {
		err = killErr
	}
	return report, err
}

func killAlong(ctx context.Context, f *demoFlags, decided *atomic.Int64, kill func() error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for done := 0; done < f.kills; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if decided.Load()*int64(f.kills+1) < f.commands*int64(done+1) {
			continue
		}
		if err := kill(); err != nil {
			return err
		}
		done++
	}
	return nil
}

// freshnessWatch is a view that notes how old each update is when it comes.
type freshnessWatch struct {
	stop func() // may be called again

	mu   sync.Mutex
	ages []time.Duration
}

func watchFreshness(ctx context.Context, cfg config.Config) (w *freshnessWatch, err error) {
	w = new(freshnessWatch)
	_, w.stop, err = followDisplay(ctx, cfg, "demo", func(u views.Update) {
		if !u.CommittedAt.IsZero() {
			w.note(time.Since(u.CommittedAt))
		}
	})
	return w, err
}

func (w *freshnessWatch) note(age time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ages = append(w.ages, age)
}

func (w *freshnessWatch) freshness() freshness {
	w.stop()
	slices.Sort(w.ages)
	n := len(w.ages)
	if n == 0 {
		return freshness{}
	}
	at := func(q float64) float64 { return w.ages[min(n-1, int(q*float64(n)))].Seconds() }
	return freshness{Updates: n, P50: at(0.50), P99: at(0.99), Max: w.ages[n-1].Seconds()}
}
