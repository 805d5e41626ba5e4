package gokakit

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
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

	loading chan struct{} // has room for one load more

	mu     sync.RWMutex
	byPart map[int]*store
}

// Sizes of the state store.
const (
	cacheBytes         = 64 << 20 // of Pebble's blocks, per process
	defaultWriteBehind = 4 << 20  // per partition
)

var sharedCache = sync.OnceValue(func() *pebble.Cache { return pebble.NewCache(cacheBytes) })

func newStores(table string, partitions int, schema Schema, dir string, opts storeOptions, log *slog.Logger) *stores {
	opts.partitions = partitions
	if opts.writeBehind == 0 {
		opts.writeBehind = defaultWriteBehind
	}
	if opts.fs == nil {
		opts.fs = vfs.Default
	}
	if opts.rows == nil {
		opts.rows = sharedRows()
	}
	if opts.cache == nil {
		opts.cache = sharedCache()
	}
	return &stores{table: table, schema: schema, dir: dir, log: log, byPart: map[int]*store{}, opts: opts, loading: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// get finds an open partition; nil when it is not open here.
func (t *stores) get(partition int) *store {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byPart[partition]
}

// open opens a partition's store and lists it. onFail is told when it fails
// later.
func (t *stores) open(logs *topics, partition int, onFail func(error)) (*store, error) {
	b, err := logs.bounds(t.table, partition)
	if err != nil {
		return nil, err
	}
	opts := t.opts
	opts.partition, opts.onFail = partition, onFail
	opts.dir = filepath.Join(t.dir, fmt.Sprintf("%s.%d", t.table, partition))
	s := newStore(fmt.Sprintf("%s/%d", t.table, partition), t.schema, opts)
	if err := s.open(t.log, b); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byPart[partition] = s
	return s, nil
}

func (t *stores) close(partition int, s *store) error {
	t.mu.Lock()
	if t.byPart[partition] == s {
		delete(t.byPart, partition)
	}
	t.mu.Unlock()
	return s.close()
}

// replay hands a log record over; changed is whether reads now differ.
func (t *stores) replay(ctx goka.UpdateContext, key string, value []byte) (changed bool, err error) {
	s := t.get(int(ctx.Partition()))
	if s == nil {
		return false, fmt.Errorf("table %s/%d: %w", t.table, ctx.Partition(), errClosed)
	}
	return s.replay(key, value, ctx.Offset())
}

// keeper is who uses a store through goka: a processor's attempt or a view.
type keeper interface {
	// opened is told of a store before the log is read into it.
	opened(partition int, s *store)
	// load may read the log before goka does.
	load(partition int, s *store) error
	// recovered is told that the log is read to its end; goka calls it for
	// standby partitions too, may still do so after closing, and does so when it
	// has given up reading.
	recovered(partition int, s *store) error
	// closing is told before a store is closed.
	closing(partition int, s *store)
	// fail ends the attempt or the view, which is then built anew.
	fail(err error)
}

// gokaStorage shows goka the part of a store that it needs: opening, closing,
// the offset to read the log from, and the end of recovery.
type gokaStorage struct {
	stores    *stores
	partition int
	logs      *topics
	keeper    keeper
	store     *store
	loads     int
}

var errThroughPartition = errors.New("tables are written through a Partition and read through it or a View")

func (g *gokaStorage) Open() error {
	s, err := g.stores.open(g.logs, g.partition, g.keeper.fail)
	if err != nil {
		return err
	}
	g.store = s
	g.keeper.opened(g.partition, s)
	return nil
}

func (g *gokaStorage) Close() error {
	if g.store == nil {
		return nil
	}
	g.keeper.closing(g.partition, g.store)
	return g.stores.close(g.partition, g.store)
}

// GetOffset is asked each time that goka begins to read the log. The first time
// most of it is read here; from the second on it may have become another one.
func (g *gokaStorage) GetOffset(none int64) (int64, error) {
	if g.loads++; g.loads == 1 {
		if err := g.keeper.load(g.partition, g.store); err != nil {
			g.keeper.fail(err)
			return 0, err
		}
	} else {
		b, err := g.logs.bounds(g.stores.table, g.partition)
		if err != nil {
			return 0, err
		}
		if err := g.store.recheck(b); err != nil {
			g.keeper.fail(err)
			return 0, err
		}
	}
	if off := g.store.offset(); off >= 0 {
		return off, nil
	}
	return none, nil
}

// MarkRecovered may be called more than once.
func (g *gokaStorage) MarkRecovered() error {
	g.store.needFilter()
	return g.keeper.recovered(g.partition, g.store)
}

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
