package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/topology"
)

func newTopology() *cobra.Command {
	cmd := group(&cobra.Command{Use: "topology", Short: "Print, check or create the streams and tables"})
	cmd.AddCommand(newTopologyPrint(), newTopologyCheck(), newTopologyCreate())
	return cmd
}

func newTopologyPrint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the map: text, a Graphviz graph, JSON, or AsyncAPI",
		Long:  "Print the map as text, a Graphviz graph, JSON, or an AsyncAPI 3.0 document: that of the configuration if\none is named, else the default one.",
		Args:  noArgs,
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, topology.Outputs()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg := config.Default()
		if at.given() {
			var err error
			if cfg, err = at.load(); err != nil {
				return err
			}
		}
		topo, err := cfg.Topology()
		if err != nil {
			return err
		}
		return topo.Print(cmd.OutOrStdout(), out.form)
	}
	return cmd
}

const adminLimit = 30 * time.Second

// createTopics makes what is missing.
func createTopics(ctx context.Context, cfg config.Config) error {
	return administer(ctx, cfg, kafkaadmin.Create)
}

// administer connects to the configured brokers for one administrative step.
func administer(ctx context.Context, cfg config.Config, do func(context.Context, *kgo.Client, *topology.Topology) error) error {
	if err := cfg.Require(config.PartKafka); err != nil {
		return err
	}
	topo, err := cfg.Topology()
	if err != nil {
		return err
	}
	client, err := kafkaClient(cfg)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, adminLimit)
	defer cancel()
	return do(ctx, client, topo)
}

func kafkaClient(cfg config.Config, opts ...kgo.Opt) (*kgo.Client, error) {
	access, err := cfg.Kafka.Access()
	if err != nil {
		return nil, err
	}
	return kafkaadmin.Client(cfg.Kafka.Brokers, access, opts...)
}

func newTopologyCheck() *cobra.Command {
	cmd := &cobra.Command{Use: "check", Short: "Compare the topics with the map; exit 3 when they differ", Args: noArgs}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg, err := at.load()
		if err != nil {
			return err
		}
		return administer(cmd.Context(), cfg, func(ctx context.Context, client *kgo.Client, topo *topology.Topology) error {
			diffs, err := kafkaadmin.Check(ctx, client, topo)
			if err != nil {
				return err
			}
			if diffs == nil {
				diffs = []kafkaadmin.Difference{}
			}
			err = out.print(cmd.OutOrStdout(), diffs, func(w io.Writer) error {
				for _, d := range diffs {
					fmt.Fprintln(w, d)
				}
				if len(diffs) == 0 {
					fmt.Fprintf(w, "all %d topics are as the map says\n", len(topo.Streams))
				}
				return nil
			})
			if err == nil && len(diffs) > 0 {
				err = errDifferent
			}
			return err
		})
	}
	return cmd
}

func newTopologyCreate() *cobra.Command {
	cmd := &cobra.Command{Use: "create", Short: "Create missing topics; refuse differing ones by name", Args: noArgs}
	at := whereFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := at.load()
		if err != nil {
			return err
		}
		return administer(cmd.Context(), cfg, func(ctx context.Context, client *kgo.Client, topo *topology.Topology) error {
			if err := kafkaadmin.Create(ctx, client, topo); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "all %d topics are there\n", len(topo.Streams))
			return nil
		})
	}
	return cmd
}
