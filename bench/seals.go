package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

const (
	sealsRate    = 5000 // commands per second
	sealsCallers = 256
	sealsWindow  = 8 * time.Second
	sealsWindows = 5                      // of each interval
	sealsDefault = 2 * time.Second        // between two seals
	sealsOften   = 200 * time.Millisecond // ten times as often, for many seals in a short time
)

// sealsIntervals take turns; 0 is no sealer.
var sealsIntervals = []time.Duration{0, sealsDefault, sealsOften}

// benchSeals offers commands on a timetable, in windows with a sealer and
// without, in turns, so that what else the machine does falls on all.
func benchSeals(ctx context.Context) error {
	url, stop, err := startPostgres(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := relations.Migrate(ctx, url, 0); err != nil {
		return err
	}
	store, err := relations.Open(ctx, relations.Config{URLs: []string{url}, Map: topology.NewShardMap(1, 1)})
	if err != nil {
		return err
	}
	defer store.Close()
	b := &sealsBench{store: store, sealers: map[time.Duration]*relations.Sealer{}, often: prometheus.NewRegistry()}
	for interval, reg := range map[time.Duration]prometheus.Registerer{sealsDefault: nil, sealsOften: b.often} {
		if b.sealers[interval], err = relations.NewSealer(relations.SealerConfig{URL: url, Interval: interval, Registerer: reg}); err != nil {
			return err
		}
	}
	if _, err := b.window(ctx, 0); err != nil { // warms up
		return err
	}
	windows := map[time.Duration][]offered{}
	for range sealsWindows {
		for _, interval := range sealsIntervals {
			o, err := b.window(ctx, interval)
			if err != nil {
				return err
			}
			windows[interval] = append(windows[interval], o)
		}
	}
	return b.print(windows)
}

type sealsBench struct {
	store   *relations.Store
	sealers map[time.Duration]*relations.Sealer // by interval
	often   *prometheus.Registry                // of the one that seals often
	sent    int                                 // commands so far: each has a relation of its own
}

// offered is what became of a window's commands.
type offered struct {
	perSecond float64
	p50, p99  time.Duration // from when a command was due to its answer
}

// window offers commands for a while, with a sealer beside them unless its
// interval is 0.
func (b *sealsBench) window(ctx context.Context, interval time.Duration) (o offered, err error) {
	if sealer := b.sealers[interval]; sealer != nil {
		sealing, stop := context.WithCancel(ctx)
		stopped := make(chan error, 1)
		go func() { stopped <- sealer.Run(sealing) }()
		defer func() { stop(); err = errors.Join(err, <-stopped) }()
	}
	const commands = sealsRate * int(sealsWindow/time.Second)
	first, start := b.sent, time.Now()
	b.sent += commands
	took := make([]time.Duration, commands)
	callers, ctx := errgroup.WithContext(ctx)
	for caller := range sealsCallers {
		callers.Go(func() error {
			for n := caller; n < commands; n += sealsCallers {
				due := start.Add(time.Duration(n) * time.Second / sealsRate)
				if !pause.For(ctx, time.Until(due)) {
					return ctx.Err()
				}
				if _, err := b.store.Set(ctx, sealsCommand(first+n)); err != nil {
					return err
				}
				took[n] = time.Since(due)
			}
			return nil
		})
	}
	if err := callers.Wait(); err != nil {
		return o, err
	}
	o.perSecond = float64(commands) / time.Since(start).Seconds()
	slices.Sort(took)
	o.p50, o.p99 = quantile(took, 0.5), quantile(took, 0.99)
	return o, nil
}

func sealsCommand(n int) relations.Command {
	return relations.Command{
		OperationID: fmt.Sprintf("seals-%d", n),
		Relation:    topology.Relation{Kind: topology.Like, User: fmt.Sprintf("user%07d", n), Target: fmt.Sprintf("video%d", n%1000)},
		Desired:     topology.Liked,
	}
}

func (b *sealsBench) print(windows map[time.Duration][]offered) error {
	held, err := histogram(b.often, "tidemark_relations_seal_lock_held_seconds")
	if err != nil {
		return err
	}
	wait, err := histogram(b.often, "tidemark_relations_seal_lock_wait_seconds")
	if err != nil {
		return err
	}
	fmt.Printf("  %d commands/s offered to one shard, fsync on; load average %s\n", sealsRate, loadAverage())
	fmt.Printf("  %d seals, one every %v: outbox lock held p50 %.1f ms, p99 %.1f ms; waited for p50 %.1f ms, p99 %.1f ms\n", held.GetSampleCount(), sealsOften,
		histogramQuantile(held, 0.5)*1e3, histogramQuantile(held, 0.99)*1e3, histogramQuantile(wait, 0.5)*1e3, histogramQuantile(wait, 0.99)*1e3)
	fmt.Printf("  medians of %d windows of %v each, in turns\n", sealsWindows, sealsWindow)
	fmt.Printf("  %-14s %10s %10s %10s\n", "a seal", "commands/s", "p50", "p99")
	none := medians(windows[0])
	fmt.Printf("  %-14s %10.0f %7.1f ms %7.1f ms\n", "never", none.perSecond, milliseconds(none.p50), milliseconds(none.p99))
	for _, interval := range sealsIntervals[1:] {
		o := medians(windows[interval])
		fmt.Printf("  %-14s %10.0f %7.1f ms %7.1f ms\n", "every "+interval.String(), o.perSecond, milliseconds(o.p50), milliseconds(o.p99))
		fmt.Printf("  %-14s %8.2f %% %+7.1f ms %+7.1f ms\n", "  difference", (o.perSecond/none.perSecond-1)*100, milliseconds(o.p50-none.p50), milliseconds(o.p99-none.p99))
	}
	return nil
}

// medians are taken of each figure by itself.
func medians(all []offered) (m offered) {
	m.perSecond = median(all, func(o offered) float64 { return o.perSecond })
	m.p50 = time.Duration(median(all, func(o offered) float64 { return float64(o.p50) }))
	m.p99 = time.Duration(median(all, func(o offered) float64 { return float64(o.p99) }))
	return m
}

func median(all []offered, of func(offered) float64) float64 {
	values := make([]float64, len(all))
	for i, o := range all {
		values[i] = of(o)
	}
	slices.Sort(values)
	return (values[(len(values)-1)/2] + values[len(values)/2]) / 2
}

func histogram(reg prometheus.Gatherer, name string) (*dto.Histogram, error) {
	families, err := reg.Gather()
	if err != nil {
		return nil, err
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].GetHistogram(), nil
		}
	}
	return nil, fmt.Errorf("there is no metric %s", name)
}

// histogramQuantile goes straight between the bounds of a bucket, as
// Prometheus does.
func histogramQuantile(h *dto.Histogram, q float64) float64 {
	rank := q * float64(h.GetSampleCount())
	low, below := 0.0, 0.0
	for _, b := range h.Bucket {
		if n := float64(b.GetCumulativeCount()); n >= rank && n > below {
			return low + (b.GetUpperBound()-low)*(rank-below)/(n-below)
		}
		low, below = b.GetUpperBound(), float64(b.GetCumulativeCount())
	}
	return low
}
