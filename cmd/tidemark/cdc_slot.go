package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/emitters/cdc"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/relations"
)

// slotWork makes and drops slots.
type slotWork struct {
	cfg     config.Config
	control *control.DB
	outbox  *relations.Outbox
	execute bool
	timeout time.Duration // for one shard
	force   bool
	who     string
	reason  string
	out     io.Writer // what is done
	log     io.Writer // what is waited for
}

func newCDCCreateSlot() *cobra.Command {
	cmd := newSlotCommand("create-slot", "Make a missing replication slot, and the publication if it is missing too", (*slotWork).create)
	cmd.Long = "Make a missing replication slot, and the publication if it is missing too; without --execute only say what\n" +
		"would be done.\n\n" +
		"A slot begins where it is made: rows of the outbox that were committed since the feed last worked are not in\n" +
		"it. They become a named gap, which `tidemark gaps heal` closes. Making a slot waits for every transaction\n" +
		"that is open on the server; the oldest one is shown while it waits."
	return cmd
}

func newCDCDropSlot() *cobra.Command {
	cmd := newSlotCommand("drop-slot", "Drop a replication slot that is not being read", (*slotWork).drop)
	cmd.Long = "Drop a replication slot; without --execute only say what would be done.\n\n" +
		"The WAL that it keeps is given up: rows that are not in Kafka yet become a named gap once a new slot is\n" +
		"there. A slot that is being read is refused: pause the feed first. --force ends its reader."
	return cmd
}

func newSlotCommand(use, short string, do func(*slotWork, context.Context, int) error) *cobra.Command {
	w := &slotWork{}
	cmd := &cobra.Command{Use: use, Short: short, Args: noArgs}
	at := whereFlags(cmd)
	chosen := shardFlag(cmd)
	as := asFlag(cmd)
	cmd.Flags().BoolVar(&w.execute, "execute", false, "do it")
	cmd.Flags().DurationVar(&w.timeout, "timeout", time.Minute, "how long one shard may take")
	cmd.Flags().StringVar(&w.reason, "reason", "", "`WHY`, for the audit")
	if use == "drop-slot" {
		cmd.Flags().BoolVar(&w.force, "force", false, "end the reader of a slot that is in use")
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if w.timeout <= 0 {
			return usagef("--timeout %v is not positive", w.timeout)
		}
		if w.cfg, err = at.load(config.PartControl, config.PartPostgres); err != nil {
			return err
		}
		shards, err := chosen.of(w.cfg)
		if err != nil {
			return err
		}
		if w.who, err = as.name(); err != nil {
			return err
		}
		if w.control, err = control.Open(cmd.Context(), w.cfg.Control); err != nil {
			return err
		}
		defer w.control.Close()
		if w.outbox, err = relations.OpenOutbox(w.cfg.Postgres); err != nil {
			return err
		}
		defer w.outbox.Close()
		w.out, w.log = cmd.OutOrStdout(), cmd.ErrOrStderr()
		err = eachShard(shards, func(shard int) error { return do(w, cmd.Context(), shard) })
		if !w.execute {
			fmt.Fprintln(w.out, "nothing was changed; add --execute to do it")
		}
		return err
	}
	return cmd
}

func (w *slotWork) say(shard int, format string, args ...any) {
	fmt.Fprintf(w.out, "shard %d: %s\n", shard, fmt.Sprintf(format, args...))
}

// would is how a step is announced.
func (w *slotWork) would() string {
	if w.execute {
		return "will"
	}
	return "would"
}

func (w *slotWork) slot(shard int) string { return slotName(w.cfg.Prefix, shard) }

func (w *slotWork) inspect(ctx context.Context, shard int) (cdc.Inspection, error) {
	return cdc.Inspect(ctx, w.cfg.Postgres[shard], w.slot(shard), relations.Publication)
}

func (w *slotWork) create(ctx context.Context, shard int) error {
	seen, err := w.inspect(ctx, shard)
	if err != nil {
		return err
	}
	s := seen.Slot
	switch {
	case s.Making:
		return fmt.Errorf("another process is making slot %s right now", s.Name)
	case s.Unusable != nil:
		return fmt.Errorf("%w: `tidemark cdc drop-slot --shard %d` first", s.Unusable, shard)
	case s.Exists && !seen.PublicationExists:
		return fmt.Errorf("publication %s does not exist, and slot %s cannot be read with a newer one: `tidemark cdc drop-slot --shard %d`, then this makes both", relations.Publication, s.Name, shard)
	case seen.PublicationExists && errors.Is(seen.PublicationError, cdc.ErrPublication):
		return seen.PublicationError
	case s.Exists:
		w.say(shard, "slot %s is there and can be used", s.Name)
		return nil
	}
	if !seen.PublicationExists {
		w.say(shard, "%s create publication %s", w.would(), relations.Publication)
	}
	w.say(shard, "%s create slot %s", w.would(), s.Name)
	detail, err := w.loss(ctx, shard)
	if err != nil || !w.execute {
		return err
	}
	detail["slot"], detail["new_publication"] = s.Name, !seen.PublicationExists
	return w.audited(ctx, shard, "cdc.slot-created", detail, func(ctx context.Context) error {
		if !seen.PublicationExists {
			if err := cdc.CreatePublication(ctx, w.cfg.Postgres[shard], relations.Publication); err != nil {
				return err
			}
		}
		return cdc.EnsureSlotReporting(ctx, w.cfg.Postgres[shard], s.Name, func(blocker string) {
			fmt.Fprintf(w.log, "shard %d: waiting for %s\n", shard, blocker)
		})
	})
}

