package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
)

func newCDC() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "cdc",
		Short: "The change feed: how it is, its slots, pause and resume",
		Long: "The change feed of each shard reads PostgreSQL's log through a replication slot. See how it is, pause it\n" +
			"and let it go on, and make or drop its slot. Without --shard a command is about every shard. What changes\n" +
			"something is audited.",
	})
	cmd.AddCommand(newCDCStatus(), newCDCCreateSlot(), newCDCDropSlot(), newCDCPause(), newCDCResume())
	return cmd
}

// shardChoice is the --shard flag of commands that are about every shard
// without it.
type shardChoice struct{ shard int }

func shardFlag(cmd *cobra.Command) *shardChoice {
	c := new(shardChoice)
	cmd.Flags().IntVar(&c.shard, "shard", -1, "only shard `K` (default every shard)")
	return c
}

func (c *shardChoice) of(cfg config.Config) ([]int, error) {
	if c.shard >= cfg.Shards || c.shard < -1 {
		return nil, usagef("--shard %d: there are shards 0..%d", c.shard, cfg.Shards-1)
	}
	if c.shard >= 0 {
		return []int{c.shard}, nil
	}
	all := make([]int, cfg.Shards)
	for shard := range all {
		all[shard] = shard
	}
	return all, nil
}

// eachShard does something for every chosen shard, also after one has failed.
func eachShard(shards []int, do func(shard int) error) error {
	var errs []error
	for _, shard := range shards {
		if err := do(shard); err != nil {
			errs = append(errs, fmt.Errorf("shard %d: %w", shard, err))
		}
	}
	return errors.Join(errs...)
}
