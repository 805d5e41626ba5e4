package likers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// partHeads keeps a partition's parts of heads while the partition is owned.
//
//	Settled ──▶ which relations of hot lists have changed, up to which offset
//	               │
//	snapshot ──────┴──▶ head ──▶ one script per part: entries, offset, watermarks
//
// A part is what the index shows at an offset, never more: entries come from a
// snapshot, and what it says of itself is of the same one. Settled only tells
// where to look, so it must have told of everything that the snapshot has.
// Nothing waits for Redis: neither changes nor pages.
type partHeads struct {
	likers  *Likers
	cfg     HeadsConfig
	part    *gokakit.Partition
	metrics *headMetrics
	redis   *cache.HeadWriter
	log     *slog.Logger
	heat    *heat

	claimed bool // of the handler's goroutine

	mu      sync.Mutex
	epoch   int64 // place of this owner's claim in the table's log, plus 1; 0: not known yet
	settled int64 // offset up to which changes are told
	lists   map[string]*hotList

	// Of the goroutine of run.
	generation cache.Generation
	writes     uint64
	shown      int // of the metric
}

// hotList is a list of which a part is kept.
type hotList struct {
	of     cache.HeadOf
	shards []int
	// since is the offset that a snapshot must reach to be filled from: what came
	// before was not told.
	since int64
	// changed has the keys of relations that are to be read again, each with the
	// offset of its last change; nil when they were too many.
	changed     map[string]int64
	standsUntil time.Time // by when its part expires

	// Of the goroutine of run.
	head    *head
	said    *tidemarkv1.HeadPart // by the part as it stands; nil: it is written whole
	wroteAt time.Time
}

// claim says in the table's log, once, that this owner writes from here on.
func (h *partHeads) claim() error {
	if h == nil || h.claimed {
		return nil
	}
	key := topology.ClaimKey(h.part.Number())
	value, err := h.part.Get(key)
	if err != nil {
		return err
	}
	var row tidemarkv1.LikerRow
	if err := decodeRow(value, &row); err != nil {
		return err
	}
	next := &tidemarkv1.OwnerClaim{Number: row.GetClaim().GetNumber() + 1}
	if err := put(h.part, key, &tidemarkv1.LikerRow{Body: &tidemarkv1.LikerRow_Claim{Claim: next}}); err != nil {
		return err
	}
	h.claimed = true
	return nil
}

// told is Settled's: a row of key is acked at offset.
func (h *partHeads) told(key string, offset int64) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settled = offset
	if h.epoch == 0 && key == topology.ClaimKey(h.part.Number()) {
		h.epoch = offset + 1
	}
	if len(h.lists) == 0 {
		return
	}
	var buf [256]byte
	list := h.lists[string(appendTarget(buf[:0], key))]
	switch {
	case list == nil || list.changed == nil:
	case len(list.changed) >= maxHeadChanges:
		list.changed = nil
	default:
		list.changed[key] = offset
	}
}

// appendTarget appends the target key of a liker key: like:V9001 of
// 0003|0001|000c|like:u7:V9001. It appends nothing of another key.
func appendTarget(b []byte, key string) []byte {
	_, _, _, rest, ok := topology.CutLikerKey(key)
	first, last := strings.IndexByte(rest, ':'), strings.LastIndexByte(rest, ':')
	if !ok || first < 0 || first == last {
		return b
	}
	return append(append(b, rest[:first]...), rest[last:]...)
}

const (
	// headPause is how soon a part follows what the index shows.
	headPause = 5 * time.Millisecond
	// choosePause is how often lists are chosen.
	choosePause = 500 * time.Millisecond
	// headErrorPause is what follows on a Redis that does not answer.
	headErrorPause = 500 * time.Millisecond
)

