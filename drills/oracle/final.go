package oracle

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/topology"
)

// Quiet waits until every group has consumed its input, everything up to the
// seals is displayed, and all of it is read. Seals are the newest of each
// shard. When ctx ends first, the error says what is behind.
func (w *Watcher) Quiet(ctx context.Context, seals []uint64) error {
	if err := verify.WaitGroups(ctx, w.admin, w.Topology); err != nil {
		return err
	}
	if err := w.await(ctx, w.streams()...); err != nil {
		return err
	}
	wait := time.NewTicker(50 * time.Millisecond)
	defer wait.Stop()
	for {
		behind := w.behind(seals)
		if behind == nil {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), behind)
		case <-wait.C:
		}
	}
	// Progress goes out behind the partial counts that it includes, so both are
	// in display's input now.
	if err := verify.WaitGroups(ctx, w.admin, w.Topology); err != nil {
		return err
	}
	return w.await(ctx, w.streams()...)
}

// CatchUp waits until everything that stands in the topics now is read.
func (w *Watcher) CatchUp(ctx context.Context) error { return w.await(ctx, w.streams()...) }

// behind names a partition whose displayed progress has not reached the seals.
func (w *Watcher) behind(seals []uint64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for d := range w.Topology.Config.DisplayPartitions {
		for c := range w.Topology.Config.CountPartitions {
			have := w.view.progress[[2]uint32{uint32(d), uint32(c)}]
			for shard, want := range seals {
				if have[uint32(shard)] < want {
					return fmt.Errorf("count partition %d is displayed up to seal %d of shard %d on display partition %d, seal %d is due", c, have[uint32(shard)], shard, d, want)
				}
			}
		}
	}
	return nil
}

// Facts gives every relation with its version, its state and by whom it is
// hidden.
type Facts func(yield func(topology.Relation, uint64, topology.State, topology.Hiding) error) error

// Final compares every count with the facts and what was set aside with what
// was poisoned. The system must be quiet.
func (w *Watcher) Final(ctx context.Context, facts Facts, contract topology.HashContract) verify.Report {
	opts := []kgo.Opt{kgo.SeedBrokers(w.Brokers...), kgo.ClientID(ClientID)}
	report := verify.Run(ctx, verify.Config{
		Facts: func(_ context.Context, yield func(verify.Fact) error) error {
			return facts(func(r topology.Relation, version uint64, s topology.State, h topology.Hiding) error {
				return yield(verify.Fact{Relation: r, Version: version, State: s, Hiding: h})
			})
		},
		Projection: verify.ReadTable(w.Topology.Topic(topology.ProjectionTable), opts...),
		Display:    verify.ReadTable(w.Topology.Topic(topology.DisplayTable), opts...),
		Contract:   &contract,
	})
	w.Judge(report)
	w.Settle()
	return report
}

// Judge takes the differences of a verification into the findings.
func (w *Watcher) Judge(r verify.Report) {
	for class, n := range r.Counts {
		for _, d := range r.Differences {
			if d.Class == class {
				w.Findings.Add(Class(class), "%s %s %s %s: %s", d.Kind, d.Target, d.User, d.State, d.Reason)
				n--
			}
		}
		w.Findings.AddMany(Class(class), n, "the verification describes no more of them")
	}
	if r.Verdict == verify.Unknown && len(r.Counts) == 0 {
		w.Findings.Add("unknown", "%s", r.Reason)
	}
}

// Settle checks what must hold once the system is quiet: the newest record of
// every table key is its winner, and what is set aside is what was poisoned.
func (w *Watcher) Settle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := w.view
	for table, t := range v.tables {
		for key, s := range t.keys {
			if s.last < s.highest {
				w.Findings.Add(StaleLast, "%s, key %.60q: the newest record is version %d, the winner %d", table, key, s.last, s.highest)
			}
		}
	}
	for at, reason := range v.poison {
		if got := v.aside[v.input][at]; got != reason {
			w.Findings.Add(QuarantineMissing, "%s/%d at offset %d was poisoned for %s, set aside for %q", v.input, at.partition, at.offset, reason, got)
		}
	}
	for topic, aside := range v.aside {
		for at, reason := range aside {
			if topic != v.input || v.poison[at] == "" {
				w.Findings.Add(QuarantineExtra, "%s/%d at offset %d was set aside for %s", topic, at.partition, at.offset, reason)
			}
		}
	}
}
