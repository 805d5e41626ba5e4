//go:build real

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/emitters/cdc"
	"github.com/tidemark/tidemark/internal/debezium"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

const (
	feedShards = 4
	// Commands of a test that compares all of the feeds' records and what is
	// counted from them, and of one that only goes on and off under load.
	allCommands, someCommands = 100_000, 2000
	feedWriters               = 64
	// debeziumVersion is what the records of the worker say of themselves.
	debeziumVersion = "3.6.1.Final"
)

// feeds are relation shards whose outboxes both feeds read, each with slots
// and a topic of its own.
type feeds struct {
	t       *testing.T
	urls    []string
	prefix  string
	workers []debezium.Connector // Debezium's, by shard
	stop    func()               // ends the built-in emitters
	shared  bool                 // see share
	builtIn *topology.Topology   // topic of the built-in emitter
	other   *topology.Topology   // topic of Debezium
}

func newFeeds(t *testing.T) *feeds {
	if where.connect.URL == "" {
		t.Skip("no Connect worker runs: run `make real-up DEBEZIUM=1`")
	}
	f := &feeds{t: t}
	for _, topo := range []**topology.Topology{&f.builtIn, &f.other} {
		brokers := testenv.Kafka(t)
		*topo = testenv.Topology(t, func(c *topology.Config) { c.Shards, c.ReplicationFactor = feedShards, len(where.kafka) })
		testenv.CreateTopics(t, brokers, *topo)
	}
	f.prefix = f.other.Config.Prefix
	for shard := range feedShards {
		url := testenv.Postgres(t)
		if err := relations.Migrate(t.Context(), url, shard); err != nil {
			t.Fatal(err)
		}
		f.urls = append(f.urls, url)
		// The least there is: a large transaction is streamed before it commits.
		var none string
		if err := f.query(shard, &none, `ALTER DATABASE `+pgx.Identifier{databaseOf(t, url)}.Sanitize()+` SET logical_decoding_work_mem = '64kB'`); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			t.Fatal(err)
		}
	}
	return f
}

func databaseOf(t *testing.T, url string) string {
	t.Helper()
	c, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return c.Database
}

// share makes both feeds use one slot per shard, and Debezium's topic.
func (f *feeds) share() { f.shared, f.builtIn = true, f.other }

func (f *feeds) slot(feed string, shard int) string {
	if f.shared {
		feed = "shard"
	}
	return fmt.Sprintf("%s_%s_%d", strings.ReplaceAll(f.prefix, ".", "_"), feed, shard)
}

// startDebezium gives the worker a connector per shard and waits until each
// has its slot.
func (f *feeds) startDebezium() {
	f.t.Helper()
	for shard, url := range f.urls {
		c, err := debezium.Config{
			Prefix: f.prefix, Shard: shard, Shards: feedShards, PostgresURL: url,
			Topic: f.other.Topic(topology.CDC), Slot: f.slot("debezium", shard),
		}.Connector()
		if err != nil {
			f.t.Fatal(err)
		}
		f.workers = append(f.workers, c)
		f.t.Cleanup(f.stopDebezium)
		ctx, cancel := context.WithTimeout(f.t.Context(), patience)
		defer cancel()
		if err := where.connect.Apply(ctx, c); err != nil {
			f.t.Fatal(err)
		}
	}
	for shard := range f.urls {
		f.awaitSlot(shard, f.slot("debezium", shard), true)
	}
}

// stopDebezium removes every connector and waits until it has let go of its
// slot; a second call does nothing.
func (f *feeds) stopDebezium() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, c := range f.workers {
		if err := where.connect.Remove(ctx, c.Name); err != nil {
			f.t.Error(err)
		}
	}
	for shard := range f.workers {
		f.awaitSlot(shard, f.slot("debezium", shard), false)
	}
	f.workers = nil
}

// restartDebezium stops and starts every connector's task in order.
func (f *feeds) restartDebezium() {
	f.t.Helper()
	for _, c := range f.workers {
		if err := where.connect.Restart(f.t.Context(), c.Name); err != nil {
			f.t.Fatal(err)
		}
	}
}

