package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/config"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// feedRig is a deployment of one shard, each role a process of its own, whose
// change feed a test breaks.
type feedRig struct {
	t     *testing.T
	file  string // configuration
	cfg   config.Config
	topo  *topology.Topology
	store *relations.Store
	db    *pgx.Conn // of the shard
	ctl   *pgx.Conn
	web   *running // commands
	count *running // projection and display
	ops   int      // made so far
}

func newFeedRig(t *testing.T, change func(*config.Config)) *feedRig {
	t.Helper()
	dir, err := systemDir()
	if err != nil {
		t.Fatal(err)
	}
	s := &system{dir: dir}
	t.Cleanup(func() { removeSystem(t, s) })
	if err := s.start("--roles", "none", "--shards", "1", "--partitions", "2"); err != nil {
		t.Fatal(err)
	}
	r := &feedRig{t: t, cfg: s.config(t), file: filepath.Join(dir, "feed.yaml")}
	r.cfg.SealInterval = 100 * time.Millisecond
	r.cfg.RefreshInterval = 20 * time.Millisecond
	r.cfg.API.Listen = "127.0.0.1:0"
	if change != nil {
		change(&r.cfg)
	}
	if err := r.cfg.Write(r.file); err != nil {
		t.Fatal(err)
	}
	if r.topo, err = r.cfg.Topology(); err != nil {
		t.Fatal(err)
	}
	r.store, err = relations.Open(t.Context(), relations.Config{URLs: r.cfg.Postgres, Map: topology.NewShardMap(1, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.store.Close)
	r.db, r.ctl = r.connect(r.cfg.Postgres[0]), r.connect(r.cfg.Control)
	r.web = r.run("commands")
	r.web.await(t, readyLine)
	r.count = r.run("projection", "likers", "display")
	r.count.await(t, readyLine)
	return r
}

func (r *feedRig) connect(url string) *pgx.Conn {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), url)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// run starts roles in a process of their own, named after the first.
func (r *feedRig) run(roles ...string) *running {
	r.t.Helper()
	return run(r.t, append(append([]string{"run"}, roles...), "--config", r.file, "--instance", roles[0], "--ops-listen", "127.0.0.1:0")...)
}

func (r *feedRig) exec(sql string, args ...any) {
	r.t.Helper()
	if _, err := r.db.Exec(r.t.Context(), sql, args...); err != nil {
		r.t.Fatalf("%s: %v", sql, err)
	}
}

// commit sets n relations of new users and gives their outbox ids.
func (r *feedRig) commit(n int) []int64 {
	r.t.Helper()
	var after int64
	if err := r.db.QueryRow(r.t.Context(), "SELECT coalesce(max(id), 0) FROM outbox").Scan(&after); err != nil {
		r.t.Fatal(err)
	}
	for range n {
		r.ops++
		_, err := r.store.Set(r.t.Context(), relations.Command{
			OperationID: fmt.Sprint("op-", r.ops), Desired: topology.Liked,
			Relation: topology.Relation{Kind: topology.Like, User: fmt.Sprint("u", r.ops), Target: fmt.Sprint("V", r.ops%5)},
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
	rows, err := r.db.Query(r.t.Context(), "SELECT id FROM outbox WHERE id > $1 AND aggregatetype = 'relation' ORDER BY id", after)
	if err != nil {
		r.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || len(ids) != n {
		r.t.Fatalf("%d rows of %d, %v", len(ids), n, err)
	}
	return ids
}

// sealed waits until everything committed so far lies below a proven seal.
func (r *feedRig) sealed() {
	r.t.Helper()
	var last int64
	if err := r.db.QueryRow(r.t.Context(), "SELECT max(id) FROM outbox").Scan(&last); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, func() error {
		var ok bool
		err := r.db.QueryRow(r.t.Context(), "SELECT exists (SELECT FROM seal WHERE outbox_id > $1 AND proven)", last).Scan(&ok)
		if err == nil && !ok {
			err = fmt.Errorf("no proven seal above outbox id %d", last)
		}
		return err
	})
}

// verified waits until intake has verified everything committed so far.
func (r *feedRig) verified() {
	r.t.Helper()
	r.sealed()
	var last int64
	if err := r.db.QueryRow(r.t.Context(), "SELECT max(id) FROM outbox WHERE aggregatetype = 'relation'").Scan(&last); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, func() error {
		var settled int64
		err := r.ctl.QueryRow(r.t.Context(), "SELECT coalesce(max(settled_id), 0) FROM source WHERE shard = 0").Scan(&settled)
		if err == nil && settled < last {
			err = fmt.Errorf("intake has verified up to id %d, not %d", settled, last)
		}
		return err
	})
}

// gaps lists gaps, and checks the exit code against them.
func (r *feedRig) gaps(args ...string) []gapJSON {
	r.t.Helper()
	got := call(r.t, append([]string{"gaps", "list", "--config", r.file, "--output", "json"}, args...)...)
	var list []gapJSON
	mustJSON(r.t, got.out, &list)
	want := exitOK
	for _, g := range list {
		if g.State != "HEALED" {
			want = exitDifferent
		}
	}
	if got.code != want {
		r.t.Fatalf("want exit %d: %v", want, got)
	}
	return list
}

// awaitGaps waits until gaps name exactly these ids, for this cause.
func (r *feedRig) awaitGaps(cause string, ids []int64) []gapJSON {
	r.t.Helper()
	var list []gapJSON
	eventually(r.t, func() error {
		list = r.gaps("--all")
		var named []int64
		for _, g := range list {
			named = append(named, g.Ids...)
		}
		slices.Sort(named)
		if !slices.Equal(named, ids) {
			return fmt.Errorf("gaps name %v, want %v", named, ids)
		}
		return nil
	})
	for _, g := range list {
		// A slot's statistics may hide that it is a new one; that its position
		// jumped is then all that can be told.
		likely := g.Cause == cause || cause == "slot-recreated" && g.Cause == "position-jumped"
		if !likely || !g.Exact || g.Missing != int64(len(g.Ids)) || g.FirstSeen.IsZero() || g.State == "HEALED" {
			r.t.Errorf("gap %+v, want cause %s", g, cause)
		}
	}
	return list
}

// heal heals every gap, twice, and the counts are those of the facts.
func (r *feedRig) heal() {
	r.t.Helper()
	if out := must(r.t, exitOK, "gaps", "heal", "--all", "--config", r.file).out; !strings.Contains(out, "would heal") {
		r.t.Errorf("a dry run says %s", out)
	}
	must(r.t, exitOK, "gaps", "heal", "--all", "--yes", "--as", "ann", "--config", r.file)
	for _, g := range r.gaps("--all") {
		if g.State != "HEALED" || g.HealedBy != "ann" || g.HealedAt == nil {
			r.t.Errorf("gap %+v", g)
		}
	}
	if list := r.gaps(); len(list) > 0 {
		r.t.Errorf("open gaps %+v", list)
	}
	must(r.t, exitOK, "gaps", "heal", "--all", "--yes", "--config", r.file)
	r.equal()
}

func (r *feedRig) equal() {
	r.t.Helper()
	if report := wantVerdict(r.t, exitOK, "--config", r.file); report.Relations != int64(r.ops) {
		r.t.Errorf("%d relations are counted, %d were set", report.Relations, r.ops)
	}
}

// admin asks Kafka.
func (r *feedRig) admin(do func(*kadm.Client)) {
	r.t.Helper()
	client, err := kafkaadmin.Client(r.cfg.Kafka.Brokers, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	do(kadm.NewClient(client))
}

// fed waits until every row committed so far is in the change feed.
func (r *feedRig) fed() {
	r.t.Helper()
	var lsn string
	if err := r.db.QueryRow(r.t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&lsn); err != nil {
		r.t.Fatal(err)
	}
	eventually(r.t, func() error {
		var ok bool
		err := r.db.QueryRow(r.t.Context(), "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2", lsn, slotName(r.cfg.Prefix, 0)).Scan(&ok)
		if err == nil && !ok {
			err = fmt.Errorf("the slot is not confirmed up to %s", lsn)
		}
		return err
	})
}

// passedOn reads which outbox rows intake has passed on.
func (r *feedRig) passedOn() map[int64]bool {
	r.t.Helper()
	came := map[int64]bool{}
	r.read(topology.Facts, func(rec *kgo.Record) {
		var c tidemarkv1.RelationChange
		if err := c.UnmarshalVT(rec.Value); err != nil {
			r.t.Fatal(err)
		}
		came[c.OutboxId] = true
	})
	return came
}

// read reads a stream of one partition from its start to its end.
func (r *feedRig) read(stream string, each func(*kgo.Record)) {
	r.t.Helper()
	topic := r.topo.Topic(stream)
	var end int64
	r.admin(func(admin *kadm.Client) {
		ends, err := admin.ListEndOffsets(r.t.Context(), topic)
		if err != nil {
			r.t.Fatal(err)
		}
		o, _ := ends.Lookup(topic, 0)
		end = o.Offset
	})
	client, err := kafkaadmin.Client(r.cfg.Kafka.Brokers, nil, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		r.t.Fatal(err)
	}
	defer client.Close()
	for last := int64(-1); last < end-1; {
		fetches := client.PollFetches(r.t.Context())
		if err := fetches.Err(); err != nil {
			r.t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) { each(rec); last = rec.Offset })
	}
}

// truncate makes the broker lose the whole change feed.
func (r *feedRig) truncate() {
	r.t.Helper()
	r.admin(func(admin *kadm.Client) {
		ends, err := admin.ListEndOffsets(r.t.Context(), r.topo.Topic(topology.CDC))
		if err != nil {
			r.t.Fatal(err)
		}
		answer, err := admin.DeleteRecords(r.t.Context(), ends.Offsets())
		if err == nil {
			err = answer.Error()
		}
		if err != nil {
			r.t.Fatal(err)
		}
	})
}

func (r *feedRig) dropSlot() {
	r.t.Helper()
	r.exec("SELECT pg_drop_replication_slot($1)", slotName(r.cfg.Prefix, 0))
}

func (r *feedRig) createSlot() {
	r.t.Helper()
	r.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slotName(r.cfg.Prefix, 0))
}
