package likers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
)

// HeadsConfig says which lists have a head in Redis: the newest entries of a list
// that is read so often that its first pages shall not ask the owners of the
// reverse index.
type HeadsConfig struct {
	Cache *cache.Client
	// Active is the generation to write, of family Heads; ok is false while there
	// is none.
	Active func() (g cache.Generation, ok bool)
	// Length of a head, in entries, of all partitions that the list lies on;
	// default DefaultHeadLength.
	Length int
	// HotReads are the pages a minute from which on a list is hot; it has cooled
	// below half of that. Default DefaultHotReads.
	HotReads int
	// HotLists are the most lists of which a partition keeps a part, the ones that
	// are read most first; default DefaultHotLists.
	HotLists int

	window time.Duration // that reads are counted over; default heatWindow
}

// Defaults of HeadsConfig.
const (
	DefaultHeadLength = 5000
	// DefaultHotReads is where a head surely spares more than it costs: a page
	// from the index takes about what a part of a head takes in a second.
	DefaultHotReads = 300
	// DefaultHotLists are, with heads of DefaultHeadLength on 4 partitions, some
	// 10 MB of the process and 10 MB of Redis for each partition.
	DefaultHotLists = 64
)

const (
	heatWindow = 10 * time.Second
	// heatLists are remembered in each window.
	heatLists = 4096
	// HeadExpire is how long a part lives that its owner does not write any more.
	HeadExpire = 3 * time.Second
	// headRefresh is when a part is written again of which nothing has changed.
	headRefresh = time.Second
	// headTimeout bounds the writing of all parts of a partition once.
	headTimeout = 2 * time.Second
	// maxHeadChanges are remembered of a list before its head is filled anew
	// instead.
	maxHeadChanges = 20_000
)

func (c HeadsConfig) withDefaults() (HeadsConfig, error) {
	c.Length = cmp.Or(c.Length, DefaultHeadLength)
	c.HotReads = cmp.Or(c.HotReads, DefaultHotReads)
	c.HotLists = cmp.Or(c.HotLists, DefaultHotLists)
	c.window = cmp.Or(c.window, heatWindow)
	if c.Length < 1 || c.HotReads < 1 || c.HotLists < 1 {
		return c, fmt.Errorf("likers: heads of %d entries, hot from %d pages a minute on, %d lists: all are at least 1", c.Length, c.HotReads, c.HotLists)
	}
	return c, nil
}

// headMetrics are of all partitions together.
type headMetrics struct {
	lists  prometheus.Gauge
	writes *prometheus.CounterVec
	filled prometheus.Counter
}

func newHeadMetrics(reg prometheus.Registerer) (*headMetrics, error) {
	m := &headMetrics{
		lists:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemark_likers_heads", Help: "Lists that are hot, of each partition that is owned here."}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_likers_head_writes_total", Help: "Parts of heads that were written to Redis, or not."}, []string{"result"}),
		filled: prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_likers_head_fills_total", Help: "Parts of heads that were read from the index, when a list became hot, when half of a part had left it, or when too much had changed at once."}),
	}
	for _, result := range []string{"changed", "whole", "gone", "fenced", "error"} {
		m.writes.WithLabelValues(result)
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.lists), reg.Register(m.writes), reg.Register(m.filled))
}

// headsFor are the parts of a partition; nil when no heads are kept.
func (l *Likers) headsFor(part *gokakit.Partition) *partHeads {
	if l.cfg.Heads == nil {
		return nil
	}
	return &partHeads{
		likers: l, cfg: *l.cfg.Heads, part: part, metrics: l.headMetrics,
		redis: cache.NewHeadWriter(l.cfg.Heads.Cache), log: l.cfg.Logger.With("component", "likers", "partition", part.Number()),
		heat: newHeat(l.cfg.Heads.window, heatLists), settled: -1, lists: map[string]*hotList{},
	}
}

// headsOf are those of a partition; nil when none are kept.
func headsOf(part *gokakit.Partition) *partHeads {
	s, _ := part.Owner().(*shower)
	if s == nil {
		return nil
	}
	return s.heads
}

// lengthOn is the length of a part: its share of the list's reverse shards.
func (h *partHeads) lengthOn(shards int) int {
	r := h.likers.cfg.Reverse.Shards()
	return max(1, (h.cfg.Length*shards+r-1)/r)
}

// read counts pages of a list and tells whether its part stands in Redis.
func (h *partHeads) read(kind topology.Kind, target string, pages uint64) (stands bool) {
	if h == nil {
		return false
	}
	now, list := time.Now(), topology.TargetKey(kind, target)
	h.heat.read(list, pages, now)
	h.mu.Lock()
	defer h.mu.Unlock()
	hot := h.lists[list]
	return hot != nil && now.Before(hot.standsUntil)
}

// choose makes the lists hot that are read often, and lets cooled ones go. It
// gives those that were let go.
func (h *partHeads) choose(now time.Time) (cooled []cache.HeadOf) {
	rates := h.heat.perMinute(now)
	hottest := make([]string, 0, len(rates))
	for list, rate := range rates {
		if rate >= float64(h.cfg.HotReads) {
			hottest = append(hottest, list)
		}
	}
	slices.SortFunc(hottest, func(a, b string) int { return cmp.Or(cmp.Compare(rates[b], rates[a]), cmp.Compare(a, b)) })
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, list := range h.lists {
		if rates[name] < float64(h.cfg.HotReads)/2 {
			cooled = append(cooled, list.of)
			delete(h.lists, name)
		}
	}
	for _, name := range hottest {
		if len(h.lists) >= h.cfg.HotLists {
			break
		}
		if h.lists[name] == nil {
			h.add(name)
		}
	}
	return cooled
}

// add begins to watch a list; the lock is held.
func (h *partHeads) add(name string) {
	kind, target, err := topology.ParseTargetKey(name)
	if err != nil {
		return
	}
	g := h.likers.cfg.Reverse
	h.lists[name] = &hotList{
		of:     cache.HeadOf{Kind: kind, Target: target, Reverse: g.ID, Partition: h.part.Number()},
		shards: g.ShardsByPartition(kind, target)[h.part.Number()],
		since:  max(h.settled, h.part.AckedOffset()), changed: map[string]int64{},
	}
}
