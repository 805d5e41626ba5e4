package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// shardsRig is a deployment of databases only.
type shardsRig struct {
	t    *testing.T
	cfg  config.Config
	file string
	db   *control.DB
}

func newShardsRig(t *testing.T, shards int) *shardsRig {
	t.Helper()
	r := &shardsRig{t: t, file: filepath.Join(t.TempDir(), config.FileName)}
	r.cfg = theSystem(t).config(t)
	system := r.cfg.Control
	r.cfg.Shards, r.cfg.Postgres = shards, nil
	for n := range shards + 1 {
		name := fmt.Sprint("shards_rig_", n)
		r.exec(system, "CREATE DATABASE "+name)
		t.Cleanup(func() { r.exec(system, "DROP DATABASE "+name+" WITH (FORCE)") })
		url := strings.Replace(system, "/tidemark_control", "/"+name, 1)
		if n == shards {
			r.cfg.Control = url
			break
		}
		if err := relations.Migrate(t.Context(), url, n); err != nil {
			t.Fatal(err)
		}
		r.cfg.Postgres = append(r.cfg.Postgres, url)
	}
	if err := control.Migrate(t.Context(), r.cfg.Control); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.db, err = control.Open(t.Context(), r.cfg.Control); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.db.Close)
	topo, err := r.cfg.Topology()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.db.Bootstrap(t.Context(), topo.Config); err != nil {
		t.Fatal(err)
	}
	r.write()
	return r
}

func (r *shardsRig) write() {
	r.t.Helper()
	if err := r.cfg.Write(r.file); err != nil {
		r.t.Fatal(err)
	}
}

func (r *shardsRig) check(code int) (report shardsReport) {
	r.t.Helper()
	mustJSON(r.t, must(r.t, code, "shards", "check", "--output", "json", "--config", r.file).out, &report)
	return report
}

func (r *shardsRig) exec(url, sql string) {
	r.t.Helper()
	ctx := context.WithoutCancel(r.t.Context()) // also of cleanups
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		r.t.Error(err)
	}
}

// The map is shown, agrees with the shards, and every way of not agreeing is
// named with exit 3.
func TestShards(t *testing.T) {
	r := newShardsRig(t, 2)
	var list shardsReport
	mustJSON(t, must(t, exitOK, "shards", "list", "--output", "json", "--config", r.file).out, &list)
	if list.Map.ID != 1 || list.Map.Shards != 2 || len(list.Shards) != 2 || list.Shards[0].Slots+list.Shards[1].Slots != list.Map.Contract.Modulus || list.Shards[1].Epoch != 1 {
		t.Errorf("%+v", list)
	}
	if table := must(t, exitOK, "shards", "list", "--config", r.file).out; !strings.Contains(table, "map 1: 2 shards") || strings.Contains(table, "password") {
		t.Error(table)
	}
	store, err := relations.Open(t.Context(), relations.Config{URLs: r.cfg.Postgres, Map: topology.NewShardMap(1, 2), LoadMap: r.db.ShardMap})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	set := func(id string, desired topology.State) {
		t.Helper()
		_, err := store.Set(t.Context(), relations.Command{OperationID: id, Desired: desired, Relation: topology.Relation{Kind: topology.Like, User: "u7", Target: "V9001"}})
		if err != nil {
			t.Fatal(err)
		}
	}
	set("op-1", topology.Liked)
	if c := r.check(exitOK); len(c.Problems) != 0 || c.Shards[0].UsersChecked+c.Shards[1].UsersChecked != 1 {
		t.Errorf("%+v", c)
	}

	// Fenced, the running process goes on with the new map, by itself.
	for _, args := range [][]string{{"--reason", " "}, {"--reason", "x", "--wait", "0s"}} {
		must(t, exitUsage, append([]string{"shards", "fence", "--config", r.file}, args...)...)
	}
	must(t, exitOK, "shards", "fence", "--reason", "an old process is cut off", "--as", "ann", "--config", r.file)
	set("op-2", topology.Unliked)
	if c := r.check(exitOK); c.Map.ID != 2 || c.Shards[0].Epoch != 2 {
		t.Errorf("%+v", c)
	}
	if lines, err := r.db.Entries(t.Context(), "shard-map:2", 1); err != nil || len(lines) != 1 || lines[0].Who != "ann" {
		t.Errorf("the audit has %+v, error %v", lines, err)
	}

	// Interrupted after a shard, it is seen, and finished by the next run.
	next, _, err := r.db.StoredShardMap(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	next.ID = 3
	if err := r.db.StoreShardMap(t.Context(), next, 2); err != nil {
		t.Fatal(err)
	}
	r.exec(r.cfg.Postgres[1], "UPDATE shard SET map_epoch = 3")
	if c := r.check(exitDifferent); len(c.Problems) != 2 || !strings.Contains(c.Problems[0], "map 3 is stored and not active") || !strings.Contains(c.Problems[1], "shard 1 serves writers of map 3") {
		t.Errorf("%q", c.Problems)
	}
	must(t, exitOK, "shards", "fence", "--reason", "finish it", "--config", r.file)
	set("op-3", topology.Liked)
	r.check(exitOK)

	// A user on the wrong shard.
	home := next.Shard("u7")
	r.exec(r.cfg.Postgres[1-home], "INSERT INTO relation VALUES ('u7', 1, 'V1', 2, 1, now(), 'op', now(), now())")
	if c := r.check(exitDifferent); len(c.Problems) != 1 || !strings.Contains(c.Problems[0], `such as "u7"`) || c.Shards[1-home].Strays != 1 {
		t.Errorf("%q", c.Problems)
	}

	// Shards in another order do not answer as themselves: that is an error.
	r.cfg.Postgres[0], r.cfg.Postgres[1] = r.cfg.Postgres[1], r.cfg.Postgres[0]
	r.write()
	if res := must(t, exitError, "shards", "check", "--config", r.file); !strings.Contains(res.errOut, "check the order of the PostgreSQL URLs") {
		t.Error(res)
	}
}
