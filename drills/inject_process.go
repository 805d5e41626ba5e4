package drills

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tidemark/tidemark/drills/member"
)

// victim takes a member, does harm to it, and gives it back.
func (r *rig) victim(ctx context.Context, rnd *rand.Rand, harm func(*member.Member) error) error {
	m, release, err := r.take(ctx, rnd)
	if err != nil {
		return err
	}
	defer release()
	return harm(m)
}

func killAny(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.victim(ctx, rnd, func(m *member.Member) error {
		if err := sleep(ctx, between(rnd, 20*time.Millisecond, 1200*time.Millisecond)); err != nil {
			return err
		}
		r.kill(m)
		return r.revive(ctx, m)
	})
}

// killBurst kills twice, so that the second kill comes right after a start.
func killBurst(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.victim(ctx, rnd, func(m *member.Member) error {
		r.kill(m)
		if err := r.revive(ctx, m); err != nil {
			return err
		}
		if err := sleep(ctx, between(rnd, time.Millisecond, 150*time.Millisecond)); err != nil {
			return err
		}
		r.kill(m)
		return r.revive(ctx, m)
	})
}

// killRecovering kills between a start and the moment when a member of this
// age was ready the last time.
func killRecovering(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.victim(ctx, rnd, func(m *member.Member) error {
		toReady, _ := m.Times()
		for range between(rnd, 1, 3) {
			r.kill(m)
			if rnd.IntN(2) == 0 {
				if err := m.WipeState(); err != nil {
					return err
				}
			}
			if err := m.Start(); err != nil {
				return err
			}
			if err := sleep(ctx, between(rnd, 0, max(toReady, 50*time.Millisecond))); err != nil {
				return err
			}
		}
		r.kill(m)
		return r.revive(ctx, m)
	})
}

// killRebalancing makes partitions move, by a member that leaves and a new one
// that comes, and kills another one meanwhile.
func killRebalancing(ctx context.Context, r *rig, rnd *rand.Rand) error {
	if err := r.victim(ctx, rnd, func(m *member.Member) error {
		r.stop(m)
		r.dismiss(m)
		_, err := r.addMember()
		return err
	}); err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, 0, 8*time.Second)); err != nil {
		return err
	}
	if err := r.victim(ctx, rnd, func(m *member.Member) error {
		r.kill(m)
		return m.Start()
	}); err != nil {
		return err
	}
	return r.moving(ctx)
}

// dismiss takes an ended member away for good.
func (r *rig) dismiss(m *member.Member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.members = slices.DeleteFunc(r.members, func(x *member.Member) bool { return x == m })
	r.gone = append(r.gone, m)
}

func killStopping(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.victim(ctx, rnd, func(m *member.Member) error {
		p := m.Process()
		p.Terminate()
		if err := sleep(ctx, between(rnd, 0, 400*time.Millisecond)); err != nil {
			return err
		}
		r.kill(m)
		return r.revive(ctx, m)
	})
}

// zombie pauses an owner past its session until every partition is counted by
// others, and lets it go on: what it had under way comes late.
func zombie(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.victim(ctx, rnd, func(m *member.Member) error {
		p := m.Process()
		p.Pause()
		defer p.Continue()
		// What was on its way may still arrive before the session is over.
		if err := sleep(ctx, r.cell.Session+time.Second); err != nil {
			return err
		}
		if err := r.moving(ctx); err != nil {
			return fmt.Errorf("with %s paused: %w", m.Spec.Instance, err)
		}
		if err := sleep(ctx, between(rnd, 0, 2*time.Second)); err != nil {
			return err
		}
		p.Continue()
		r.tallies.paused()
		if err := sleep(ctx, between(rnd, time.Second, 3*time.Second)); err != nil {
			return err
		}
		if err := await(ctx, r.patience, "the paused member being ready again", r.allReady); err != nil {
			return err
		}
		return r.moving(ctx)
	})
}

// rollingRestart restarts half of the members gracefully, one after the other,
// while the other half runs.
func rollingRestart(ctx context.Context, r *rig, _ *rand.Rand) error {
	all := r.all()
	for _, m := range all[:(len(all)+1)/2] {
		release, err := r.reserve(ctx, m)
		if err != nil {
			return err
		}
		r.stop(m)
		err = r.revive(ctx, m)
		release()
		if err != nil {
			return err
		}
	}
	return nil
}

// reserve waits until nothing is being done to a member, and takes it.
func (r *rig) reserve(ctx context.Context, m *member.Member) (func(), error) {
	err := await(ctx, r.patience, "waiting for a member", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.busy[m] {
			return fmt.Errorf("something is being done to %s", m.Spec.Instance)
		}
		r.busy[m] = true
		return nil
	})
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, m)
	}, err
}

// churn adds a member, or takes one away that is too many.
func churn(ctx context.Context, r *rig, rnd *rand.Rand) error {
	if len(r.all()) <= r.cell.Members {
		if _, err := r.addMember(); err != nil {
			return err
		}
	} else if err := r.victim(ctx, rnd, func(m *member.Member) error {
		r.stop(m)
		r.dismiss(m)
		return nil
	}); err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, 2*time.Second, 8*time.Second)); err != nil {
		return err
	}
	return r.moving(ctx)
}
