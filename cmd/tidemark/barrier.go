package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/barrier"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
)

func newBarrier() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "barrier",
		Short: "Take a barrier and tell where it passes each stage",
		Long: "Take a barrier: a seal of every shard that flows through all stages like data, with a pause of\n" +
			"milliseconds for writers. Print each shard's cut and the offsets at which it passed each stage.",
		Args: noArgs,
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait until it has passed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg, err := at.load(config.PartPostgres, config.PartControl, config.PartKafka)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), wait, fmt.Errorf("not within %v", wait))
		defer cancel()
		report, err := takeBarrier(ctx, cfg)
		if report != nil {
			if err := out.print(cmd.OutOrStdout(), report, report.table); err != nil {
				return err
			}
		}
		return err
	}
	return cmd
}

// barrierReport is what a barrier told.
type barrierReport struct {
	ID       string            `json:"id"`
	Shards   []shardCut        `json:"shards"`
	Passages []barrier.Passage `json:"passages"`
}

// shardCut is a barrier's cut through a shard.
type shardCut struct {
	Shard    int       `json:"shard"`
	Seal     uint64    `json:"seal"`
	OutboxID int64     `json:"outboxId"`
	LSN      uint64    `json:"lsn"`
	SealedAt time.Time `json:"sealedAt"`
	Snapshot string    `json:"snapshot"` // is over when the command ends
}

// takeBarrier takes a barrier and waits until it has passed; when it has not,
// the report has what it did pass.
func takeBarrier(ctx context.Context, cfg config.Config) (*barrierReport, error) {
	topo, err := cfg.Topology()
	if err != nil {
		return nil, err
	}
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	store, err := openFacts(ctx, cfg, db)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	b, err := store.Barrier(ctx)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	report := &barrierReport{ID: b.ID, Passages: []barrier.Passage{}}
	taken := time.Now()
	for _, s := range b.Shards {
		report.Shards = append(report.Shards, shardCut{s.Shard, s.Seal, s.OutboxID, s.LSN, s.SealedAt, s.Snapshot})
		if s.SealedAt.Before(taken) {
			taken = s.SealedAt
		}
	}
	access, err := cfg.Kafka.Access()
	if err != nil {
		return report, err
	}
	passages, err := barrier.Reader{Brokers: cfg.Kafka.Brokers, Access: access, Topology: topo}.Wait(ctx, b.ID, taken)
	report.Passages = append(report.Passages, passages...)
	return report, err
}

func (r *barrierReport) table(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "barrier %s\n\nSHARD\tSEAL\tOUTBOX ID\tLSN\tSEALED AT\n", r.ID)
	for _, s := range r.Shards {
		fmt.Fprintf(tw, "%d\t%d\t%d\t%X/%X\t%s\n", s.Shard, s.Seal, s.OutboxID, s.LSN>>32, uint32(s.LSN), s.SealedAt.Format(time.RFC3339Nano))
	}
	fmt.Fprintln(tw, "\nSTAGE\tPARTITION\tOF\tSHARD\tOFFSET")
	for _, p := range r.Passages {
		of := "-"
		if p.Of >= 0 {
			of = fmt.Sprint(p.Of)
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%d\t%d\n", p.Stage, p.Partition, of, p.Shard, p.Offset)
	}
	return tw.Flush()
}
