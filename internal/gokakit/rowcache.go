package gokakit

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"github.com/VictoriaMetrics/fastcache"
)

// rowCache keeps rows that have reached Pebble in RAM, outside the garbage
// collector's sight, for all stores of the process: a point read of Pebble
// costs twenty times as much. A store enters a row when it is on disk and
// before it leaves the frozen set, and newer writes of it stand above, so an
// entry is never older than the disk. Each opening of a store has a number of
// its own, so that nothing of an earlier one is found.
type rowCache struct {
	rows *fastcache.Cache
}

// cachePrefix is the length of a store's number before a name.
const cachePrefix = 4

const rowCacheBytes = 224 << 20 // per process

var sharedRows = sync.OnceValue(func() *rowCache { return &rowCache{rows: fastcache.New(rowCacheBytes)} })

var lastOpening atomic.Uint32

// newOpening is the prefix of a store's names in the cache.
func newOpening() (p [cachePrefix]byte) {
	binary.BigEndian.PutUint32(p[:], lastOpening.Add(1))
	return p
}

// get finds a row by prefix and name; nil when it is not here.
func (c *rowCache) get(name []byte) []byte {
	v, found := c.rows.HasGet(nil, name)
	if !found {
		return nil
	}
	return v
}

func (c *rowCache) set(name, value []byte) { c.rows.Set(name, value) }
