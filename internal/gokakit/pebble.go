package gokakit

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
)

// maxSublevels is how far Pebble's level 0 may grow before writes wait.
const maxSublevels = 12

// pebbleOptions are those of a store without a write-ahead log.
//
// Pebble must never stall a writer itself: a stall ends only when a flush
// succeeds, on a full disk never, and a stalled store cannot even be closed.
// Writers wait in store.room instead, which a failure ends.
func (s *store) pebbleOptions(log *slog.Logger) *pebble.Options {
	o := &pebble.Options{
		FS:         s.opts.fs,
		Cache:      s.opts.cache,
		DisableWAL: true,
		// A batch of half a memtable skips it; see writeBatch.
		MemTableSize:                uint64(s.opts.writeBehind),
		MemTableStopWritesThreshold: 1000,
		L0CompactionThreshold:       4,
		L0StopWritesThreshold:       1000,
		MaxOpenFiles:                500,
		Logger:                      pebbleLog{log, s.trouble},
		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) { s.trouble(fmt.Sprintf("writing in the background: %v", err)) },
			DataCorruption:  s.corrupt,
			FlushEnd:        func(pebble.FlushInfo) { s.pokeMoved() },
			CompactionEnd:   func(pebble.CompactionInfo) { s.pokeMoved() },
		},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].Compression = func() *sstable.CompressionProfile { return sstable.NoCompression }
		o.Levels[i].BlockSize = 4 << 10
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
	s.trouble(fmt.Sprintf("reading damaged data: %v", i.Details))
}

func (s *store) pokeMoved() {
	select {
	case s.moved <- struct{}{}:
	default:
	}
}

// pebbleLog carries Pebble's lines to slog.
type pebbleLog struct {
	log     *slog.Logger
	trouble func(string)
}

func (l pebbleLog) Infof(f string, a ...any) {
	if l.log.Enabled(context.Background(), slog.LevelDebug) {
		l.log.Debug(fmt.Sprintf(f, a...))
	}
}

func (l pebbleLog) Errorf(f string, a ...any) { l.log.Error(fmt.Sprintf(f, a...)) }

// Fatalf says that the store must not be used any more. It fails the store,
// and returns where Pebble expects the process to end: nothing that the store
// does afterwards counts, since a failed store is neither read nor written,
// and the next opening reads what is on disk or, if that is damaged, the log.
func (l pebbleLog) Fatalf(f string, a ...any) { l.trouble(fmt.Sprintf(f, a...)) }
