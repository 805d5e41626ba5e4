package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

func newVerify() *cobra.Command {
	var deadline time.Duration
	var redis bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare every count and every list with the facts; exit 0 equal, 3 different, 1 could not tell",
		Long: "Wait until everything committed so far is displayed, then compare, for every target and kind, the\n" +
			"facts in the shards with the projected relations, the bucket counts and the displayed count, and\n" +
			"relation by relation the facts with the reverse index (who liked it, since when). All are read\n" +
			"from the shards and from the tables' own topics, never from a cache.\n\n" +
			"With --redis only what Redis holds is compared: every relation of the active generation is at most its\n" +
			"version floor, and that at most its fact; every count at most that of the display table. What is late or\n" +
			"not there is counted, not wrong. Traffic may run.",
		Args: noArgs,
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.Flags().DurationVar(&deadline, "deadline", time.Minute, "`TIME` to wait for the feed to be quiet")
	cmd.Flags().BoolVar(&redis, "redis", false, "compare what Redis holds, instead of what the tables hold")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		if redis {
			cfg, err := at.load(config.PartPostgres, config.PartControl, config.PartKafka, config.PartRedis)
			if err != nil {
				return err
			}
			report, err := verifyCache(cmd.Context(), cfg)
			if err == nil {
				err = out.print(cmd.OutOrStdout(), report, report.WriteTable)
			}
			if err == nil && report.wrong() {
				err = errDifferent
			}
			return err
		}
		if deadline <= 0 {
			return usagef("--deadline %v is not positive", deadline)
		}
		cfg, err := at.load(config.PartPostgres, config.PartControl, config.PartKafka)
		if err != nil {
			return err
		}
		report, err := verifyAll(cmd.Context(), cfg, deadline, newScreen(cmd.ErrOrStderr()))
		if err != nil {
			return err
		}
		if err := out.print(cmd.OutOrStdout(), report, report.WriteTable); err != nil {
			return err
		}
		return verdictError(report)
	}
	return cmd
}

func verdictError(r verify.Report) error {
	switch r.Verdict.ExitCode() {
	case exitOK:
		return nil
	case exitDifferent:
		return errDifferent
	}
	return fmt.Errorf("could not tell: %s (`tidemark doctor` looks for what is wrong; --deadline gives more time)", r.Reason)
}

// verifier holds what a verification reads from.
type verifier struct {
	cfg    config.Config
	topo   *topology.Topology
	store  *relations.Store
	client *kgo.Client
}

// verifyAll compares a running system and shows on scr how far it is.
func verifyAll(ctx context.Context, cfg config.Config, deadline time.Duration, scr *screen) (verify.Report, error) {
	topo, err := cfg.Topology()
	if err != nil {
		return verify.Report{}, err
	}
	shards, manifest, reverse, err := readContracts(ctx, cfg)
	if err != nil {
		return verify.Report{}, err
	}
	store, err := relations.Open(ctx, relations.Config{URLs: cfg.Postgres, Map: shards})
	if err != nil {
		return verify.Report{}, err
	}
	defer store.Close()
	client, err := kafkaClient(cfg)
	if err != nil {
		return verify.Report{}, err
	}
	defer client.Close()
	if err := client.Ping(ctx); err != nil {
		return verify.Report{}, fmt.Errorf("asking Kafka at %s: %w", strings.Join(cfg.Kafka.Brokers, ","), err)
	}
	v := &verifier{cfg: cfg, topo: topo, store: store, client: client}
	opts, err := v.readerOptions()
	if err != nil {
		return verify.Report{}, err
	}
	m := scr.meter("verify", 0)
	defer m.end()
	return verify.Run(ctx, verify.Config{
		Facts:      v.facts,
		Projection: verify.ReadTable(topo.Topic(topology.ProjectionTable), opts...),
		Display:    verify.ReadTable(topo.Topic(topology.DisplayTable), opts...),
		Likers:     verify.ReadTable(topo.Topic(topology.LikersTable), opts...),
		Reverse:    reverse,
		Quiet: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, deadline)
			defer cancel()
			return v.quiet(ctx)
		},
		Activity: func(ctx context.Context) (uint64, error) {
			return verify.EndOffsets(ctx, kadm.NewClient(client), topo.Topic(topology.Facts))
		},
		Contract: &manifest.Contract,
		Progress: func(p verify.Progress) { m.set(p.Rows, stageText(p)) },
	}), nil
}

func stageText(p verify.Progress) string {
	if p.Stage == "quiet" {
		return "waiting until what is committed is displayed"
	}
	return fmt.Sprintf("%s, %d rows read", p.Stage, p.Rows)
}

func (v *verifier) readerOptions() ([]kgo.Opt, error) {
	opts := []kgo.Opt{kgo.SeedBrokers(v.cfg.Kafka.Brokers...), kgo.ClientID("tidemark-verify")}
	access, err := v.cfg.Kafka.Access()
	return append(opts, access.Franz()...), err
}

func (v *verifier) facts(ctx context.Context, yield func(verify.Fact) error) error {
	for shard := range v.cfg.Postgres {
		err := v.store.Facts(ctx, shard, func(f relations.Fact) error {
			return yield(verify.Fact{Relation: f.Relation, State: f.State, Version: f.Version, ChangedAtUs: f.StateChangedAt.UnixMicro(), Hiding: f.Hiding})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// quiet waits until a seal that was taken after the call is displayed from
// every shard, and until every group has consumed its input.
func (v *verifier) quiet(ctx context.Context) error {
	want := map[int]uint64{}
	for shard := range v.cfg.Postgres {
		last, err := v.store.LastSeal(ctx, shard)
		if err != nil {
			return err
		}
		want[shard] = last + 1
	}
	view, stop, err := followDisplay(ctx, v.cfg, "verify", nil)
	if err != nil {
		return err
	}
	defer stop()
	if err := verify.WaitCaughtUp(ctx, want, func(context.Context) (map[int]uint64, error) {
		p, err := view.Progress()
		if err != nil {
			return nil, err
		}
		seals := map[int]uint64{}
		for _, s := range p.AsOf {
			seals[s.Shard] = s.Seal
		}
		return seals, nil
	}); err != nil {
		return err
	}
	return verify.WaitGroups(ctx, kadm.NewClient(v.client), v.topo)
}
