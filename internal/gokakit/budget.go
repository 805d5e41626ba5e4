package gokakit

import (
	"sync"
	"sync/atomic"
)

// budget bounds the records and bytes that wait for their acks, all partitions
// of a processor together. Who wants more waits.
//
// A record that is alone is let through, however large.
type budget struct {
	maxRecords, maxBytes int64
	records, bytes       atomic.Int64
	waiting              atomic.Int64 // who waits for room

	mu   sync.Mutex
	room *sync.Cond
	err  error // why there will be no more room
}

func (b *budget) init(records, bytes int64) {
	b.maxRecords, b.maxBytes = records, bytes
	b.room = sync.NewCond(&b.mu)
}

// acquire takes room for one record, or says why there will be none.
func (b *budget) acquire(bytes int) error {
	for {
		if b.take(int64(bytes)) {
			return nil
		}
		if err := b.wait(int64(bytes)); err != nil {
			return err
		}
	}
}

func (b *budget) take(bytes int64) bool {
	records, all := b.records.Add(1), b.bytes.Add(bytes)
	if records == 1 || records <= b.maxRecords && all <= b.maxBytes {
		return true
	}
	b.release(1, int(bytes))
	return false
}

// force takes room that may not be there.
func (b *budget) force(bytes int) {
	b.records.Add(1)
	b.bytes.Add(int64(bytes))
}

// wait returns when there seems to be room. It announces itself before it
// looks, and release looks for it after it has made room: one of the two sees
// the other.
func (b *budget) wait(bytes int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	for b.err == nil && !b.fits(bytes) {
		b.room.Wait()
	}
	return b.err
}

func (b *budget) fits(bytes int64) bool {
	records := b.records.Load()
	return records <= 0 || records < b.maxRecords && b.bytes.Load()+bytes <= b.maxBytes
}

// release gives room back and returns what is left in use.
func (b *budget) release(records, bytes int) (int64, int64) {
	left, leftBytes := b.records.Add(-int64(records)), b.bytes.Add(-int64(bytes))
	if b.waiting.Load() > 0 {
		b.mu.Lock()
		b.room.Broadcast()
		b.mu.Unlock()
	}
	return left, leftBytes
}

// poison ends all waiting, now and later.
func (b *budget) poison(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.err = err
	b.room.Broadcast()
}
