package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

func newShards() *cobra.Command {
	cmd := group(&cobra.Command{Use: "shards", Short: "Which users live on which relation shard, and whether every shard agrees"})
	cmd.AddCommand(newShardsList(), newShardsCheck(), newShardsFence())
	return cmd
}

// shardsReport is the shard map and what the shards say.
type shardsReport struct {
	Map      mapJSON     `json:"map"`
	Shards   []shardJSON `json:"shards"`
	Problems []string    `json:"problems"`
}

type mapJSON struct {
	ID       uint32                `json:"id"` // its epoch
	Shards   int                   `json:"shards"`
	Contract topology.HashContract `json:"contract"`
	// Successor is the id of a map that is stored and not active: somebody is
	// changing the map, or was interrupted. 0: none.
	Successor uint32 `json:"successor,omitempty"`
}

type shardJSON struct {
	Shard    int    `json:"shard"`
	Slots    int    `json:"slots"` // of the map
	Database string `json:"database"`
	// Epoch is the map whose writers the shard serves; 0: it does not answer.
	Epoch uint32 `json:"epoch"`
	Error string `json:"error,omitempty"`
	// UsersChecked and Strays are of shards check only.
	UsersChecked int `json:"usersChecked,omitempty"`
	Strays       int `json:"strays,omitempty"`
}

func newShardsList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: "The active shard map, and each shard with its part of it", Args: noArgs,
		Long: "The active shard map, and each shard: its share of the map's slots, its database, and the epoch (the\n" +
			"id of the map whose writers it serves).",
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, err := reportShards(cmd, at, out, nil)
		return err
	}
	return cmd
}

func newShardsCheck() *cobra.Command {
	var users int
	cmd := &cobra.Command{
		Use: "check", Short: "Compare the shard map with the shards; exit 3 when they differ", Args: noArgs,
		Long: "Compare the active shard map with the shards: that each is the one that the configuration says, serves\n" +
			"writers of this map, and has no user whom the map puts elsewhere. Exit 3 when something differs.",
	}
	at := whereFlags(cmd)
	out := outputFlag(cmd, "table", "json")
	cmd.Flags().IntVar(&users, "users", 100_000, "look at this many users of each shard, in the order of their ids; 0: at none")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if users < 0 {
			return usagef("--users %d is negative", users)
		}
		r, err := reportShards(cmd, at, out, func(ctx context.Context, cfg config.Config, m topology.ShardMap, r *shardsReport) error {
			return r.check(ctx, cfg, m, users)
		})
		if err != nil {
			return err
		}
		for _, s := range r.Shards {
			if s.Error != "" {
				return fmt.Errorf("shard %d: %s", s.Shard, s.Error)
			}
		}
		if len(r.Problems) > 0 {
			return errDifferent
		}
		return nil
	}
	return cmd
}

// reportShards reads the map and asks the shards, checks if there is a check,
// and prints.
func reportShards(cmd *cobra.Command, at *where, out *output, check func(context.Context, config.Config, topology.ShardMap, *shardsReport) error) (*shardsReport, error) {
	if err := out.check(); err != nil {
		return nil, err
	}
	cfg, err := at.load(config.PartControl, config.PartPostgres)
	if err != nil {
		return nil, err
	}
	m, r, err := readShards(cmd.Context(), cfg)
	if err == nil && check != nil {
		err = check(cmd.Context(), cfg, m, r)
	}
	if err != nil {
		return nil, err
	}
	return r, out.print(cmd.OutOrStdout(), r, r.table)
}

func readShards(ctx context.Context, cfg config.Config) (topology.ShardMap, *shardsReport, error) {
	db, err := control.Open(ctx, cfg.Control)
	if err != nil {
		return topology.ShardMap{}, nil, err
	}
	defer db.Close()
	active, err := db.ShardMap(ctx)
	if err != nil {
		return active, nil, err
	}
	_, shards, err := db.StoredShardMap(ctx, active.ID)
	if err != nil {
		return active, nil, err
	}
	r := &shardsReport{Map: mapJSON{ID: active.ID, Shards: shards, Contract: active.Contract}, Problems: []string{}}
	if _, _, err := db.StoredShardMap(ctx, active.ID+1); err == nil {
		r.Map.Successor = active.ID + 1
	}
	slots := make([]int, max(shards, len(cfg.Postgres)))
	for _, shard := range active.Slots {
		slots[shard]++
	}
	for shard, url := range cfg.Postgres {
		s := shardJSON{Shard: shard, Slots: slots[shard], Database: databaseOf(url)}
		if s.Epoch, err = relations.MapEpoch(ctx, url, shard); err != nil {
			s.Error = err.Error()
		}
		r.Shards = append(r.Shards, s)
	}
	return active, r, ctx.Err()
}

// databaseOf names a database without the password that its URL may have.
func databaseOf(url string) string {
	c, err := pgx.ParseConfig(url)
	if err != nil {
		return "?"
	}
	return fmt.Sprintf("%s:%d/%s", c.Host, c.Port, c.Database)
}

func (r *shardsReport) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (r *shardsReport) check(ctx context.Context, cfg config.Config, m topology.ShardMap, users int) error {
	if len(cfg.Postgres) != r.Map.Shards {
		r.problem("the configuration has %d shards, map %d was made for %d", len(cfg.Postgres), m.ID, r.Map.Shards)
	}
	if r.Map.Successor > 0 {
		r.problem("map %d is stored and not active: somebody is changing the map, or was interrupted: `tidemark shards fence` finishes it", r.Map.Successor)
	}
	for i := range r.Shards {
		s := &r.Shards[i]
		if s.Error != "" {
			continue
		}
		if s.Epoch != m.ID {
			r.problem("shard %d serves writers of map %d, but map %d is active: commands of its users are refused", s.Shard, s.Epoch, m.ID)
		}
		if users == 0 {
			continue
		}
		strays, looked, err := relations.Strays(ctx, cfg.Postgres[s.Shard], s.Shard, m.Shard, users)
		if err != nil {
			return err
		}
		s.UsersChecked, s.Strays = looked, len(strays)
		if len(strays) > 0 {
			r.problem("shard %d has facts of %d users whom map %d puts elsewhere, such as %q: nobody finds them there", s.Shard, len(strays), m.ID, strays[0])
		}
	}
	return nil
}

func (r *shardsReport) table(w io.Writer) error {
	fmt.Fprintf(w, "map %d: %d shards, %d slots, %s\n\n", r.Map.ID, r.Map.Shards, r.Map.Contract.Modulus, r.Map.Contract.Algorithm)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SHARD\tSLOTS\tEPOCH\tUSERS CHECKED\tDATABASE")
	for _, s := range r.Shards {
		epoch, users := fmt.Sprint(s.Epoch), "-"
		if s.Error != "" {
			epoch = "does not answer"
		}
		if s.UsersChecked > 0 {
			users = fmt.Sprint(s.UsersChecked)
		}
		fmt.Fprintf(tw, "%d\t%d\t%s\t%s\t%s\n", s.Shard, s.Slots, epoch, users, s.Database)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, p := range r.Problems {
		fmt.Fprintln(w, "WRONG:", p)
	}
	return nil
}
