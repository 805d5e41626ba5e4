package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/drills"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/gokakit"
)

func newRun() *cobra.Command {
	var instance, listen, opsListen, logLevel string
	var weaken []string
	cmd := &cobra.Command{
		Use:   "run ROLE...",
		Short: "Run roles in a process of their own",
		Long: "Run roles in a process of their own, against the infrastructure that the configuration names.\n" +
			"Roles: " + strings.Join(roleNames, ", ") + ".\n\n" +
			"The instance names the process's state folder and its static group membership: it is unique\n" +
			"among running processes and the same after a restart. What is away when the process starts, or\n" +
			"goes away later, is waited for; /readyz?verbose says what.",
		Example: "  tidemark run projection display --instance counts-1\n" +
			"  tidemark run commands queries --config /etc/tidemark.yaml --listen :8080",
		Args: func(cmd *cobra.Command, given []string) error {
			if len(given) == 0 {
				return usagef("%s needs one or more roles of %s", cmd.CommandPath(), strings.Join(roleNames, ", "))
			}
			return checkRoles(given)
		},
	}
	at := whereFlags(cmd)
	cmd.Flags().StringVar(&instance, "instance", "", "instance `NAME` (default: the configuration's)")
	cmd.Flags().StringVar(&listen, "listen", "", "API `ADDRESS` (default: the configuration's)")
	cmd.Flags().StringVar(&opsListen, "ops-listen", "", "`ADDRESS` for operators (default: the configuration's)")
	cmd.Flags().StringVar(&logLevel, "log-level", "", "`LEVEL`: debug, info, warn or error (default: the configuration's)")
	cmd.Flags().StringSliceVar(&weaken, "weaken", nil, "switch a mechanism off, for drills that must be able to fail")
	_ = cmd.Flags().MarkHidden("weaken")
	cmd.RunE = func(cmd *cobra.Command, roles []string) error {
		weak, err := drills.ParseWeakness(weaken)
		if err != nil {
			return usageError{err}
		}
		cfg, err := at.load()
		if err != nil {
			return err
		}
		override(&cfg.Instance, instance)
		override(&cfg.API.Listen, listen)
		override(&cfg.Ops.Listen, opsListen)
		override(&cfg.Log.Level, logLevel)
		if err := cfg.Validate(); err != nil {
			return usageError{err} // the file alone was valid
		}
		if err := cfg.Require(needs(roles)...); err != nil {
			return err
		}
		return runRoles(cmd.Context(), cfg, roles, weak, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// runRoles runs roles until ctx ends. It says on out where it listens, as soon
// as it does, since operators ask there what it waits for, and when it is
// ready.
func runRoles(ctx context.Context, cfg config.Config, roles []string, weak gokakit.Weakness, out, errs io.Writer) error {
	release, err := lockRoles(cfg, roles)
	if err != nil {
		return err
	}
	defer release()
	p, err := newProcess(cfg, cfg.Log.New(errs))
	if err != nil {
		return err
	}
	p.weak = weak
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.run(ctx, roles, nil) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-p.listening:
		}
		fmt.Fprintf(out, "instance %s: %s\n  operators  %s/readyz?verbose  /metrics\n", cfg.Instance, strings.Join(roles, ", "), cfg.Ops.URL(p.opsAddr))
		select {
		case <-ctx.Done():
			return nil
		case <-p.built:
		}
		if p.apiAddr != "" {
			fmt.Fprintf(out, "  API        %s   (OpenAPI: /openapi.json)\n", cfg.API.URL(p.apiAddr))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-p.ready:
		}
		_, err := fmt.Fprintln(out, readyLine)
		return err
	})
	return g.Wait()
}

// lockRoles keeps a second process of this machine from running a role under
// the same instance name: the two would throw each other out of their group.
func lockRoles(cfg config.Config, roles []string) (release func(), err error) {
	var releases []func()
	release = func() {
		for _, r := range releases {
			r()
		}
	}
	for _, role := range roles {
		if role == "commands" || role == "cdc" {
			continue // they have neither state nor membership
		}
		r, err := lockFile(filepath.Join(cfg.StateDir, cfg.Instance, role+".lock"))
		if held := (heldError{}); errors.As(err, &held) {
			err = fmt.Errorf("role %s already runs as instance %q (%s): stop that one, or give this one a name of its own with --instance", role, cfg.Instance, held.holder())
		}
		if err != nil {
			release()
			return nil, err
		}
		releases = append(releases, r)
	}
	return release, nil
}

func override(field *string, value string) {
	if value != "" {
		*field = value
	}
}

// needs are the parts of the configuration that roles cannot do without.
func needs(roles []string) []config.Part {
	parts := []config.Part{config.PartControl}
	for _, r := range roles {
		switch r {
		case "commands":
			parts = append(parts, config.PartPostgres, config.PartAuth)
		case "queries":
			parts = append(parts, config.PartPostgres, config.PartAuth, config.PartKafka)
		case "cachefloor":
			parts = append(parts, config.PartPostgres, config.PartKafka, config.PartRedis)
		case "cdc", "intake":
			parts = append(parts, config.PartPostgres, config.PartKafka)
		default:
			parts = append(parts, config.PartKafka)
		}
	}
	return parts
}