// run keeps parts until ctx ends.
func (h *partHeads) run(ctx context.Context) {
	defer h.end()
	var chosen time.Time
	for wait := headPause; pause.For(ctx, wait); {
		wait = headPause
		var cooled []cache.HeadOf
		if now := time.Now(); now.Sub(chosen) >= min(choosePause, h.cfg.window/4) {
			chosen, cooled = now, h.choose(now)
			h.show()
		}
		switch err := h.step(ctx, cooled); {
		case errors.Is(err, cache.ErrFenced):
			h.log.Info("a later owner keeps heads of this partition: nothing more is written here", "error", err)
			<-ctx.Done()
			return
		case err != nil && ctx.Err() == nil:
			h.log.Debug("heads of hot lists are not written, pages are read from the index", "error", err)
			wait = headErrorPause
		}
	}
}

// show brings the metric up to date.
func (h *partHeads) show() {
	h.mu.Lock()
	n := len(h.lists)
	h.mu.Unlock()
	h.metrics.lists.Add(float64(n - h.shown))
	h.shown = n
}

// end takes the parts away as far as that goes quickly: who comes next may not
// keep these lists.
func (h *partHeads) end() {
	h.mu.Lock()
	epoch := h.epoch
	var parts []cache.HeadOf
	for _, list := range h.lists {
		if list.said != nil {
			parts = append(parts, list.of)
		}
	}
	clear(h.lists)
	h.mu.Unlock()
	h.show()
	if len(parts) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	_ = h.redis.Remove(ctx, h.generation, epoch, parts) // they expire
}

// endTimeout is short beside what a partition takes to move.
const endTimeout = 100 * time.Millisecond

// step brings every part to what the index shows now.
func (h *partHeads) step(ctx context.Context, cooled []cache.HeadOf) error {
	h.mu.Lock()
	epoch, lists := h.epoch, maps.Clone(h.lists)
	h.mu.Unlock()
	g, ok := h.cfg.Active()
	if !ok || epoch == 0 {
		h.forget(lists)
		return nil
	}
	if g != h.generation {
		h.forget(lists)
		h.generation = g
	}
	ctx, cancel := context.WithTimeout(ctx, headTimeout)
	defer cancel()
	if len(cooled) > 0 {
		if err := h.redis.Remove(ctx, g, epoch, cooled); err != nil {
			return err
		}
	}
	if len(lists) == 0 {
		return nil
	}
	changes, written, err := h.prepare(epoch, lists)
	if err != nil || len(changes) == 0 {
		return err
	}
	return h.write(ctx, changes, written)
}

// forget has every part written whole again.
func (h *partHeads) forget(lists map[string]*hotList) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, list := range lists {
		list.said, list.standsUntil = nil, time.Time{}
	}
}

// prepare makes the changes of parts that are due.
func (h *partHeads) prepare(epoch int64, lists map[string]*hotList) (changes []cache.HeadChange, written []*hotList, err error) {
	err = h.part.Snapshot(func(s *gokakit.Snapshot) error {
		offset, err := s.Offset()
		if err != nil {
			return err
		}
		if !h.due(offset, lists) {
			return nil
		}
		asOf, err := h.likers.asOf(s, h.part.Number())
		if err != nil {
			return err
		}
		for _, list := range lists {
			if h.watchAnew(list); offset < list.since {
				continue // shown soon
			}
			if err := h.follow(s, offset, list); err != nil {
				return err
			}
			h.writes++
			c := cache.HeadChange{HeadOf: list.of, From: list.said, Expire: HeadExpire, To: &tidemarkv1.HeadPart{
				Epoch: epoch, Write: h.writes, Offset: offset, AsOf: asOf, Whole: list.head.whole,
			}}
			if !list.head.whole {
				c.To.CutLikedAtUs, c.To.CutUserId = list.head.cut.LikedAtUs, list.head.cut.User
			}
			if c.Remove, c.Add = list.head.changes(); list.said == nil {
				c.Remove, c.Add = nil, list.head.entries
			}
			changes, written = append(changes, c), append(written, list)
		}
		return nil
	})
	if err != nil {
		h.forget(lists)
		for _, list := range lists {
			list.head = nil
		}
		return nil, nil, fmt.Errorf("reading the partition for heads: %w", err)
	}
	return changes, written, nil
}

