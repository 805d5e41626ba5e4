package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/processors/likers"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

func newLikers() *cobra.Command {
	cmd := group(&cobra.Command{Use: "likers", Short: "The reverse index of who likes, favorites, follows: fill it from the facts"})
	cmd.AddCommand(newLikersBackfill())
	return cmd
}

// backfill is how the reverse index is filled from the facts.
type backfill struct {
	execute bool
	rate    int
	wait    time.Duration
	by      string
	out     io.Writer
	scr     *screen
}

func newLikersBackfill() *cobra.Command {
	b := backfill{}
	cmd := &cobra.Command{
		Use:   "backfill",
		Short: "Bring relations into the reverse index that changed before there was one",
		Long: "Read every relation of every shard and write it, with its version and time, into the stream that\n" +
			"the reverse index follows. Commands go on meanwhile, and it may be done again or begun anew: the index\n" +
			"takes nothing of a version that it has. Lists that are read before the end may lack old entries.\n" +
			"`tidemark verify` names what is missing (liker-below), before and after. While the deployment is at\n" +
			"overload level pause-consumers or above it waits.\n\n" +
			"Without --execute it only counts what it would write.",
		Args: noArgs,
	}
	at := whereFlags(cmd)
	as := asFlag(cmd)
	cmd.Flags().BoolVar(&b.execute, "execute", false, "do it")
	cmd.Flags().IntVar(&b.rate, "rate", 5000, "`NUMBER` of relations per second; what changes now waits behind them; 0: as fast as it goes")
	cmd.Flags().DurationVar(&b.wait, "wait", time.Minute, "`TIME` to wait, at the end, until the index has taken everything")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if b.rate < 0 || b.wait < 0 {
			return usagef("--rate and --wait are not negative")
		}
		cfg, err := at.load(config.PartPostgres, config.PartControl, config.PartKafka)
		if err != nil {
			return err
		}
		if b.by, err = as.name(); err != nil {
			return err
		}
		b.out, b.scr = cmd.OutOrStdout(), newScreen(cmd.ErrOrStderr())
		return b.run(cmd.Context(), cfg)
	}
	return cmd
}

func (b backfill) run(ctx context.Context, cfg config.Config) error {
	topo, err := cfg.Topology()
	if err != nil {
		return err
	}
	shards, _, reverse, err := readContracts(ctx, cfg)
	if err != nil {
		return err
	}
	store, err := relations.Open(ctx, relations.Config{URLs: cfg.Postgres, Map: shards})
	if err != nil {
		return err
	}
	defer store.Close()
	facts := func(ctx context.Context, yield func(likers.Fact) error) error {
		for shard := range cfg.Postgres {
			if err := store.Facts(ctx, shard, func(f relations.Fact) error {
				return yield(likers.Fact{Relation: f.Relation, State: f.State, Version: f.Version, ChangedAt: f.StateChangedAt})
			}); err != nil {
				return fmt.Errorf("reading the facts of shard %d: %w", shard, err)
			}
		}
		return nil
	}
	if !b.execute {
		return b.count(ctx, facts)
	}
	client, err := kafkaClient(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := b.audit(ctx, cfg, db); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shared := newLevels(db, "")
	go func() { _ = shared.run(ctx) }() // it returns nil when ctx ends
	m := b.scr.meter("backfill", 0)
	defer m.end()
	sent, err := likers.Backfill(ctx, likers.BackfillConfig{
		Client: client, Topology: topo, Reverse: reverse, Facts: facts, Rate: b.rate, Paused: shared.consumersPaused,
		Progress: func(n int64) { m.set(n, fmt.Sprintf("%d relations written", n)) },
	})
	if err != nil {
		return fmt.Errorf("after %d relations: %w: begin it anew, nothing is taken twice", sent, err)
	}
	fmt.Fprintf(b.out, "wrote %d relations\n", sent)
	return b.await(ctx, kadm.NewClient(client), topo)
}

// count says what would be written.
func (b backfill) count(ctx context.Context, facts func(context.Context, func(likers.Fact) error) error) error {
	byKind := map[topology.Kind]int64{}
	if err := facts(ctx, func(f likers.Fact) error { byKind[f.Relation.Kind]++; return nil }); err != nil {
		return err
	}
	for _, k := range topology.Kinds() {
		fmt.Fprintf(b.out, "would write %d relations of kind %v\n", byKind[k], k)
	}
	_, err := fmt.Fprintln(b.out, "nothing was written; add --execute to do it")
	return err
}

func (b backfill) audit(ctx context.Context, cfg config.Config, db *control.DB) error {
	return db.Audit(ctx, control.Entry{Who: b.by, Action: "likers backfill", Subject: cfg.Prefix, Reason: "relations from before the reverse index", Detail: map[string]any{"rate": b.rate}})
}

// await waits until the index has taken everything.
func (b backfill) await(ctx context.Context, admin *kadm.Client, topo *topology.Topology) error {
	ctx, cancel := context.WithTimeout(ctx, b.wait)
	defer cancel()
	if err := verify.WaitGroups(ctx, admin, topo); err != nil {
		return fmt.Errorf("everything is written, and not all of it consumed within %v: %w: `tidemark verify` compares later", b.wait, err)
	}
	_, err := fmt.Fprintln(b.out, "the reverse index has taken them; `tidemark verify` compares")
	return err
}
