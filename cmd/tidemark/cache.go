package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
)

func newCache() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "cache",
		Short: "What Redis holds: its generations, and rebuilding them",
		Long: "Redis accelerates and never decides: losing it loses nothing. What it holds belongs to a generation, which\n" +
			"is rebuilt, verified, and then read: relations from the shards by the cachefloor role, counts from the\n" +
			"display table by the display role. They do so by themselves when Redis has lost the active one.",
	})
	cmd.AddCommand(newCacheStatus(), newCacheRebuild())
	return cmd
}

// keptFamilies are always kept in a Redis that is there; heads only where that is
// wanted.
var (
	keptFamilies   = []cache.Family{cache.Relations, cache.Counts}
	cachedFamilies = append(slices.Clone(keptFamilies), cache.Heads)
)

// cacheJSON is a generation as --output json prints it.
type cacheJSON struct {
	Family      string                `json:"family"`
	Generation  uint64                `json:"generation"`
	Status      string                `json:"status"`
	Buckets     int                   `json:"buckets,omitempty"`  // of relations
	Manifest    uint64                `json:"manifest,omitempty"` // of counts
	Reason      string                `json:"reason"`
	EndedReason string                `json:"endedReason,omitempty"`
	Progress    control.CacheProgress `json:"progress"`
	BegunAt     time.Time             `json:"begunAt"`
	ActivatedAt *time.Time            `json:"activatedAt,omitempty"`
	EndedAt     *time.Time            `json:"endedAt,omitempty"`
	// InRedis says whether Redis holds it: yes, no, or why that is not known.
	InRedis string `json:"inRedis"`
}

func newCacheStatus() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "List generations; exit 3 while relations or counts have none that is active and in Redis", Args: noArgs}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := out.check(); err != nil {
			return err
		}
		cfg, err := at.load(config.PartControl, config.PartRedis)
		if err != nil {
			return err
		}
		return cacheStatus(cmd.Context(), cfg, out, cmd.OutOrStdout())
	}
	return cmd
}

// listedGenerations are shown of each family, beside those that live.
const listedGenerations = 5

func cacheStatus(ctx context.Context, cfg config.Config, out *output, w io.Writer) error {
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return err
	}
	defer db.Close()
	redis, err := openRedis(cfg, 2*time.Second)
	if err != nil {
		return err
	}
	defer func() { _ = redis.Close() }()
	list, err := listCaches(ctx, db, redis)
	if err != nil {
		return err
	}
	served := map[string]bool{}
	for _, g := range list {
		if g.Status == string(control.CacheActive) && g.InRedis == "yes" {
			served[g.Family] = true
		}
	}
	err = out.print(w, list, func(w io.Writer) error { return cacheTable(w, list) })
	if err == nil && slices.ContainsFunc(keptFamilies, func(f cache.Family) bool { return !served[string(f)] }) {
		err = errDifferent // the table says why
	}
	return err
}

// listCaches lists each family's generations, newest first.
func listCaches(ctx context.Context, db *control.DB, redis *cache.Client) ([]cacheJSON, error) {
	list := []cacheJSON{}
	for _, family := range cachedFamilies {
		all, err := db.CacheGenerations(ctx, family, listedGenerations)
		if err != nil {
			return nil, err
		}
		for _, g := range all {
			j := asCacheJSON(g)
			j.InRedis = inRedis(redis.Held(ctx, g.Generation))
			list = append(list, j)
		}
	}
	return list, nil
}

func asCacheJSON(g control.CacheGeneration) cacheJSON {
	return cacheJSON{
		Family: string(g.Family), Generation: g.ID, Status: string(g.Status), Buckets: relationBuckets(g), Manifest: g.Manifest, Reason: g.Reason, EndedReason: g.EndedReason,
		Progress: g.Progress, BegunAt: g.BegunAt.UTC(), ActivatedAt: g.ActivatedAt, EndedAt: g.EndedAt,
	}
}

func relationBuckets(g control.CacheGeneration) int {
	if g.Family == cache.Relations {
		return g.Buckets
	}
	return 0
}

func inRedis(err error) string {
	switch {
	case err == nil:
		return "yes"
	case errors.Is(err, cache.ErrStamp):
		return "no"
	}
	return err.Error()
}

func cacheTable(w io.Writer, list []cacheJSON) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "FAMILY\tGENERATION\tSTATUS\tIN REDIS\tBEGUN\tPROGRESS\tWHY")
	for _, g := range list {
		why := g.Reason
		if g.EndedReason != "" {
			why = g.EndedReason
		}
		fmt.Fprintf(tw, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", g.Family, g.Generation, g.Status, g.InRedis, g.BegunAt.Format(time.RFC3339), progressWord(cache.Family(g.Family), g.Progress), why)
	}
	return tw.Flush()
}

// entriesOf is what a family's entries are called.
func entriesOf(f cache.Family) string {
	if f == cache.Heads {
		return "entries"
	}
	return string(f)
}

