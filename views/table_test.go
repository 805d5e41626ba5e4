package views

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// memoryTable is a table that a test writes.
type memoryTable struct {
	mu       sync.RWMutex
	rows     map[string][]byte
	notReady error
	onGet    func(key string) // after the row is read, before it is returned
	update   func(key string, value []byte)
}

func (m *memoryTable) Run(ctx context.Context) error { <-ctx.Done(); return nil }

func (m *memoryTable) Ready() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.notReady
}

func (m *memoryTable) Get(key string) ([]byte, error) {
	m.mu.RLock()
	value, err, onGet := m.rows[key], m.notReady, m.onGet
	m.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	if onGet != nil {
		onGet(key)
	}
	return value, nil
}

// put writes as a view does: reads see the row, then update is told of it.
func (m *memoryTable) put(key string, row *tidemarkv1.DisplayRow) {
	value, err := row.MarshalVT()
	if err != nil {
		panic(err)
	}
	m.putRaw(key, value)
}

func (m *memoryTable) putRaw(key string, value []byte) {
	m.mu.Lock()
	m.rows[key] = value
	m.mu.Unlock()
	m.update(key, value)
}

func (m *memoryTable) set(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notReady = err
}

func (m *memoryTable) atGet(f func(string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.onGet = f
}

var testNow = time.UnixMicro(1_000_000_000)

// smallTopology has 2 shards, 3 count partitions and 2 display partitions.
func smallTopology(t testing.TB) *topology.Topology {
	t.Helper()
	return testenv.Topology(t, func(c *topology.Config) { c.Shards, c.CountPartitions, c.DisplayPartitions = 2, 3, 2 })
}

func testDisplay(t testing.TB) (*Display, *memoryTable) {
	t.Helper()
	d, err := newDisplay(DisplayConfig{Topology: smallTopology(t), Logger: slog.New(slog.DiscardHandler),
		Registerer: prometheus.NewRegistry(), Now: func() time.Time { return testNow }})
	if err != nil {
		t.Fatal(err)
	}
	m := &memoryTable{rows: map[string][]byte{}, update: d.update}
	d.table = m
	return d, m
}

func snapshot(active int64, seq uint64) *tidemarkv1.DisplayRow {
	return &tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Snapshot{Snapshot: &tidemarkv1.DisplaySnapshot{
		Active: active, Seq: seq, Generation: 1, ManifestId: 4, GeneratedAtUs: 500_000_000, CommittedAtUs: 400_000_000,
		Partials: []*tidemarkv1.PartialCount{{Partition: 1, Active: active, Seq: seq, Generation: 1}},
	}}}
}

// progressRow says that a count partition is complete up to seals, by shard; 0
// says nothing of a shard. A seal n was sealed n ms after 1970.
func progressRow(count int, seq uint64, seals ...uint64) *tidemarkv1.DisplayRow {
	p := &tidemarkv1.PartitionProgress{Partition: uint32(count), Seq: seq}
	for shard, seal := range seals {
		if seal > 0 {
			p.Watermarks = append(p.Watermarks, &tidemarkv1.SourceWatermark{Shard: uint32(shard), Seal: seal, SealedAtUs: int64(seal) * 1000,
				Position: &tidemarkv1.SourcePosition{Shard: uint32(shard), PreviousCommitLsn: seal * 10, Lsn: seal*10 + 1}})
		}
	}
	return &tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Progress{Progress: p}}
}

// sealAll lets every pair of partitions say the same.
func (m *memoryTable) sealAll(seq uint64, seals ...uint64) {
	for d := range 2 {
		for c := range 3 {
			m.put(topology.ProgressKey(d, c), progressRow(c, seq, seals...))
		}
	}
}

func mustCount(t testing.TB, d *Display, id string) Count {
	t.Helper()
	c, err := d.Count(topology.Like, id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func asOfText(shards []ShardAsOf) string {
	s := ""
	for _, a := range shards {
		s += fmt.Sprintf("%d:%d ", a.Shard, a.Seal)
	}
	return s
}
