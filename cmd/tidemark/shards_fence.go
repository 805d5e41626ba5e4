package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

func newShardsFence() *cobra.Command {
	var reason string
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "fence", Short: "Raise the map's epoch: processes that have the old map are refused until they read the new one", Args: noArgs,
		Long: "Store the shard map again under the next id, make every shard serve only writers of that one, and\n" +
			"activate it. Users stay where they are. Every command of a process that still has the old map is refused\n" +
			"inside its transaction; running processes read the new map by themselves, forgotten and cut-off ones\n" +
			"cannot write any more.\n\n" +
			"Writers wait while it is done, for milliseconds. When it is interrupted they wait until it is run again:\n" +
			"it goes on where it was, also with a change of the map that somebody else began.",
	}
	at := whereFlags(cmd)
	as := asFlag(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "`WHY`, for the audit; required")
	cmd.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to try with a shard whose transactions do not end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if strings.TrimSpace(reason) == "" {
			return usagef("--reason is not given")
		}
		if wait <= 0 {
			return usagef("--wait %v is not positive", wait)
		}
		cfg, err := at.load(config.PartControl, config.PartPostgres)
		if err != nil {
			return err
		}
		who, err := as.name()
		if err != nil {
			return err
		}
		return fenceShards(cmd.Context(), cfg, who, reason, wait, cmd.OutOrStdout())
	}
	return cmd
}

func fenceShards(ctx context.Context, cfg config.Config, who, reason string, wait time.Duration, w io.Writer) error {
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	old, to, err := storeSuccessor(ctx, db)
	if err != nil {
		return err
	}
	for shard, url := range cfg.Postgres {
		if err := fenceShard(ctx, url, shard, old.ID, to.ID, wait); err != nil {
			return fmt.Errorf("%w: writers of the shards before it wait for map %d: run this again", err, to.ID)
		}
		fmt.Fprintf(w, "shard %d: serves writers of map %d\n", shard, to.ID)
	}
	if err := db.ActivateShardMap(ctx, old.ID, to.ID, who, reason); err != nil {
		return fmt.Errorf("%w: every shard waits for map %d: run this again", err, to.ID)
	}
	fmt.Fprintf(w, "map %d is active\n", to.ID)
	return nil
}

// storeSuccessor is the map that follows the active one: the one that an
// interrupted change left, or the same slots again.
func storeSuccessor(ctx context.Context, db *control.DB) (old, to topology.ShardMap, err error) {
	if old, err = db.ShardMap(ctx); err != nil {
		return old, to, err
	}
	_, shards, err := db.StoredShardMap(ctx, old.ID)
	if err != nil {
		return old, to, err
	}
	to, _, err = db.StoredShardMap(ctx, old.ID+1)
	if errors.Is(err, control.ErrNotBootstrapped) {
		to = topology.ShardMap{ID: old.ID + 1, Contract: old.Contract, Slots: slices.Clone(old.Slots)}
		err = db.StoreShardMap(ctx, to, shards)
	}
	return old, to, err
}

// fenceTry is how long writers wait behind one attempt.
const fenceTry = time.Second

func fenceShard(ctx context.Context, url string, shard int, from, to uint32, wait time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, wait, fmt.Errorf("not within %v", wait))
	defer cancel()
	for {
		err := relations.Fence(ctx, url, shard, from, to, fenceTry)
		if !errors.Is(err, relations.ErrFenceBusy) || !pause.For(ctx, 200*time.Millisecond) {
			return err
		}
	}
}
