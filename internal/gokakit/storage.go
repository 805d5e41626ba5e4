package gokakit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/lovoo/goka"
	"github.com/lovoo/goka/storage"
)

// stores hands out the open partitions of one table. Goka passes its own proxy
// to update callbacks, not our store, hence this look-up by partition.
type stores struct {
	table  string
	schema Schema
	dir    string // state directory of the table
	opts   storeOptions
	log    *slog.Logger

	mu     sync.RWMutex
	byPart map[int]*store
}

// Sizes of the state store.
const (
	cacheBytes         = 256 << 20 // per process
	defaultWriteBehind = 4 << 20   // per partition
)

var sharedCache = sync.OnceValue(func() *pebble.Cache { return pebble.NewCache(cacheBytes) })

func newStores(table string, schema Schema, dir string, writeBehind int, m *metrics, fs vfs.FS, log *slog.Logger) *stores {
	if writeBehind == 0 {
		writeBehind = defaultWriteBehind
	}
	if fs == nil {
		fs = vfs.Default
	}
	return &stores{table: table, schema: schema, dir: dir, log: log, byPart: map[int]*store{},
		opts: storeOptions{cache: sharedCache(), writeBehind: writeBehind, metrics: m, fs: fs}}
}

// get finds an open partition; nil when it is not open here.
func (t *stores) get(partition int) *store {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byPart[partition]
}

// open opens a partition's store and lists it.
func (t *stores) open(ctx context.Context, logs *topics, partition int) (*store, error) {
	b, err := logs.bounds(t.table, partition)
	if err != nil {
		return nil, err
	}
	opts := t.opts
	opts.dir = filepath.Join(t.dir, fmt.Sprintf("%s.%d", t.table, partition))
	s := newStore(fmt.Sprintf("%s/%d", t.table, partition), t.schema, opts)
	if err := s.open(t.log, b); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byPart[partition] = s
	return s, ctx.Err()
}

func (t *stores) close(partition int, s *store) error {
	t.mu.Lock()
	if t.byPart[partition] == s {
		delete(t.byPart, partition)
	}
	t.mu.Unlock()
	return s.close()
}

// update is goka's way of handing over log records.
func (t *stores) update(ctx goka.UpdateContext, _ storage.Storage, key string, value []byte) error {
	s := t.get(int(ctx.Partition()))
	if s == nil {
		return fmt.Errorf("table %s/%d: %w", t.table, ctx.Partition(), errClosed)
	}
	return s.replay(key, value, ctx.Offset())
}

// gokaStorage shows goka the part of a store that it needs: opening, closing,
// the offset to read the log from, and the end of recovery.
type gokaStorage struct {
	stores    *stores
	partition int
	logs      *topics
	opened    func(*store)
	recovered func(*store) error
	closing   func(*store)
	store     *store
}

var errThroughPartition = errors.New("tables are written through a Partition and read through it or a View")

func (g *gokaStorage) Open() error {
	s, err := g.stores.open(context.Background(), g.logs, g.partition)
	if err != nil {
		return err
	}
	g.store = s
	g.opened(s)
	return nil
}

func (g *gokaStorage) Close() error {
	if g.store == nil {
		return nil
	}
	g.closing(g.store)
	return g.stores.close(g.partition, g.store)
}

func (g *gokaStorage) GetOffset(none int64) (int64, error) {
	if off := g.store.offset(); off >= 0 {
		return off, nil
	}
	return none, nil
}

func (g *gokaStorage) MarkRecovered() error           { return g.recovered(g.store) }
func (g *gokaStorage) SetOffset(int64) error          { return nil } // part of each batch
func (g *gokaStorage) Get(key string) ([]byte, error) { return g.store.get(key) }
func (g *gokaStorage) Set(string, []byte) error       { return errThroughPartition }
func (g *gokaStorage) Delete(string) error            { return errThroughPartition }
func (g *gokaStorage) Has(key string) (bool, error) {
	v, err := g.store.get(key)
	return v != nil, err
}
func (g *gokaStorage) Iterator() (storage.Iterator, error) { return nil, errThroughPartition }
func (g *gokaStorage) IteratorWithRange(_, _ []byte) (storage.Iterator, error) {
	return nil, errThroughPartition
}
