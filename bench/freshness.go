package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tidemark/tidemark/emitters/load"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/views"
)

const (
	freshnessRate    = 2000 // commands per second
	freshnessSeconds = 30
)

// benchFreshness sends commands to a system in one process and measures, in a
// view beside it, the time from a commit to the count that includes it.
func benchFreshness(ctx context.Context) error {
	s, err := startSystem()
	if err != nil {
		return err
	}
	defer s.stop()
	topo, err := s.cfg.Topology()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tidemark-bench-view-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	view, err := views.NewDisplay(views.DisplayConfig{
		Client: gokakit.Client{Brokers: s.cfg.Kafka.Brokers}, Topology: topo, StateDir: dir, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var ages []time.Duration
	view.OnUpdate(func(u views.Update) {
		age := time.Since(u.CommittedAt)
		mu.Lock()
		defer mu.Unlock()
		ages = append(ages, age)
	})
	following, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = view.Run(following) }()
	defer func() { stop(); <-done }()
	if err := awaitReady(ctx, view.Ready); err != nil {
		return err
	}
	c := load.Default()
	c.BaseURL, c.Token = s.endpoints.API, s.token
	c.Rate, c.Commands = freshnessRate, freshnessRate*freshnessSeconds
	c.Users, c.Targets = 100_000, 1_000_000
	l, err := load.New(c)
	if err != nil {
		return err
	}
	report, err := l.Run(ctx)
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(ages)
	at := func(q float64) float64 {
		if len(ages) == 0 {
			return 0
		}
		return ages[min(len(ages)-1, int(q*float64(len(ages))))].Seconds() * 1e3
	}
	fmt.Printf("  %.0f commands/s of %d offered for %d s, load generator and view beside it, refresh interval %v\n", report.AchievedRate, freshnessRate, freshnessSeconds, s.cfg.RefreshInterval)
	fmt.Printf("  commit to view        p50 %.0f ms, p99 %.0f ms (%d updates)\n", at(0.50), at(0.99), len(ages))
	fmt.Printf("  command latency       p50 %.1f ms, p99 %.1f ms; limited by: %s\n", report.Service.P50, report.Service.P99, report.LimitedBy)
	return nil
}
