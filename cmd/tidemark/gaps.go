package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/gaps"
)

func newGaps() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "gaps",
		Short: "Named gaps of the change feed: list them, heal them",
		Long: "A gap is rows of a shard's outbox that the change feed did not bring: intake finds them by comparing\n" +
			"what came with each seal's proof. It is named by shard and seal, with the exact outbox ids.",
	})
	cmd.AddCommand(newGapsList(), newGapsHeal())
	return cmd
}

// gapJSON is a gap as --output json prints it.
type gapJSON struct {
	Shard     int        `json:"shard"`
	Seal      uint64     `json:"seal"`
	Missing   int64      `json:"missing"` // rows
	Ids       []int64    `json:"ids"`     // outbox ids, at most maxListedIDs
	Ranges    [][2]int64 `json:"ranges"`  // the same ids, all of them, from..to
	Exact     bool       `json:"exact"`   // false: the ids may include others
	FirstSeen time.Time  `json:"firstSeen"`
	Cause     string     `json:"cause"`
	State     string     `json:"state"`
	Note      string     `json:"note,omitempty"`
	HealedAt  *time.Time `json:"healedAt,omitempty"`
	HealedBy  string     `json:"healedBy,omitempty"`
}

const maxListedIDs = 10_000

func asGapJSON(g control.Gap) gapJSON {
	out := gapJSON{
		Shard: g.Shard, Seal: g.Seal, Missing: g.Rows, Ids: g.Missing.Ids(maxListedIDs), Ranges: [][2]int64{}, Exact: g.Exact,
		FirstSeen: g.FirstSeen.UTC(), Cause: string(g.Cause), State: string(g.State), Note: g.Note, HealedAt: g.HealedAt, HealedBy: g.HealedBy,
	}
	if out.Ids == nil {
		out.Ids = []int64{}
	}
	for _, r := range g.Missing {
		out.Ranges = append(out.Ranges, [2]int64{r.From, r.To})
	}
	return out
}

// gapFlags choose gaps.
type gapFlags struct {
	shard int
	all   bool
}

func (f *gapFlags) filter(cfg config.Config) (control.GapFilter, error) {
	filter := control.GapFilter{States: []control.GapState{control.GapOpen, control.GapHealing}}
	if f.shard >= cfg.Shards || f.shard < -1 {
		return filter, usagef("--shard %d: there are shards 0..%d", f.shard, cfg.Shards-1)
	}
	if f.shard >= 0 {
		filter.Shard = &f.shard
	}
	return filter, nil
}

func newGapsList() *cobra.Command {
	f := &gapFlags{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List gaps; exit 3 while any is open",
		Args:  noArgs,
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.Flags().IntVar(&f.shard, "shard", -1, "only of shard `K` (default every shard)")
	cmd.Flags().BoolVar(&f.all, "all", false, "list healed gaps, too")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg, err := at.load(config.PartControl)
		if err != nil {
			return err
		}
		filter, err := f.filter(cfg)
		if err != nil {
			return err
		}
		if f.all {
			filter.States = nil
		}
		return listGaps(cmd.Context(), cfg, filter, out, cmd.OutOrStdout())
	}
	return cmd
}

func listGaps(ctx context.Context, cfg config.Config, filter control.GapFilter, out *output, w io.Writer) error {
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	all, err := db.Gaps(ctx, filter)
	if err != nil {
		return err
	}
	list, open := make([]gapJSON, len(all)), false
	for i, g := range all {
		list[i] = asGapJSON(g)
		open = open || g.State != control.GapHealed
	}
	if err := out.print(w, list, func(w io.Writer) error { return gapTable(w, all) }); err != nil {
		return err
	}
	if open {
		return errDifferent
	}
	return nil
}

