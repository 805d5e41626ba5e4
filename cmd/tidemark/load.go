package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidemark/tidemark/emitters/load"
	"github.com/tidemark/tidemark/internal/config"
)

// minter mints a token for each user that the load writes as.
func minter(cfg config.Config) (func(user string) (string, error), error) {
	if err := cfg.Require(config.PartAuth); err != nil {
		return nil, err
	}
	auth, err := authConfig(cfg)
	if err != nil {
		return nil, err
	}
	if len(auth.HS256Key) == 0 {
		return nil, errNoKey
	}
	return func(user string) (string, error) { return auth.Mint(user, "", time.Hour) }, nil
}

// loadFlags are what `tidemark load` may be told.
type loadFlags struct {
	load.Config
	url    string
	replay load.Replay
}

func newLoad() *cobra.Command {
	f := &loadFlags{Config: load.Default()}
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Send realistic commands over HTTP, or replay a recorded log",
		Long: "Send commands at a fixed rate, whatever the server does (open loop), with the skew and mix of a\n" +
			"short-video platform, or replay a log with columns time, user, kind, target, state (.csv with a\n" +
			"header, or .jsonl). The report states mix, skew, sizes, machine and what limited the run.\n\n" +
			"Exit 1 when commands failed: refused, given up, or abandoned at the end.",
		Example: "  tidemark load --rate 2000 --commands 50000\n" +
			"  tidemark load --replay monday.csv --speed 10",
		Args: noArgs,
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	f.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		if f.replay.Path != "" {
			f.Replay = &f.replay
			if f.replay.BadLines == 0 {
				f.replay.BadLines = -1 // none
			}
			if !cmd.Flags().Changed("commands") {
				f.Commands = 0
			}
		}
		cfg, err := at.load()
		if err != nil {
			return err
		}
		report, err := f.run(cmd.Context(), cfg, apiURL(at, cfg, f.url), newScreen(cmd.ErrOrStderr()))
		if report.Scheduled > 0 || err == nil {
			if printErr := out.print(cmd.OutOrStdout(), report, report.WriteTable); err == nil {
				err = printErr
			}
		}
		failed := report.Errors()
		if cmd.Context().Err() != nil {
			failed -= report.Outcomes[load.Abandoned] // as the caller wanted
		}
		if failed > 0 && err == nil {
			err = fmt.Errorf("%d of %d commands failed: the report says how", failed, report.Decided)
		}
		return err
	}
	return cmd
}

func (f *loadFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.url, "url", "", "API `URL` (default: that of the data directory or configuration)")
	flags.Float64Var(&f.Rate, "rate", f.Rate, "commands per second, `RATE`; 0: flat out")
	flags.Int64Var(&f.Commands, "commands", 10_000, "`NUMBER` of commands to send; 0: until interrupted, or the file's end")
	flags.Float64Var(&f.ReadRate, "read-rate", 0, "batch queries per second beside the commands, `RATE`")
	flags.DurationVar(&f.WarmUp, "warm-up", 0, "`TIME` from the start that is not measured")
	flags.IntVar(&f.Workers, "workers", f.Workers, "`NUMBER` of requests in flight at most")
	flags.Uint64Var(&f.Seed, "seed", f.Seed, "`SEED` that makes the same commands again")
	flags.IntVar(&f.Users, "users", f.Users, "`NUMBER` of users to draw from")
	flags.IntVar(&f.Targets, "targets", f.Targets, "`NUMBER` of targets to draw from")
	flags.Float64Var(&f.Mix.On, "on", f.Mix.On, "`SHARE` of plain commands that switch on")
	flags.Float64Var(&f.Mix.Resend, "resend", f.Mix.Resend, "`SHARE` that resends an operation")
	flags.Float64Var(&f.Mix.StaleBase, "stale-base", f.Mix.StaleBase, "`SHARE` with a stale base version")
	flags.Float64Var(&f.Mix.Switch, "switch", f.Mix.Switch, "`SHARE` that switches kind or state")
	flags.Float64Var(&f.Mix.Like, "likes", f.Mix.Like, "`WEIGHT` of likes")
	flags.Float64Var(&f.Mix.Favorite, "favorites", f.Mix.Favorite, "`WEIGHT` of favorites")
	flags.Float64Var(&f.Mix.Follow, "follows", f.Mix.Follow, "`WEIGHT` of follows")
	flags.Float64Var(&f.Mix.Hot, "hot", f.Mix.Hot, "`SHARE` that goes to one target")
	flags.StringVar(&f.TargetSkew.Shape, "skew", f.TargetSkew.Shape, "`SKEW` of written targets: linkbench, zipf, uniform")
	flags.StringVar(&f.replay.Path, "replay", "", "recorded log `FILE` to send instead (.csv or .jsonl)")
	flags.Float64Var(&f.replay.Speed, "speed", 1, "replay: `TIMES` real time; 0: flat out")
	flags.IntVar(&f.replay.BadLines, "bad-lines", 100, "replay: `NUMBER` of lines that may be unusable")
}