// awaitSlot waits until somebody, or nobody, reads from a slot.
func (f *feeds) awaitSlot(shard int, slot string, want bool) {
	f.t.Helper()
	testenv.Eventually(f.t, patience, func() error {
		var active bool
		err := f.query(shard, &active, `SELECT active FROM pg_replication_slots WHERE slot_name = '`+slot+`'`)
		if err == nil && active != want {
			err = fmt.Errorf("slot %s: active is %v", slot, active)
		}
		return err
	})
}

// connect is a connection that lasts until the test ends.
func (f *feeds) connect(shard int) *pgx.Conn {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.urls[shard])
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func (f *feeds) query(shard int, v any, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience) // also while the test cleans up
	defer cancel()
	conn, err := pgx.Connect(ctx, f.urls[shard])
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return conn.QueryRow(ctx, sql).Scan(v)
}

// startBuiltIn runs our emitter for every shard until stop or the test's end.
// It calls itself what Debezium does, so that fewer fields need to be
// normalised.
func (f *feeds) startBuiltIn() (stop func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	stop = func() { cancel(); done.Wait() }
	f.t.Cleanup(stop)
	for shard, url := range f.urls {
		e, err := cdc.New(cdc.Config{
			Shard: shard, URL: url, Slot: f.slot("built_in", shard), Publication: relations.Publication,
			Brokers: where.kafka, Topic: f.builtIn.Topic(topology.CDC), Partition: shard,
			ServerName: f.prefix, Version: debeziumVersion,
		})
		if err != nil {
			f.t.Fatal(err)
		}
		done.Go(func() {
			if err := e.Run(ctx); err != nil {
				f.t.Errorf("emitter of shard %d: %v", shard, err)
			}
		})
		testenv.Eventually(f.t, patience, e.Ready)
	}
	return stop
}

// oddIDs are what JSON, keys and regular expressions could trip over.
var oddIDs = []string{
	"a:b%c|d", `quote"back\slash/`, "<script>&amp;'", "žluťoučký", "影片", "😀👍🏽", "line\u2028sep\u2029", "\u00a0\ufeff", "\u0085next", "null", "  ", "{}", "$1", "-1e9",
	strings.Repeat("長", 85),
}

// command is a command of some kind; some repeat a state and lead to nothing.
func command(rnd *rand.Rand) relations.Command {
	id := func(kind string) string {
		if rnd.IntN(8) == 0 {
			return oddIDs[rnd.IntN(len(oddIDs))]
		}
		return fmt.Sprint(kind, rnd.IntN(200))
	}
	states := map[topology.Kind][]topology.State{
		topology.Like:     {topology.Liked, topology.Unliked, topology.Disliked},
		topology.Favorite: {topology.Favorited, topology.Unfavorited},
		topology.Follow:   {topology.Following, topology.Unfollowed},
	}
	kinds := topology.Kinds()
	kind := kinds[rnd.IntN(len(kinds))]
	return relations.Command{
		OperationID: fmt.Sprintf("op-%x", rnd.Uint64()),
		Relation:    topology.Relation{Kind: kind, User: id("u"), Target: id("v")},
		Desired:     states[kind][rnd.IntN(len(states[kind]))],
	}
}

// writeSome is a while of traffic.
func (f *feeds) writeSome() { f.t.Helper(); f.write(someCommands) }

// write commits commands and, meanwhile, seals and their proofs.
func (f *feeds) write(commands int) {
	f.t.Helper()
	store, err := relations.Open(f.t.Context(), relations.Config{URLs: f.urls, Map: topology.NewShardMap(1, feedShards)})
	if err != nil {
		f.t.Fatal(err)
	}
	defer store.Close()
	sealing, stop := context.WithCancel(f.t.Context())
	var sealers, writers sync.WaitGroup
	for shard, url := range f.urls {
		s, err := relations.NewSealer(relations.SealerConfig{Shard: shard, URL: url, Interval: 100 * time.Millisecond})
		if err != nil {
			f.t.Fatal(err)
		}
		sealers.Go(func() { _ = s.Run(sealing) }) // ends with its context
	}
	for w := range feedWriters {
		writers.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), uint64(time.Now().UnixNano())))
			for range commands / feedWriters {
				if _, err := store.Set(f.t.Context(), command(rnd)); err != nil {
					f.t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	stop()
	sealers.Wait()
}
