package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/emitters/cdc"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
)

func newCDCPause() *cobra.Command {
	cmd := newFeedOrder("pause", "Pause the change feed; commands go on", (*control.DB).PauseFeed, pausing)
	cmd.Long = "Pause the change feed until `tidemark cdc resume`, also over restarts. Every emitter of the shard finishes\n" +
		"what is on its way, tells PostgreSQL how far it came, and gives the slot up. Commands go on and counts grow\n" +
		"stale; PostgreSQL keeps the WAL meanwhile, so watch its disk (`tidemark cdc status`).\n\n" +
		"Debezium in place of the emitter does not obey: pause its connector in Kafka Connect."
	return cmd
}

func newCDCResume() *cobra.Command {
	cmd := newFeedOrder("resume", "Let a paused change feed go on", (*control.DB).ResumeFeed, resuming)
	cmd.Long = "Let a paused change feed go on, from where it stood."
	return cmd
}

// feedOrder is what an order to the emitters looks like from outside.
type feedOrder struct {
	done, already string
	// obeyed tells whether the emitters of a shard have obeyed.
	obeyed func([]control.FeedEmitter) bool
}

var pausing = feedOrder{
	done: "paused", already: "was paused already",
	obeyed: func(all []control.FeedEmitter) bool {
		holds := []cdc.State{cdc.StatePaused, cdc.StateFailed, cdc.StateIdle, cdc.StateStopped}
		return !slices.ContainsFunc(all, func(e control.FeedEmitter) bool { return !slices.Contains(holds, cdc.State(e.State)) })
	},
}

var resuming = feedOrder{
	done: "resumed", already: "was not paused",
	obeyed: func(all []control.FeedEmitter) bool {
		return slices.ContainsFunc(all, func(e control.FeedEmitter) bool { return cdc.State(e.State) == cdc.StateStreaming })
	},
}

func newFeedOrder(verb, short string, change func(d *control.DB, ctx context.Context, shard int, who, reason string) (bool, error), order feedOrder) *cobra.Command {
	var reason string
	var wait time.Duration
	cmd := &cobra.Command{Use: verb, Short: short, Args: noArgs}
	at := whereFlags(cmd)
	chosen := shardFlag(cmd)
	as := asFlag(cmd)
	cmd.Flags().StringVar(&reason, "reason", "", "`WHY`, for the audit and for who looks at the status")
	cmd.Flags().DurationVar(&wait, "wait", 30*time.Second, "how long to wait until the emitters have obeyed; 0: not at all")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := at.load(config.PartControl)
		if err != nil {
			return err
		}
		shards, err := chosen.of(cfg)
		if err != nil {
			return err
		}
		who, err := as.name()
		if err != nil {
			return err
		}
		db, err := control.Open(cmd.Context(), cfg.Control)
		if err != nil {
			return err
		}
		defer db.Close()
		w := cmd.OutOrStdout()
		anew := map[int]bool{}
		err = eachShard(shards, func(shard int) error {
			changed, err := change(db, cmd.Context(), shard, who, reason)
			switch {
			case err != nil:
				return err
			case changed:
				anew[shard] = true
				fmt.Fprintf(w, "shard %d: %s\n", shard, order.done)
			default:
				fmt.Fprintf(w, "shard %d: %s\n", shard, order.already)
			}
			return nil
		})
		if err != nil || wait <= 0 {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), wait, fmt.Errorf("not within %v: see `tidemark cdc status`", wait))
		defer cancel()
		before, err := db.FeedEmitters(ctx, emitterSilence)
		if err != nil {
			return err
		}
		return eachShard(shards, func(shard int) error {
			stale := map[string]time.Time{}
			for _, e := range before {
				if e.Shard == shard && anew[shard] {
					stale[e.Instance] = e.SeenAt
				}
			}
			return order.await(ctx, db, shard, stale, w)
		})
	}
	return cmd
}

// await waits until the emitters of a shard that work have obeyed. What they
// said before the order, as stale has it, may be of an earlier one.
func (o feedOrder) await(ctx context.Context, db *control.DB, shard int, stale map[string]time.Time, w io.Writer) error {
	for {
		all, err := db.FeedEmitters(ctx, emitterSilence)
		if ctx.Err() != nil {
			return fmt.Errorf("the emitters have not obeyed: %w", context.Cause(ctx))
		}
		if err != nil {
			return err
		}
		all = slices.DeleteFunc(all, func(e control.FeedEmitter) bool { return e.Shard != shard })
		if len(all) == 0 {
			fmt.Fprintf(w, "shard %d: no emitter works now; one that starts obeys\n", shard)
			return nil
		}
		if o.obeyed(all) && !slices.ContainsFunc(all, func(e control.FeedEmitter) bool { return e.SeenAt.Equal(stale[e.Instance]) }) {
			for _, e := range all {
				fmt.Fprintf(w, "shard %d: emitter %s: %s\n", shard, e.Instance, e.State)
			}
			return nil
		}
		pause.For(ctx, 200*time.Millisecond)
	}
}