// run sends the load. The report is empty when nothing could be sent.
func (f *loadFlags) run(ctx context.Context, cfg config.Config, api string, scr *screen) (load.Report, error) {
	c := f.Config
	var err error
	if c.Token, err = minter(cfg); err != nil {
		return load.Report{}, err
	}
	c.BaseURL, c.Commit, c.RunID = api, readVersion().Commit, newRunID()
	m := scr.loadMeter("load", &c)
	defer m.end()
	l, err := load.New(c)
	if err != nil {
		return load.Report{}, usageError{err}
	}
	if err := knock(ctx, api); err != nil {
		return load.Report{}, err
	}
	return l.Run(ctx)
}

// loadMeter begins a meter of a load and lets its progress drive it.
func (s *screen) loadMeter(what string, c *load.Config) *meter {
	m := s.meter(what, c.Commands)
	if m.bar != nil {
		c.ProgressEvery /= 2
	}
	c.Progress = func(p load.Progress) { m.set(p.Decided, p.String()) }
	return m
}

// knock asks the API whether it is there.
func knock(ctx context.Context, api string) error {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, api+"/openapi.json", nil)
	if err != nil {
		return usagef("--url %q is not a URL: %w", api, err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("asking the API: %w", err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("asking the API: GET %s/openapi.json answers %s: is this tidemark's API?", api, res.Status)
	}
	return nil
}

func newRunID() string {
	var b [6]byte
	_, _ = rand.Read(b[:])
	return "load-" + hex.EncodeToString(b[:])
}

// apiURL is the API to talk to: as given, as the data directory says, or as
// configured.
func apiURL(at *where, cfg config.Config, given string) string {
	if given != "" {
		return given
	}
	if dir := at.dataDir(); dir != "" {
		if e, err := config.ReadEndpoints(dir); err == nil && e.API != "" {
			return e.API
		}
	}
	return cfg.API.URL(strings.TrimPrefix(cfg.API.Listen, "http://"))
}

// selfTraffic sends realistic commands to this process until ctx ends.
func selfTraffic(ctx context.Context, rate float64, cfg config.Config, p *process, log *slog.Logger) error {
	if rate <= 0 || p.apiAddr == "" {
		return nil
	}
	mint, err := minter(cfg)
	if err != nil {
		return err
	}
	c := load.Default()
	c.BaseURL = cfg.API.URL(p.apiAddr)
	c.Rate, c.Commands, c.ReadRate = rate, 0, rate/4
	c.Users, c.Targets = 100_000, 1_000_000
	c.Token, c.RunID = mint, newRunID()
	c.Progress = func(p load.Progress) { log.Info("traffic", "progress", p.String()) }
	l, err := load.New(c)
	if err != nil {
		return err
	}
	_, err = l.Run(ctx)
	return err
}
