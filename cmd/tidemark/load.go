package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/api"
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
		return nil, fmt.Errorf("minting tokens: the configuration has a JWKS URL and no HS256 key; load needs auth.hs256_key_file")
	}
	return func(user string) (string, error) { return auth.Mint(user, "", time.Hour) }, nil
}

func newLoad() *cobra.Command {
	c := load.Default()
	var replay load.Replay
	var url string
	cmd := &cobra.Command{
		Use:   "load",
		Short: "Send realistic commands over HTTP, or replay a recorded log",
		Long: "Send commands at a fixed rate, whatever the server does (open loop), with the skew and mix of a\n" +
			"short-video platform, or replay a log with columns time, user, kind, target, state.\n" +
			"The report states mix, skew, sizes, machine and what limited the run.",
		Args: args(cobra.NoArgs),
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	f := cmd.Flags()
	f.StringVar(&url, "url", "", "API (default: that of the data directory or configuration)")
	f.Float64Var(&c.Rate, "rate", c.Rate, "commands per second; 0: flat out")
	f.Int64Var(&c.Commands, "commands", 10_000, "commands to send; 0: until interrupted")
	f.Float64Var(&c.ReadRate, "read-rate", 0, "batch queries per second beside the commands")
	f.DurationVar(&c.WarmUp, "warm-up", 0, "time from the start that is not measured")
	f.IntVar(&c.Workers, "workers", c.Workers, "requests in flight at most")
	f.Uint64Var(&c.Seed, "seed", c.Seed, "makes the same commands again")
	f.IntVar(&c.Users, "users", c.Users, "users to draw from")
	f.IntVar(&c.Targets, "targets", c.Targets, "targets to draw from")
	f.Float64Var(&c.Mix.On, "on", c.Mix.On, "share of plain commands that switch on")
	f.Float64Var(&c.Mix.Resend, "resend", c.Mix.Resend, "share that resends an operation")
	f.Float64Var(&c.Mix.StaleBase, "stale-base", c.Mix.StaleBase, "share with a stale base version")
	f.Float64Var(&c.Mix.Switch, "switch", c.Mix.Switch, "share that switches kind or state")
	f.Float64Var(&c.Mix.Like, "likes", c.Mix.Like, "share of likes")
	f.Float64Var(&c.Mix.Favorite, "favorites", c.Mix.Favorite, "share of favorites")
	f.Float64Var(&c.Mix.Follow, "follows", c.Mix.Follow, "share of follows")
	f.Float64Var(&c.Mix.Hot, "hot", c.Mix.Hot, "share that goes to one target")
	f.StringVar(&c.TargetSkew.Shape, "skew", c.TargetSkew.Shape, "skew of written targets: linkbench, zipf, uniform")
	f.StringVar(&replay.Path, "replay", "", "recorded log to send instead (.csv or .jsonl)")
	f.Float64Var(&replay.Speed, "speed", 1, "replay: times real time; 0: flat out")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg, err := at.load()
		if err != nil {
			return err
		}
		if c.Token, err = minter(cfg); err != nil {
			return err
		}
		c.BaseURL = apiURL(at, cfg, url)
		if replay.Path != "" {
			c.Replay = &replay
			if !cmd.Flags().Changed("commands") {
				c.Commands = 0
			}
		}
		c.Commit = readVersion().Commit
		c.RunID = newRunID()
		c.Progress = func(p load.Progress) { fmt.Fprintln(cmd.ErrOrStderr(), p) }
		l, err := load.New(c)
		if err != nil {
			return usageError{err}
		}
		report, err := l.Run(cmd.Context())
		if printErr := out.print(cmd.OutOrStdout(), report, func(w io.Writer) error { return report.WriteTable(w) }); err == nil {
			err = printErr
		}
		return err
	}
	return cmd
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
	if at.file == "" {
		dir := at.dataDir
		if dir == "" {
			dir = config.DefaultDataDir
		}
		if e, err := config.ReadEndpoints(dir); err == nil && e.API != "" {
			return e.API
		}
	}
	return "http://" + strings.TrimPrefix(cfg.API.Listen, "http://")
}

// selfTraffic sends realistic commands to this process until ctx ends.
func selfTraffic(ctx context.Context, f *devFlags, cfg config.Config, p *process, log *slog.Logger) error {
	if f.traffic <= 0 || p.apiAddr == "" {
		return nil
	}
	auth, err := authConfig(cfg)
	if err != nil {
		return err
	}
	c := load.Default()
	c.BaseURL = "http://" + p.apiAddr
	c.Rate, c.Commands, c.ReadRate = f.traffic, 0, f.traffic/4
	c.Users, c.Targets = 100_000, 1_000_000
	c.Token = func(user string) (string, error) { return api.AuthConfig.Mint(auth, user, "", time.Hour) }
	c.RunID = newRunID()
	c.Progress = func(p load.Progress) { log.Info("traffic", "progress", p.String()) }
	l, err := load.New(c)
	if err != nil {
		return err
	}
	_, err = l.Run(ctx)
	return err
}
