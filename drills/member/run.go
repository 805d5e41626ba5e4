package member

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/drills/proc"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/processors/display"
	"github.com/tidemark/tidemark/processors/projection"
	"github.com/tidemark/tidemark/topology"
)

// Run runs a member until ctx ends, and writes its signs to out.
func Run(ctx context.Context, spec Spec, out io.Writer, log *slog.Logger) error {
	proc.SurviveFullDisk()
	topo, err := topology.New(spec.Topology)
	if err != nil {
		return err
	}
	reg := prometheus.NewRegistry()
	client := gokakit.Client{Brokers: spec.Brokers, ClientID: "member-" + spec.Instance, Session: spec.Session}
	counting, err := projection.New(projection.Config{
		Client: client, Topology: topo, Manifest: Manifest(spec.Topology), StateDir: filepath.Join(spec.StateDir, "projection"),
		Instance: spec.Instance, RefreshInterval: spec.Refresh, HotStandby: spec.HotStandby, WriteBehind: spec.WriteBehind,
		Logger: log, Registerer: reg, Weakness: spec.Weakness,
	})
	if err != nil {
		return err
	}
	displaying, err := display.New(display.Config{
		Client: client, Topology: topo, StateDir: filepath.Join(spec.StateDir, "display"), Instance: spec.Instance,
		HotStandby: spec.HotStandby, Logger: log, Registerer: reg,
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return counting.Run(ctx) })
	g.Go(func() error { return displaying.Run(ctx) })
	g.Go(func() error {
		ready := func() error { return errors.Join(counting.Ready(), displaying.Ready()) }
		return watch(ctx, reg, ready, json.NewEncoder(out))
	})
	return g.Wait()
}

const (
	lookEvery = 2 * time.Millisecond // until the first record
	tickEvery = time.Second
)

// watch writes a sign for each event.
func watch(ctx context.Context, reg prometheus.Gatherer, ready func() error, out *json.Encoder) error {
	look, tick := time.NewTicker(lookEvery), time.NewTicker(tickEvery)
	defer look.Stop()
	defer tick.Stop()
	said, first := "nothing", false
	for {
		reason := ""
		if err := ready(); err != nil {
			reason = err.Error()
		}
		if reason != said {
			said = reason
			event := Ready
			if reason != "" {
				event = Unready
			}
			if err := tell(out, reg, event, reason); err != nil {
				return err
			}
		}
		if f, err := gather(reg); err == nil && !first && f.Records > 0 {
			first = true
			look.Reset(10 * lookEvery)
			if err := tell(out, reg, First, ""); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return tell(out, reg, Tick, "")
		case <-tick.C:
			if err := tell(out, reg, Tick, ""); err != nil {
				return err
			}
		case <-look.C:
		}
	}
}

func tell(out *json.Encoder, reg prometheus.Gatherer, event, reason string) error {
	f, err := gather(reg)
	if err != nil {
		return err
	}
	return out.Encode(Sign{Event: event, Reason: reason, Figures: f})
}

// gather reads a member's figures from its metrics, as an operator would.
func gather(reg prometheus.Gatherer) (f Figures, err error) {
	families, err := reg.Gather()
	if err != nil {
		return f, fmt.Errorf("reading metrics: %w", err)
	}
	for _, family := range families {
		var field *int64
		switch family.GetName() {
		case "tidemark_processor_records_total":
			field = &f.Records
		case "tidemark_processor_rebuilds_total":
			field = &f.Rebuilds
		case "tidemark_processor_fenced_total":
			field = &f.Fenced
		case "tidemark_processor_repairs_total":
			field = &f.Repairs
		default:
			continue
		}
		for _, m := range family.Metric {
			*field += int64(m.GetCounter().GetValue())
		}
	}
	return f, nil
}
