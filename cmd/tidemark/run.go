package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
)

func newRun() *cobra.Command {
	var instance, listen, opsListen string
	cmd := &cobra.Command{
		Use:   "run ROLE...",
		Short: "Run roles in a process of their own",
		Long: "Run roles in a process of their own, against the infrastructure that the configuration names.\n" +
			"Roles: commands, cdc, intake, projection, display, queries.\n\n" +
			"The instance names the process's state folder and its static group membership: it is unique\n" +
			"among running processes and the same after a restart.",
		Args: args(cobra.MinimumNArgs(1)),
	}
	at := whereFlags(cmd)
	cmd.Flags().StringVar(&instance, "instance", "", "instance name (default: the configuration's)")
	cmd.Flags().StringVar(&listen, "listen", "", "API address (default: the configuration's)")
	cmd.Flags().StringVar(&opsListen, "ops-listen", "", "address for operators (default: the configuration's)")
	cmd.RunE = func(cmd *cobra.Command, roles []string) error {
		if err := checkRoles(roles); err != nil {
			return err
		}
		cfg, err := at.load()
		if err != nil {
			return err
		}
		override(&cfg.Instance, instance)
		override(&cfg.API.Listen, listen)
		override(&cfg.Ops.Listen, opsListen)
		if err := cfg.Validate(); err != nil {
			return err
		}
		if err := cfg.Require(needs(roles)...); err != nil {
			return err
		}
		p, err := newProcess(cfg, cfg.Log.New(os.Stderr))
		if err != nil {
			return err
		}
		return p.run(cmd.Context(), roles)
	}
	return cmd
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
		case "cdc":
			parts = append(parts, config.PartPostgres, config.PartKafka)
		default:
			parts = append(parts, config.PartKafka)
		}
	}
	return parts
}
