package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/quarantine/review"
)

func newQuarantine() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "quarantine",
		Short: "Records that were set aside: list, show, replay, discard",
		Long: "Records that could not be used are set aside with a reason and their origin, while everything behind\n" +
			"them flows on. Replay sends the original through its origin topic again; every decision is audited.",
	})
	cmd.AddCommand(newQuarantineList(), newQuarantineShow(), newQuarantineReplay(), newQuarantineDiscard())
	return cmd
}

// itemJSON is a record as --output json prints it.
type itemJSON struct {
	ID        int64      `json:"id"`
	Reason    string     `json:"reason"`
	Detail    string     `json:"detail"`
	Topic     string     `json:"topic"`
	Partition int        `json:"partition"`
	Offset    int64      `json:"offset"`
	FirstSeen time.Time  `json:"firstSeen"`
	Bytes     int        `json:"bytes"` // of the value
	Null      bool       `json:"null"`  // the value is null
	Truncated bool       `json:"truncated"`
	Copies    int        `json:"copies"`
	State     string     `json:"state"`
	DecidedAt *time.Time `json:"decidedAt,omitempty"`
	DecidedBy string     `json:"decidedBy,omitempty"`
	Why       string     `json:"why,omitempty"`
	Key       *string    `json:"key,omitempty"`   // with --payload
	Value     *string    `json:"value,omitempty"` // with --payload; base64 when encoding says so
	Encoding  string     `json:"encoding,omitempty"`
}

func asItemJSON(i review.Item, payload bool) itemJSON {
	out := itemJSON{
		ID: i.ID, Reason: i.Reason, Detail: i.Detail, Topic: i.Origin.Topic, Partition: i.Origin.Partition, Offset: i.Origin.Offset,
		FirstSeen: i.Origin.FirstSeen, Bytes: len(i.Value), Null: i.Value == nil, Truncated: i.Truncated, Copies: i.Copies, State: string(i.State),
	}
	if d := i.Decision; d != nil {
		out.DecidedAt, out.DecidedBy, out.Why = &d.At, d.Who, d.Reason
	}
	if !payload {
		return out
	}
	key, value := string(i.Key), string(i.Value)
	if !utf8.ValidString(key) || !utf8.ValidString(value) {
		out.Encoding = "base64"
		key, value = base64.StdEncoding.EncodeToString(i.Key), base64.StdEncoding.EncodeToString(i.Value)
	}
	out.Key = &key
	if i.Value != nil {
		out.Value = &value
	}
	return out
}

// atDesk does something at the review desk of a configuration.
func atDesk(ctx context.Context, at *where, do func(*review.Desk) error) error {
	cfg, err := at.load(config.PartControl, config.PartKafka)
	if err != nil {
		return err
	}
	topo, err := cfg.Topology()
	if err != nil {
		return err
	}
	access, err := cfg.Kafka.Access()
	if err != nil {
		return err
	}
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	desk, err := review.New(cfg.Kafka.Brokers, access, topo, db)
	if err != nil {
		return err
	}
	defer desk.Close()
	return do(desk)
}

// itemFilter is the flags that choose records; what stands before a reason's
// flag differs, since a decision has a reason of its own.
type itemFilter struct{ reason, topic, state string }

func (f *itemFilter) check(flag string) (review.Filter, error) {
	if f.reason != "" && !slices.Contains(review.Reasons(), f.reason) {
		return review.Filter{}, usagef("--%s %q is not one of %s", flag, f.reason, strings.Join(review.Reasons(), ", "))
	}
	states := []string{"all", string(review.Open), string(review.Replayed), string(review.Discarded)}
	if !slices.Contains(states, f.state) {
		return review.Filter{}, usagef("--state %q is not one of %s", f.state, strings.Join(states, ", "))
	}
	out := review.Filter{Reason: f.reason, Topic: f.topic, State: review.State(f.state)}
	if f.state == "all" {
		out.State = ""
	}
	return out, nil
}

func newQuarantineList() *cobra.Command {
	f := &itemFilter{}
	var limit int
	cmd := &cobra.Command{Use: "list", Short: "List records that were set aside, newest first", Args: noArgs}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.Flags().StringVar(&f.reason, "reason", "", "only those with this `REASON`, such as unknown_kind")
	cmd.Flags().StringVar(&f.topic, "topic", "", "only those of this origin `TOPIC`")
	cmd.Flags().StringVar(&f.state, "state", string(review.Open), "open, replayed, discarded or all")
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		filter, err := f.check("reason")
		if err != nil {
			return err
		}
		if limit < 1 {
			return usagef("--limit %d is below 1", limit)
		}
		if err := out.check(); err != nil {
			return err
		}
		return atDesk(cmd.Context(), at, func(desk *review.Desk) error {
			items, err := desk.List(cmd.Context(), filter)
			if err != nil {
				return err
			}
			slices.Reverse(items)
			items = items[:min(limit, len(items))]
			list := make([]itemJSON, len(items))
			for i, item := range items {
				list[i] = asItemJSON(item, false)
			}
			return out.print(cmd.OutOrStdout(), list, func(w io.Writer) error { return itemTable(w, list) })
		})
	}
	return cmd
}

func itemTable(w io.Writer, list []itemJSON) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "nothing")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ID\tSTATE\tREASON\tORIGIN\tFIRST SEEN\tBYTES\tCOPIES\tDETAIL")
	for _, i := range list {
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s/%d/%d\t%s\t%d\t%d\t%s\n", i.ID, i.State, i.Reason, i.Topic, i.Partition, i.Offset, i.FirstSeen.Format(time.RFC3339), i.Bytes, i.Copies, i.Detail)
	}
	return tw.Flush()
}