// watchAnew is for a list of which too much has changed: what was not told came
// up to the last offset that was, which the snapshot may not have.
func (h *partHeads) watchAnew(list *hotList) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if list.changed == nil {
		list.changed, list.since, list.head = map[string]int64{}, h.settled, nil
	}
}

// due tells whether a snapshot brings anything, and everything that it has was
// told.
func (h *partHeads) due(offset int64, lists map[string]*hotList) bool {
	h.mu.Lock()
	settled := h.settled
	h.mu.Unlock()
	for _, list := range lists {
		if settled < offset && offset > list.since {
			return false // acked, and told in a moment
		}
		if list.said == nil || list.said.Offset != offset || time.Since(list.wroteAt) >= headRefresh {
			return true
		}
	}
	return false
}

// follow brings a head to a snapshot's offset.
func (h *partHeads) follow(s *gokakit.Snapshot, offset int64, list *hotList) error {
	keys := h.take(list, offset)
	if list.head == nil {
		return h.fill(s, list)
	}
	for _, key := range keys {
		value, err := s.Get(key)
		if err != nil {
			return err
		}
		var row tidemarkv1.LikerRow
		if err := decodeRow(value, &row); err != nil {
			return err
		}
		_, user, err := listOf(key)
		if err != nil {
			return err
		}
		var now *Entry
		if r := row.GetRelation(); r.GetCurrentLikedAtUs() != 0 {
			now = &Entry{User: user, LikedAtUs: r.CurrentLikedAtUs, Version: r.Version}
		}
		list.head.set(user, now)
	}
	list.head.trim()
	if list.head.worn() {
		return h.fill(s, list)
	}
	return nil
}

// take gives the keys that have changed up to an offset, and forgets them. One
// that has changed behind it too stays, and is read both times.
func (h *partHeads) take(list *hotList, offset int64) (keys []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, at := range list.changed {
		keys = append(keys, key)
		if at <= offset {
			delete(list.changed, key)
		}
	}
	return keys
}

// fill reads a head from the index.
func (h *partHeads) fill(s *gokakit.Snapshot, list *hotList) error {
	length := h.lengthOn(len(list.shards))
	parts := make([]newest.Part, len(list.shards))
	for i, shard := range list.shards {
		var err error
		parts[i], err = readPart(s, Query{Generation: list.of.Reverse, Kind: list.of.Kind, Target: list.of.Target, ReverseShard: shard, Limit: length})
		if err != nil {
			return err
		}
	}
	h.metrics.filled.Inc()
	list.head, list.said = newHead(length, newest.Merge(parts, length)), nil
	return nil
}

// write makes changes and remembers how each went. What a list's part says is
// not known after an error, so it is written whole.
func (h *partHeads) write(ctx context.Context, changes []cache.HeadChange, written []*hotList) error {
	began := time.Now() // a part lives at least from here
	errs := h.redis.Write(ctx, h.generation, changes)
	h.mu.Lock()
	defer h.mu.Unlock()
	var first error
	for i, list := range written {
		err := errs[i]
		h.metrics.writes.WithLabelValues(resultOf(changes[i], err)).Inc()
		if err == nil {
			list.said, list.wroteAt, list.standsUntil = changes[i].To, began, began.Add(HeadExpire)
			continue
		}
		list.said, list.standsUntil = nil, time.Time{}
		if !errors.Is(err, cache.ErrHeadGone) && (first == nil || errors.Is(err, cache.ErrFenced)) {
			first = err
		}
	}
	return first
}

func resultOf(c cache.HeadChange, err error) string {
	switch {
	case err == nil && c.From == nil:
		return "whole"
	case err == nil:
		return "changed"
	case errors.Is(err, cache.ErrHeadGone):
		return "gone"
	case errors.Is(err, cache.ErrFenced):
		return "fenced"
	}
	return "error"
}
