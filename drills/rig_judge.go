package drills

import (
	"context"
	"errors"
	"time"

	"github.com/tidemark/tidemark/drills/member"
	"github.com/tidemark/tidemark/topology"
)

// watch looks after the members: one that ends by itself is a finding, and is
// started again.
func (r *rig) watch(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.look()
		}
	}
}

func (r *rig) look() {
	for _, m := range r.all() {
		if err := m.Process().Died(); err != nil {
			r.findings.Add(Died, "%v", err)
			if err := m.Start(); err != nil {
				r.findings.Add(Died, "starting it again: %v", err)
			}
		}
	}
	if r.broker == nil {
		return
	}
	if err := r.broker.Process().Died(); err != nil {
		r.findings.Add(Died, "%v", err)
	}
}

const (
	settle       = 3 * time.Second // of traffic after everything is healed
	stopPatience = 20 * time.Second
)

// judge heals everything, goes on for a moment so that every owner meets what
// was done behind its back, waits for quiet, and compares.
func (r *rig) judge(ctx context.Context) error {
	if err := r.heal(ctx); err != nil {
		return err
	}
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, r.quietWithin)
	defer cancel()
	if err := r.sender.Finish(limited); err != nil {
		return err
	}
	r.sender.Seal()
	if err := r.sender.Flush(limited); err != nil {
		return err
	}
	w := r.watching()
	if err := w.Quiet(limited, r.sender.Generator().Seals()); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		r.findings.Add(Unquiet, "%v; members: %v", err, r.allReady())
	}
	w.Final(ctx, r.facts, member.Manifest(r.topo.Config).Contract)
	r.checkMemory()
	r.checkFences()
	for _, m := range r.all() {
		r.stop(m)
	}
	return nil
}

// stop ends a member gracefully.
func (r *rig) stop(m *member.Member) {
	took, _ := m.Process().Stop(stopPatience)
	r.tallies.stopped(took)
}

// heal removes every fault and makes every process run.
func (r *rig) heal(ctx context.Context) error {
	if r.broker != nil {
		if !r.broker.Process().Running() {
			if err := r.broker.Restart(); err != nil {
				return err
			}
		}
		r.broker.Process().Continue()
		if err := r.broker.HealAll(ctx); err != nil {
			return err
		}
	}
	for _, m := range r.all() {
		if err := m.FreeDisk(); err != nil {
			return err
		}
		if p := m.Process(); p.Running() {
			p.Continue()
			continue
		}
		if err := m.Start(); err != nil {
			return err
		}
	}
	r.sender.SetRate(r.cell.Rate)
	err := await(ctx, r.patience, "every member being ready", r.allReady)
	var not stuckError
	if errors.As(err, &not) {
		r.findings.Add(Stuck, "%v", err)
		return nil
	}
	return err
}

func (r *rig) facts(yield func(topology.Relation, uint64, topology.State, topology.Hiding) error) error {
	return r.sender.Generator().Facts(yield)
}

func (r *rig) checkMemory() {
	for _, m := range r.all() {
		if n := m.MostMemory(); n > r.cell.MaxMemory {
			r.findings.Add(TooMuchMemory, "member %s took %d MB, %d are allowed", m.Spec.Instance, n>>20, r.cell.MaxMemory>>20)
		}
	}
}

// fill reports.
func (r *rig) fill(out *Result) {
	r.tallies.fill(out)
	sent := r.sender.Figures()
	out.Figures.Events, out.Figures.Poison = sent.Acked, sent.Poison
	for _, m := range append(r.all(), r.gone...) {
		f := m.Figures()
		out.Figures.Handled += f.Records
		out.Figures.Rebuilds += f.Rebuilds
		out.Figures.Fenced += f.Fenced
		out.Figures.Repairs += f.Repairs
		out.Figures.MostMemory = max(out.Figures.MostMemory, m.MostMemory())
	}
	out.Checked.Watched = r.watching().Watched()
	targets := map[string]bool{}
	_ = r.facts(func(rel topology.Relation, _ uint64, _ topology.State, _ topology.Hiding) error {
		out.Checked.Relations++
		targets[topology.TargetKey(rel.Kind, rel.Target)] = true
		return nil
	})
	out.Checked.Targets = int64(len(targets))
}

// close ends everything that was started.
func (r *rig) close() {
	for _, m := range r.all() {
		m.Process().Kill()
	}
	for _, m := range append(r.all(), r.gone...) {
		if m.Disk != nil {
			m.Disk.Close()
		}
	}
	if r.sender != nil {
		r.sender.Close()
	}
	if r.watcher != nil {
		r.watcher.Close()
	}
	if r.kafka != "" && r.admin != nil {
		r.removeTopics()
	}
	if r.client != nil {
		r.client.Close()
	}
	if r.broker != nil {
		r.broker.Process().Kill()
	}
}

// removeTopics leaves a shared broker as it was.
func (r *rig) removeTopics() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, s := range r.topo.Streams {
		_, _ = r.admin.DeleteTopic(ctx, s.Topic)
	}
	for _, g := range r.topo.Groups {
		_, _ = r.admin.DeleteGroup(ctx, g.ID)
	}
}
