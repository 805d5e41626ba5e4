package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/processors/likers"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

// The union of all pages tells everybody who stays exactly once, newest first,
// while others come and go, where the first pages come from heads in Redis and
// the others from the index (E5, F3).
func TestE5UnionOfPagesAcrossHeadAndIndex(t *testing.T) {
	r := newLikersRig(t, 0)
	redis, err := cache.Open(cache.Config{URL: testenv.Redis(t), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = redis.Close() })
	g := cache.Generation{Family: cache.Heads, ID: 1, Deployment: "test"}
	if err := redis.Stamp(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	active := func() (cache.Generation, bool) { return g, true }
	r.heads = &likers.HeadsConfig{Cache: redis, Active: active, Length: 100, HotReads: 1}
	metrics := prometheus.NewRegistry()
	if r.view, err = views.NewLikers(views.LikersConfig{
		Client: r.client, Topology: r.topo, Reverse: r.reverse, Patience: 500 * time.Millisecond, Registerer: metrics,
		Heads: &views.LikersHeads{Cache: redis, Active: active, Timeout: 2 * time.Second},
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.view.Close)
	for i := range 2 {
		r.process(fmt.Sprint("p", i), t.TempDir())
	}
	client := r.serveLists()
	for seed := range uint64(2) {
		c, before := r.crowd(seed), pagesByResult(t, metrics)["head"]
		testenv.Eventually(t, time.Minute, func() error {
			// An owner keeps heads once it has handled a record; no seals come here.
			if err := r.kafka.ProduceSync(t.Context(), c.change(), c.change(), c.change()).FirstErr(); err != nil {
				return err
			}
			_, err := r.view.Page(t.Context(), views.LikersQuery{Kind: topology.Like, Target: c.target, Limit: 1})
			if err == nil && pagesByResult(t, metrics)["head"] == before {
				err = fmt.Errorf("no page came from the head: %v", pagesByResult(t, metrics))
			}
			return err
		})
		findings, figures := c.readings(client, 500)
		if findings.Total() > 0 {
			t.Errorf("seed %d: %v", seed, findings.Lines())
		}
		if figures.Readings != 4 {
			t.Errorf("seed %d: %d of 4 readings came to their ends", seed, figures.Readings)
		}
	}
	pages := pagesByResult(t, metrics)
	t.Logf("pages: %v", pages)
	if pages["head"] < 50 || pages["below_cut"] < 50 {
		t.Errorf("few pages came from heads, or from behind them: %v", pages)
	}
}

func pagesByResult(t *testing.T, metrics prometheus.Gatherer) map[string]int {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]int{}
	for _, f := range families {
		if f.GetName() != "tidemark_view_likers_heads_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			pages[m.GetLabel()[0].GetValue()] = int(m.GetCounter().GetValue())
		}
	}
	return pages
}