// loss says which rows a slot that is made now does not bring.
func (w *slotWork) loss(ctx context.Context, shard int) (detail map[string]any, err error) {
	written, err := w.outbox.Written(ctx, shard)
	if err != nil {
		return nil, err
	}
	if !written {
		w.say(shard, "the outbox was never written: nothing is missing")
		return map[string]any{"unverified_rows": 0}, nil
	}
	source, err := w.control.Source(ctx, shard)
	if err != nil {
		return nil, err
	}
	rows, err := w.outbox.CountFrom(ctx, shard, source.SettledID+1, maxCountedRows)
	if err != nil {
		return nil, err
	}
	w.say(shard, "rows that were committed since the feed last worked are not in the new slot's WAL. Intake has verified the feed up to seal %d, outbox id %d; of the %s after it, and of those until the slot is there, all that are not in Kafka become a named gap within some seals: `tidemark gaps list`, then `tidemark gaps heal --shard %d`",
		source.VerifiedSeal, source.SettledID, rowCount(rows), shard)
	return map[string]any{"verified_seal": source.VerifiedSeal, "verified_id": source.SettledID, "unverified_rows": rows}, nil
}

func rowCount(n int64) string {
	switch {
	case n >= maxCountedRows:
		return fmt.Sprintf("%d or more rows", n)
	case n == 1:
		return "1 row"
	}
	return fmt.Sprintf("%d rows", n)
}

func (w *slotWork) drop(ctx context.Context, shard int) error {
	seen, err := w.inspect(ctx, shard)
	if err != nil {
		return err
	}
	s := seen.Slot
	if !s.Exists {
		w.say(shard, "slot %s does not exist", s.Name)
		return nil
	}
	if r := s.Reader; r != nil && !w.force {
		return fmt.Errorf("%w: slot %s is read by pid %d (%s): `tidemark cdc pause --shard %d` first, or end its reader with --force",
			cdc.ErrSlotInUse, s.Name, r.PID, orDash(r.Application), shard)
	}
	w.say(shard, "%s drop slot %s at %s, and with it %s of WAL", w.would(), s.Name, s.Confirmed, byteCount(s.RetainedBytes))
	if r := s.Reader; r != nil {
		w.say(shard, "%s end its reader, pid %d (%s)", w.would(), r.PID, orDash(r.Application))
	}
	detail, err := w.loss(ctx, shard)
	if err != nil || !w.execute {
		return err
	}
	detail["slot"], detail["confirmed_lsn"], detail["force"] = s.Name, s.Confirmed.String(), w.force
	return w.audited(ctx, shard, "cdc.slot-dropped", detail, func(ctx context.Context) error {
		return cdc.DropSlot(ctx, w.cfg.Postgres[shard], s.Name, w.force)
	})
}

// audited does something to a shard's slot. The audit has it before it is
// done, not in one transaction with it: making a slot waits for every open
// transaction of the server, of which the control database may be a part.
// Who names gaps later is told, so that the cause is known.
func (w *slotWork) audited(ctx context.Context, shard int, action string, detail map[string]any, do func(context.Context) error) error {
	e := control.Entry{Who: w.who, Action: action, Subject: control.FeedSubject(shard), Reason: w.reason, Detail: detail}
	if err := w.control.Audit(ctx, e); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	if err := do(limited); err != nil {
		e.Action, e.Detail = action+"-failed", map[string]any{"error": err.Error()}
		return errors.Join(err, w.control.Audit(context.WithoutCancel(ctx), e))
	}
	w.say(shard, "done")
	feed, err := w.outbox.Feed(ctx, shard, w.slot(shard), relations.Publication)
	if err != nil {
		return err
	}
	return w.control.SetFeed(ctx, shard, feed, []control.FeedEvent{{Cause: control.CauseSlotRecreated, Detail: fmt.Sprintf("%s by %s", action, w.who)}})
}