func progressWord(f cache.Family, p control.CacheProgress) string {
	read, about := progressOf(p)
	switch p.Phase {
	case "reading":
		return fmt.Sprintf("read %d of about %d", read, about)
	case "":
		return "announcing"
	}
	return fmt.Sprintf("%s, %d %s", p.Phase, read, entriesOf(f))
}

func progressOf(p control.CacheProgress) (read, about int64) {
	for _, s := range p.Shards {
		read += s.Read
		about += max(s.About, s.Read)
	}
	return read, about
}

func newCacheRebuild() *cobra.Command {
	var execute bool
	var reason string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "rebuild relations|counts",
		Short: "Rebuild what Redis says of relations, or of counts",
		Long: "Begin a new generation of one part of the cache, and follow it until it is active. The generation that is\n" +
			"active stays so until then. Without --execute nothing is begun.\n\n" +
			"relations: a cachefloor process reads every relation from the shards, throttled by cache.rebuild_rate, takes\n" +
			"what is committed meanwhile from the facts, and compares.\n" +
			"counts: the display processes copy the display table, throttled by cache.rebuild_rate, and compare. The table\n" +
			"itself stays as it is.",
		Args: func(cmd *cobra.Command, given []string) error {
			if len(given) != 1 || !slices.Contains(keptFamilies, cache.Family(given[0])) {
				return usagef("%s needs what to rebuild: relations or counts", cmd.CommandPath())
			}
			return nil
		},
	}
	at := whereFlags(cmd)
	as := asFlag(cmd)
	cmd.Flags().BoolVar(&execute, "execute", false, "begin it")
	cmd.Flags().StringVar(&reason, "reason", "asked for", "`WHY`, for the audit")
	cmd.Flags().DurationVar(&wait, "wait", time.Hour, "how long to wait until it is active; 0: not at all")
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		family := cache.Family(given[0])
		cfg, err := at.load(config.PartControl, config.PartRedis)
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
		begin, plan, err := rebuilding(cmd.Context(), cfg, db, family)
		if err != nil {
			return err
		}
		if !execute {
			fmt.Fprintf(cmd.OutOrStdout(), "would begin a new generation %s: give --execute to do so\n", plan)
			return nil
		}
		g, err := begin(cmd.Context(), who, reason)
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "generation %d is being rebuilt\n", g.ID)
		if wait <= 0 {
			return nil
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), wait)
		defer cancel()
		return followRebuild(ctx, db, g.Generation, newScreen(cmd.ErrOrStderr()))
	}
	return cmd
}

// rebuilding is how a family's generation is begun, and what follows.
func rebuilding(ctx context.Context, cfg config.Config, db *control.DB, f cache.Family) (begin func(ctx context.Context, who, reason string) (control.CacheGeneration, error), plan string, err error) {
	if f == cache.Relations {
		return func(ctx context.Context, who, reason string) (control.CacheGeneration, error) {
			return db.BeginCache(ctx, f, cfg.Cache.RelationBuckets, who, reason)
		}, fmt.Sprintf("with %d relation buckets and read every relation at %d/s", cfg.Cache.RelationBuckets, cfg.Cache.RebuildRate), nil
	}
	_, manifest, _, err := readContracts(ctx, cfg)
	if err != nil {
		return nil, "", err
	}
	return func(ctx context.Context, who, reason string) (control.CacheGeneration, error) {
		return db.BeginCountCache(ctx, manifest.ID, who, reason)
	}, fmt.Sprintf("of manifest %d and copy every count at %d/s per process", manifest.ID, cfg.Cache.RebuildRate), nil
}

// keeperOf is the role that looks after a family.
func keeperOf(f cache.Family) string {
	if f == cache.Counts {
		return "display"
	}
	return "cachefloor"
}

const followInterval = 500 * time.Millisecond

// followRebuild shows a rebuilding's progress until it has ended.
func followRebuild(ctx context.Context, db *control.DB, g cache.Generation, s *screen) error {
	m := s.meter("rebuilding", 0)
	defer m.end()
	for was := ""; ; {
		all, err := db.CacheGenerations(ctx, g.Family, listedGenerations)
		if err != nil {
			return err
		}
		for _, now := range all {
			if now.ID != g.ID {
				continue
			}
			switch now.Status {
			case control.CacheActive:
				read, _ := progressOf(now.Progress)
				s.say("generation %d is active: %d %s read, %d compared, %d in Redis", g.ID, read, entriesOf(g.Family), now.Progress.Sampled, now.Progress.Entries)
				return nil
			case control.CacheFailed, control.CacheRetired:
				return fmt.Errorf("generation %d has %s: %s", g.ID, now.Status, now.EndedReason)
			}
			if text := progressWord(now.Family, now.Progress); text != was {
				was = text
				read, _ := progressOf(now.Progress)
				m.set(read, text)
			}
		}
		if !pause.For(ctx, followInterval) {
			return fmt.Errorf("generation %d is not active yet: see `tidemark cache status`: does a %s process run?", g.ID, keeperOf(g.Family))
		}
	}
}