func newQuarantineShow() *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show a record", Args: exactly(1, "an ID, see tidemark quarantine list"),
		Long: "Show a record: why and where it was set aside, and, with --payload, what it holds. The audit has who\n" +
			"saw the payload of which record, before it is shown.",
	}
	at := whereFlags(cmd)
	by := asFlag(cmd)
	reason := reasonFlag(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.Flags().BoolVar(&payload, "payload", false, "with its key and value, which may name users")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		ids, err := itemIDs(given)
		if err != nil {
			return err
		}
		who, err := by.name()
		if err != nil {
			return err
		}
		if err := out.check(); err != nil {
			return err
		}
		return atDesk(cmd.Context(), at, func(desk *review.Desk) error {
			item, err := desk.Item(cmd.Context(), ids[0])
			if err != nil {
				return err
			}
			if payload {
				if err := desk.AuditShown(cmd.Context(), item, who, *reason); err != nil {
					return err
				}
			}
			shown := asItemJSON(item, payload)
			return out.print(cmd.OutOrStdout(), shown, func(w io.Writer) error { return showItem(w, shown) })
		})
	}
	return cmd
}

func showItem(w io.Writer, i itemJSON) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name string, value any) { fmt.Fprintf(tw, "%s\t%v\n", name, value) }
	line("id", i.ID)
	line("state", i.State)
	line("reason", i.Reason)
	line("detail", i.Detail)
	line("origin", fmt.Sprintf("%s, partition %d, offset %d", i.Topic, i.Partition, i.Offset))
	line("first seen", i.FirstSeen.Format(time.RFC3339Nano))
	line("copies", i.Copies)
	line("bytes", fmt.Sprintf("%d (null %v, truncated %v)", i.Bytes, i.Null, i.Truncated))
	if i.DecidedAt != nil {
		line("decided", fmt.Sprintf("%s by %s: %s", i.DecidedAt.UTC().Format(time.RFC3339), i.DecidedBy, i.Why))
	}
	if i.Key != nil {
		line("key", *i.Key)
	}
	if i.Value != nil {
		line("value", *i.Value)
	}
	return tw.Flush()
}

func itemIDs(given []string) ([]int64, error) {
	ids := make([]int64, len(given))
	for i, text := range given {
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || id < 0 {
			return nil, usagef("%q is not the id of a record: see tidemark quarantine list", text)
		}
		ids[i] = id
	}
	return ids, nil
}

func newQuarantineReplay() *cobra.Command {
	cmd := newDecision("replay", "Send records through their origin topics again",
		"replayed", (*review.Desk).Replay)
	cmd.Long = "Send the original records through their origin topics again. Who set one aside sees it once more, and\n" +
		"sets it aside anew if it still cannot be used."
	return cmd
}

func newQuarantineDiscard() *cobra.Command {
	return newDecision("discard", "Give records up", "discarded", (*review.Desk).Discard)
}

// newDecision is a command that decides on records: those with given ids, or,
// with --all, every open one that a filter takes.
func newDecision(verb, short, done string, decide func(d *review.Desk, ctx context.Context, i review.Item, who, why string) error) *cobra.Command {
	f := &itemFilter{state: string(review.Open)}
	var why string
	var all, yes bool
	cmd := &cobra.Command{Use: verb + " [ID...]", Short: short, Args: cobra.ArbitraryArgs}
	at := whereFlags(cmd)
	as := asFlag(cmd)
	cmd.Flags().StringVar(&why, "reason", "", "`WHY`, for the audit; needed")
	cmd.Flags().BoolVar(&all, "all", false, "every open record that --only and --topic take; says what it would do unless --yes")
	cmd.Flags().StringVar(&f.reason, "only", "", "with --all: those with this quarantine `REASON`")
	cmd.Flags().StringVar(&f.topic, "topic", "", "with --all: those of this origin `TOPIC`")
	cmd.Flags().BoolVar(&yes, "yes", false, "with --all: do it")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		filter, err := f.check("only")
		if err != nil {
			return err
		}
		ids, err := itemIDs(given)
		if err != nil {
			return err
		}
		switch {
		case all == (len(ids) > 0):
			return usagef("tidemark quarantine %s needs IDs or --all", verb)
		case strings.TrimSpace(why) == "":
			return usagef("tidemark quarantine %s needs --reason WHY", verb)
		}
		who, err := as.name()
		if err != nil {
			return err
		}
		return atDesk(cmd.Context(), at, func(desk *review.Desk) error {
			items, err := chooseItems(cmd.Context(), desk, filter, ids)
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			for _, i := range items {
				if all && !yes {
					fmt.Fprintf(w, "would %s record %d (%s, %s/%d/%d)\n", verb, i.ID, i.Reason, i.Origin.Topic, i.Origin.Partition, i.Origin.Offset)
					continue
				}
				if err := decide(desk, cmd.Context(), i, who, why); err != nil {
					return err
				}
				fmt.Fprintf(w, "%s record %d\n", done, i.ID)
			}
			if all && !yes {
				fmt.Fprintf(w, "%d records; nothing was changed, add --yes to do it\n", len(items))
			}
			return nil
		})
	}
	return cmd
}

// chooseItems finds the records with ids, or those that a filter takes.
func chooseItems(ctx context.Context, desk *review.Desk, f review.Filter, ids []int64) ([]review.Item, error) {
	if len(ids) == 0 {
		return desk.List(ctx, f)
	}
	all, err := desk.List(ctx, review.Filter{})
	if err != nil {
		return nil, err
	}
	var out []review.Item
	for _, id := range ids {
		at := slices.IndexFunc(all, func(i review.Item) bool { return i.ID == id })
		if at < 0 {
			return nil, fmt.Errorf("record %d: %w", id, review.ErrNotFound)
		}
		out = append(out, all[at])
	}
	return out, nil
}
