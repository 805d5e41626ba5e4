package likers

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

// A liker takes at most 120 bytes on disk: its row of the table, its entry in
// the list, and their share of filters and indexes. User ids of 11 bytes,
// target ids of 11.
func TestBytesOnDiskPerLiker(t *testing.T) {
	if testing.Short() {
		t.Skip("100,000 likers")
	}
	const likers, most = 100_000, 120
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	cl := producer(t, brokers)
	cfg := testConfig(brokers, topo, t.TempDir(), 0)
	cfg.WriteBehind = 0
	for i := range likers {
		c := like(cfg.Reverse, fmt.Sprintf("user%07d", i), fmt.Sprintf("video%06d", i%100*(i%100)), 1, topology.Liked, 1_700_000_000_000_000+int64(i)*1000)
		cl.Produce(t.Context(), likerRecord(t, topo, c), nil)
	}
	if err := cl.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	awaitCommitted(t, cl, topo)
	cancel()
	<-done // the stores are flushed
	each := float64(tableBytes(t, cfg.StateDir)) / likers
	t.Logf("%.1f bytes per liker", each)
	if each > most || each < 20 {
		t.Errorf("%.1f bytes per liker, at most %d are allowed", each, most)
	}
}

// tableBytes are the bytes of the stores' tables below dir.
func tableBytes(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".sst" {
			return err
		}
		info, err := d.Info()
		if err == nil {
			n += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
