package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/emitters/cdc"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/control/schema"
	"github.com/tidemark/tidemark/relations"
)

// migrate brings the control database and every shard up to this code, stores
// the contracts of a new deployment, and gives each new shard its replication
// slot before it has a fact. say is told of each step.
func migrate(ctx context.Context, cfg config.Config, say func(string)) error {
	say("control database")
	if err := control.Migrate(ctx, cfg.Control); err != nil {
		return err
	}
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	topo, err := cfg.Topology()
	if err != nil {
		return err
	}
	if err := db.Bootstrap(ctx, topo.Config); err != nil {
		return err
	}
	for shard, url := range cfg.Postgres {
		say(fmt.Sprintf("relation shard %d", shard))
		if err := relations.Migrate(ctx, url, shard); err != nil {
			return err
		}
		if err := firstSlot(ctx, url, slotName(cfg.Prefix, shard)); err != nil {
			return fmt.Errorf("relation shard %d: %w", shard, err)
		}
	}
	return nil
}

// firstSlot makes the slot of a shard whose outbox was never written. A later
// absence is a gap in the stream that must be named, not papered over with a
// new slot; the emitter says so.
func firstSlot(ctx context.Context, url, slot string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	var written bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox)").Scan(&written)
	_ = conn.Close(context.WithoutCancel(ctx))
	if err != nil {
		return fmt.Errorf("looking into the outbox: %w", err)
	}
	if written {
		return nil
	}
	return cdc.EnsureSlot(ctx, url, slot)
}

func newSchema() *cobra.Command {
	cmd := group(&cobra.Command{Use: "schema", Short: "Migrate the databases, or show what is applied"})
	cmd.AddCommand(newSchemaMigrate(), newSchemaStatus())
	return cmd
}

func newSchemaMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring every database up to this version",
		Long: "Bring every database up to this version, store the contracts of a new deployment, and give each new\n" +
			"shard its replication slot.",
		Args: noArgs,
	}
	at := whereFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := at.load(config.PartControl, config.PartPostgres)
		if err != nil {
			return err
		}
		return migrate(cmd.Context(), cfg, func(step string) { fmt.Fprintln(cmd.ErrOrStderr(), "migrating", step) })
	}
	return cmd
}

// databaseStatus is the migrations of one database.
type databaseStatus struct {
	Database   string             `json:"database"`
	Migrations []schema.Migration `json:"migrations"`
}

func newSchemaStatus() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show each database's migrations; exit 3 when some are not applied", Args: noArgs}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg, err := at.load(config.PartControl, config.PartPostgres)
		if err != nil {
			return err
		}
		all, err := schemaStatus(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		err = out.print(cmd.OutOrStdout(), all, func(w io.Writer) error { return writeStatus(w, all) })
		if err != nil {
			return err
		}
		for _, d := range all {
			for _, m := range d.Migrations {
				if !m.Applied {
					return errDifferent
				}
			}
		}
		return nil
	}
	return cmd
}

func schemaStatus(ctx context.Context, cfg config.Config) ([]databaseStatus, error) {
	ms, err := control.MigrationStatus(ctx, cfg.Control)
	if err != nil {
		return nil, err
	}
	all := []databaseStatus{{"control", ms}}
	for shard, url := range cfg.Postgres {
		if ms, err = relations.MigrationStatus(ctx, url); err != nil {
			return nil, err
		}
		all = append(all, databaseStatus{fmt.Sprintf("shard %d", shard), ms})
	}
	return all, nil
}

func writeStatus(w io.Writer, all []databaseStatus) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "DATABASE\tMIGRATION\tAPPLIED")
	for _, d := range all {
		for _, m := range d.Migrations {
			applied := "no: run tidemark schema migrate"
			if m.Applied {
				applied = m.AppliedAt.UTC().Format(time.RFC3339)
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\n", d.Database, m.Name, applied)
		}
	}
	return tw.Flush()
}