func gapTable(w io.Writer, all []control.Gap) error {
	if len(all) == 0 {
		_, err := fmt.Fprintln(w, "no gaps")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SHARD\tSEAL\tMISSING\tSTATE\tCAUSE\tFIRST SEEN\tOUTBOX IDS\tNOTE")
	for _, g := range all {
		ids := g.Missing.String()
		if len(ids) > 60 {
			ids = ids[:60] + "..."
		}
		fmt.Fprintf(tw, "%d\t%d\t%d\t%s\t%s\t%s\t%s\t%s\n", g.Shard, g.Seal, g.Rows, g.State, g.Cause, g.FirstSeen.UTC().Format(time.RFC3339), ids, g.Note)
	}
	return tw.Flush()
}

func newGapsHeal() *cobra.Command {
	f := &gapFlags{}
	var yes bool
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "heal",
		Short: "Read missing outbox rows again into the change feed",
		Long: "Read exactly the missing outbox rows again and write them into the change feed, marked. A row that is\n" +
			"no longer in the outbox is rebuilt from its relation's present state. Healing twice does no harm.\n\n" +
			"Without --yes it only says what it would do. A gap is healed once intake has read what was written.",
		Args: noArgs,
	}
	at := whereFlags(cmd)
	as := asFlag(cmd)
	cmd.Flags().IntVar(&f.shard, "shard", -1, "gaps of shard `K`")
	cmd.Flags().BoolVar(&f.all, "all", false, "gaps of every shard")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait until intake has read it")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.all == (f.shard >= 0) {
			return usagef("tidemark gaps heal needs --shard K or --all")
		}
		cfg, err := at.load(config.PartPostgres, config.PartControl, config.PartKafka)
		if err != nil {
			return err
		}
		filter, err := f.filter(cfg)
		if err != nil {
			return err
		}
		by, err := as.name()
		if err != nil {
			return err
		}
		return healGaps(cmd.Context(), cfg, filter, healing{yes: yes, by: by, wait: wait, out: cmd.OutOrStdout()})
	}
	return cmd
}

// healing is how gaps are healed.
type healing struct {
	yes  bool
	by   string
	wait time.Duration
	out  io.Writer
}

func (h healing) say(format string, a ...any) { fmt.Fprintf(h.out, format+"\n", a...) }

func healGaps(ctx context.Context, cfg config.Config, filter control.GapFilter, h healing) error {
	topo, err := cfg.Topology()
	if err != nil {
		return err
	}
	tools, err := openFeedTools(ctx, cfg, topo)
	if err != nil {
		return err
	}
	defer tools.close()
	todo, err := tools.control.Gaps(ctx, filter)
	if err != nil {
		return err
	}
	if len(todo) == 0 {
		h.say("no open gaps")
		return nil
	}
	for _, g := range todo {
		switch {
		case !h.yes:
			h.say("would heal the gap of shard %d, seal %d: %d rows (%s)", g.Shard, g.Seal, g.Rows, g.Cause)
		case g.State == control.GapHealing:
			h.say("shard %d, seal %d: its rows are in the change feed already", g.Shard, g.Seal)
		default:
			sent, err := tools.healer.Heal(ctx, g, h.by)
			if err != nil {
				return err
			}
			h.say("shard %d, seal %d: wrote %d rows of the outbox and %d rebuilt from relations", g.Shard, g.Seal, sent.Rows, sent.Facts)
			if sent.Above > 0 {
				h.say("shard %d, seal %d: %d relations have a new version, above facts that were counted and are lost", g.Shard, g.Seal, sent.Above)
			}
		}
	}
	if !h.yes {
		h.say("nothing was changed; add --yes to do it")
		return nil
	}
	return awaitHealed(ctx, tools, filter, h)
}

// awaitHealed waits until intake has read what heals the gaps.
func awaitHealed(ctx context.Context, tools *feedTools, filter control.GapFilter, h healing) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.wait, fmt.Errorf("intake has not read it within %v: is it running? `tidemark gaps list` tells later", h.wait))
	defer cancel()
	filter.States = []control.GapState{control.GapHealing}
	for {
		left, err := tools.control.Gaps(ctx, filter)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if len(left) == 0 {
			h.say("healed")
			return nil
		}
		for _, g := range left {
			if err := confirm(ctx, tools.healer, g); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// confirm may find that intake's own process was faster.
func confirm(ctx context.Context, healer *gaps.Healer, g control.Gap) error {
	_, err := healer.Confirm(ctx, g)
	if errors.Is(err, control.ErrGapChanged) || ctx.Err() != nil {
		return nil
	}
	return err
}
