package gokakit

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// Of every table on disk.
const (
	filterBitsOnDisk = 10 // per name
	blockSize        = 4 << 10
)

// pebbleOptions are those of a store without a write-ahead log.
func (s *store) pebbleOptions(log *slog.Logger) *pebble.Options {
	o := &pebble.Options{
		FS:         newSinkFS(s.opts.fs, s.opts.dir, s.trouble),
		Cache:      s.opts.cache,
		DisableWAL: true,
		// A batch of half a memtable skips it; see writeBatch.
		MemTableSize:          uint64(s.opts.writeBehind),
		L0CompactionThreshold: 8, // reads of recent rows do not come here; see rowCache
		MaxOpenFiles:          500,
		Logger:                pebbleLog{log},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { s.trouble(fmt.Sprintf("writing in the background: %v", err)) },
			DataCorruption:  s.corrupt,
		},
	}
	// Without a write-ahead log a loaded table must not wait in RAM.
	o.Experimental.DisableIngestAsFlushable = func() bool { return true }
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(filterBitsOnDisk)
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
		o.Levels[i].BlockSize = blockSize
	}
	return o
}

// trouble fails the store for what Pebble met on disk. Pebble calls it with
// its own locks held, hence the goroutine.
func (s *store) trouble(what string) {
	if s.broken.CompareAndSwap(false, true) {
		go s.fail(fmt.Errorf("table %s: state store in %s: %s", s.where, s.opts.dir, what))
	}
}

func (s *store) corrupt(i pebble.DataCorruptionInfo) {
	s.damaged.Store(true)
	if !s.opened.Load() {
		return // open looks
	}
	s.trouble(fmt.Sprintf("reading damaged data: %v", i.Details))
}

// pebbleLog carries Pebble's lines to slog.
type pebbleLog struct{ log *slog.Logger }

func (l pebbleLog) Infof(f string, a ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug(fmt.Sprintf(f, a...))
	}
}

func (l pebbleLog) Errorf(f string, a ...any) { l.log.Error(fmt.Sprintf(f, a...)) }

// Fatalf is told of what Pebble must not go on after, and must not return. What
// a disk can cause does not come here: see sinkFS, and corrupt.
func (l pebbleLog) Fatalf(f string, a ...any) { panic("state store: " + fmt.Sprintf(f, a...)) }
