package gokakit

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/VictoriaMetrics/fastcache"
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // they wait more than they compute
	testenv.Main(m)
}

// tally is the tests' schema. A key is 0003|group:user; a value holds the
// key's version and, after that change, the seq and count of the group's item
// that the user's first letter names, and the input offset that this includes.
type tally struct{}

type cell struct {
	version, seq uint64
	count        int64
	input        int64
}

func (c cell) encode() []byte {
	return fmt.Appendf(nil, "%d %d %d %d", c.version, c.seq, c.count, c.input)
}

func decodeCell(b []byte) (c cell, err error) {
	if b == nil {
		return cell{input: -1}, nil
	}
	_, err = fmt.Sscanf(string(b), "%d %d %d %d", &c.version, &c.seq, &c.count, &c.input)
	return c, err
}

func (tally) Version(value []byte) (uint64, error) {
	c, err := decodeCell(value)
	return c.version, err
}

func (tally) Derive(key string, value []byte, add func(Derived)) error {
	c, err := decodeCell(value)
	if err != nil {
		return err
	}
	group, item := tallyRow(key)
	add(Derived{Group: group, Item: item, Seq: c.seq, Value: value})
	return nil
}

func tallyRow(key string) (group, item string) {
	group, user, _ := strings.Cut(key[5:], ":")
	return group, user[:1]
}

// quiet logs errors only, or everything with TIDEMARK_TEST_LOG set.
func quiet() *slog.Logger {
	level := slog.LevelError + 4
	if os.Getenv("TIDEMARK_TEST_LOG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

var testCache = sync.OnceValue(func() *pebble.Cache { return pebble.NewCache(4 << 20) })

func mustMetrics() *metrics {
	m, err := newMetrics(nil, "test")
	if err != nil {
		panic(err)
	}
	return m
}

// testRows is small, so that rows are also read from disk.
var testRows = sync.OnceValue(func() *rowCache { return &rowCache{rows: fastcache.New(1)} })

// testStore opens partition 0 of 4 on fs.
func testStore(fs vfs.FS, weak Weakness, b logBounds) (*store, error) {
	return failingStore(fs, weak, b, nil)
}

func failingStore(fs vfs.FS, weak Weakness, b logBounds, onFail func(error)) (*store, error) {
	return storeOf(tally{}, fs, weak, b, onFail)
}

func storeOf(schema Schema, fs vfs.FS, weak Weakness, b logBounds, onFail func(error)) (*store, error) {
	s := newStore("table/0", schema, storeOptions{dir: "state/table.0", partition: 0, partitions: 4, cache: testCache(), rows: testRows(),
		writeBehind: 8 << 10, weak: weak, metrics: mustMetrics(), fs: fs, onFail: onFail})
	return s, s.open(quiet(), b)
}

func openStore(t testing.TB, fs vfs.FS, weak Weakness, b logBounds) *store {
	t.Helper()
	s, err := testStore(fs, weak, b)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.close() })
	return s
}

// unended is a log that no store is ahead of.
var unended = logBounds{end: 1 << 40}

// write puts a value, to be acked at an offset.
func (s *store) testPut(key string, c cell) (*write, error) {
	w := new(write)
	return w, s.put(w, key, c.encode(), false)
}

func (s *store) testAck(w *write, offset int64) error {
	w.offset = offset
	return s.ack([]*write{w})
}

// testTopology is the default with 4 count and 2 display partitions.
func testTopology(t testing.TB) *topology.Topology { return testTopologyOf(t, 4) }

func testTopologyOf(t testing.TB, partitions int) *topology.Topology {
	topo := testenv.Topology(t, func(c *topology.Config) { c.CountPartitions, c.DisplayPartitions, c.Shards = partitions, 2, 2 })
	topo.Groups = append(topo.Groups, topology.Group{Name: plainGroup, ID: "tidemark.plain", Inputs: []string{topology.BucketChanges}, Outputs: []string{topology.PartialCounts}})
	return topo
}

// plainGroup has no table.
const plainGroup = "plain"

const soon = 30 * time.Second
