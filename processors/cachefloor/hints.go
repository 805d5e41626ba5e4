package cachefloor

import (
	"context"
	"fmt"
	"time"

	"github.com/maypok86/otter/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/topology"
)

// Hints hand in relations that readers did not find in the cache, and users of whom
// it did not know which they do not have. A hint may be
// lost: the next reader gives another one.
type Hints struct {
	topology *topology.Topology
	shards   topology.ShardMap
	kafka    *kgo.Client
	recent   *otter.Cache[string, uint64] // version by generation and relation
	sent     *prometheus.CounterVec
}

// hintPause is how long the same hint is not given again: the floor takes about
// as long as the change feed.
const hintPause = 2 * time.Second

// NewHints makes hints that are sent through a client whose buffer bounds them.
func NewHints(t *topology.Topology, shards topology.ShardMap, kafka *kgo.Client, reg prometheus.Registerer) (*Hints, error) {
	h := &Hints{topology: t, shards: shards, kafka: kafka}
	h.recent = otter.Must(&otter.Options[string, uint64]{MaximumSize: 1 << 16, ExpiryCalculator: otter.ExpiryWriting[string, uint64](hintPause)})
	h.sent = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_cache_hints_total", Help: "Relations that readers did not find in the cache, and users of whom it did not know which they do not have, handed in, by what became of the hint: sent, repeated (given a moment ago), lost (Kafka did not take it)."}, []string{"result"})
	for _, result := range []string{"sent", "repeated", "lost"} {
		h.sent.WithLabelValues(result)
	}
	if reg != nil {
		if err := reg.Register(h.sent); err != nil {
			return nil, fmt.Errorf("cachefloor: registering metrics: %w", err)
		}
	}
	return h, nil
}

// Hint hands in a relation as it was read from its shard. It does not wait.
func (h *Hints) Hint(g cache.Generation, r cache.Relation) {
	h.send(fmt.Sprintf("%d|%s", g.ID, r.Key()), r.Version, func() *kgo.Record {
		return Handover(h.topology, h.shards.Shard(r.User), g.ID, r)
	})
}

// HintUser says that the cache did not know which relations of a kind a user does
// not have. It does not wait.
func (h *Hints) HintUser(g cache.Generation, kind topology.Kind, user string) {
	h.send(fmt.Sprintf("%d|%s", g.ID, topology.RelationsKey(kind, user)), 0, func() *kgo.Record {
		return Unknown(h.topology, h.shards.Shard(user), g.ID, kind, user)
	})
}

// send gives a hint of a version, unless one that is not lower was given under the
// same key a moment ago.
func (h *Hints) send(key string, version uint64, hint func() *kgo.Record) {
	if given, ok := h.recent.GetIfPresent(key); ok && given >= version {
		h.sent.WithLabelValues("repeated").Inc()
		return
	}
	h.recent.Set(key, version)
	h.kafka.TryProduce(context.Background(), hint(), func(_ *kgo.Record, err error) {
		if err != nil {
			h.sent.WithLabelValues("lost").Inc()
			return
		}
		h.sent.WithLabelValues("sent").Inc()
	})
}

// WriteInstead gives what readers must never have: a hint that goes into Redis by
// itself, as an owner that nobody fences. It is for drills that must be able to
// fail (gokakit.WithoutOneWriter).
func WriteInstead(c *cache.Client) func(cache.Generation, cache.Relation) {
	w := cache.NewRelationWriter(c)
	return func(g cache.Generation, r cache.Relation) {
		_, _ = w.Write(context.Background(), g, cache.Owner{}, []cache.Relation{r})
	}
}
