package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/views"
)

const (
	pagesLikers = 1_000_000 // of the hot target
	pagesOwners = 3         // processes
	pagesDeep   = 1_000     // pages before the deep one
	pagesSize   = 20
	pagesTimes  = 2_000 // each page is read
	coldLikers  = 10
	coldTarget  = "V9002"
)

// benchPages reads lists from three processes that own the reverse index, one
// question at a time, over HTTP/2, beside the broker on the same cores.
func benchPages(ctx context.Context) error {
	s, err := startStage(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	g := topology.NewReverseGeneration(1, s.topo.Config.LikerPartitions, s.topo.Config.ReverseShards)
	if _, err := prepareHot(ctx, s, g, headTarget, pagesLikers); err != nil {
		return err
	}
	if _, err := prepareHot(ctx, s, g, coldTarget, coldLikers); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	stop, err := startOwners(ctx, s, dir)
	if err != nil {
		return err
	}
	defer stop()
	if err := awaitCommitted(ctx, s.client, s.topo.Group(topology.LikersGroup).ID, pagesLikers+coldLikers); err != nil {
		return err
	}
	view, err := views.NewLikers(views.LikersConfig{Client: gokakit.Client{Brokers: s.addresses}, Topology: s.topo, Reverse: g})
	if err != nil {
		return err
	}
	defer view.Close()
	return timeLists(ctx, view, g)
}

// startOwners runs the reverse index's processes until stop.
func startOwners(ctx context.Context, s *stage, dir string) (stop func(), err error) {
	var all []*worker
	stop = func() {
		for _, w := range all {
			w.Kill()
		}
	}
	var ready errgroup.Group
	for i := range pagesOwners {
		name := fmt.Sprintf("owner%d", i+1)
		w, err := startWorker(workerSpec{Likers: true, Instance: name, Brokers: s.addresses, Topology: s.topo.Config, StateDir: filepath.Join(dir, name)}, dir)
		if err != nil {
			stop()
			return nil, err
		}
		all = append(all, w)
		ready.Go(func() error { return w.awaitReady(ctx) })
	}
	if err := ready.Wait(); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

func timeLists(ctx context.Context, view *views.Likers, g topology.ReverseGeneration) error {
	first := views.LikersQuery{Kind: topology.Like, Target: headTarget, Limit: pagesSize}
	deep, cold := first, first
	cold.Target = coldTarget
	for range pagesDeep {
		page, err := view.Page(ctx, deep)
		if err != nil {
			return err
		}
		deep.Generation, deep.Frontier = page.Generation, page.Frontier
	}
	lists := []struct {
		what  string
		query views.LikersQuery
		want  int // entries
		took  []time.Duration
	}{
		{"first page", first, pagesSize, nil},
		{fmt.Sprintf("page %d", pagesDeep+1), deep, pagesSize, nil},
		{fmt.Sprintf("target of %d", coldLikers), cold, coldLikers, nil},
	}
	for range pagesTimes {
		for i := range lists {
			l := &lists[i]
			start := time.Now()
			page, err := view.Page(ctx, l.query)
			if err != nil {
				return err
			}
			l.took = append(l.took, time.Since(start))
			if len(page.Entries) != l.want {
				return fmt.Errorf("%s: %d entries, want %d", l.what, len(page.Entries), l.want)
			}
		}
	}
	fmt.Printf("  a target of %d likers, R = %d, pages of %d; %d partitions in %d processes, of which a page asks for at most %d; one question at a time\n", pagesLikers, g.Shards(), pagesSize, g.Partitions(), pagesOwners, g.Spread)
	for _, l := range lists {
		p := percentiles(l.took)
		fmt.Printf("  %-13s p50 %6.2f ms, p99 %6.2f ms\n", l.what, p[0].Seconds()*1e3, p[1].Seconds()*1e3)
	}
	return nil
}
