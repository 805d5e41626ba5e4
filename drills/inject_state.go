package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/tidemark/tidemark/drills/member"
	"github.com/tidemark/tidemark/internal/verify"
	"github.com/tidemark/tidemark/topology"
)

func wipeState(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.victim(ctx, rnd, func(m *member.Member) error {
		r.kill(m)
		if err := m.WipeState(); err != nil {
			return err
		}
		return r.revive(ctx, m)
	})
}

func oldState(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.victim(ctx, rnd, func(m *member.Member) error {
		r.kill(m)
		if err := m.SaveState(); err != nil {
			return err
		}
		if err := r.revive(ctx, m); err != nil {
			return err
		}
		if err := sleep(ctx, between(rnd, time.Second, 3*time.Second)); err != nil {
			return err
		}
		r.kill(m)
		if err := m.RestoreState(); err != nil {
			return err
		}
		return r.revive(ctx, m)
	})
}

// diskFull lets no file of a member grow until it has said so, and a moment
// longer.
func diskFull(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.victim(ctx, rnd, func(m *member.Member) error {
		m.ForgetReasons()
		said, err := m.FullDisk()
		if err != nil {
			return err
		}
		if err := r.awaitReason(ctx, []*member.Member{m}, r.patience, said); err != nil {
			return err
		}
		if err := sleep(ctx, between(rnd, 0, 4*time.Second)); err != nil {
			return err
		}
		if err := m.FreeDisk(); err != nil {
			return err
		}
		if err := await(ctx, r.patience, "the member being ready again", r.allReady); err != nil {
			return err
		}
		return r.moving(ctx)
	})
}

// caughtUp waits until the projection has taken everything that was sent, and
// its members have had the time to note how far their partial counts are out.
func (r *rig) caughtUp(ctx context.Context) error {
	if err := r.sender.Flush(ctx); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	if err := verify.WaitGroups(limited, r.admin, r.topo); err != nil {
		return stuckError{err}
	}
	return sleep(ctx, checkpoints)
}

// checkpoints of partial counts are at most this far apart, with room.
const checkpoints = 2500 * time.Millisecond

// compact leaves holes in the changelogs, up to their newest records, and has
// them read from the start.
func compact(ctx context.Context, r *rig, rnd *rand.Rand) error {
	if err := r.broker.Compact(ctx); err != nil {
		return err
	}
	return wipeState(ctx, r, rnd)
}

// logTruncated moves the changelog's start past what a member's old state has
// seen. Every relation is changed once more before, so that nothing below the
// new start is needed: the log is then as compaction might leave it.
func logTruncated(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.victim(ctx, rnd, func(m *member.Member) error {
		r.kill(m)
		if err := m.SaveState(); err != nil {
			return err
		}
		if err := r.revive(ctx, m); err != nil {
			return err
		}
		r.sender.Pause()
		defer r.sender.Start(r.cell.Rate)
		if err := r.caughtUp(ctx); err != nil {
			return err
		}
		ends, err := r.admin.ListEndOffsets(ctx, r.topo.Topic(topology.ProjectionTable))
		if err != nil {
			return err
		}
		if err := r.sender.Touch(ctx); err != nil {
			return err
		}
		r.sender.Seal()
		if err := r.caughtUp(ctx); err != nil {
			return err
		}
		r.kill(m)
		if err := m.RestoreState(); err != nil {
			return err
		}
		if _, err := r.admin.DeleteRecords(ctx, ends.Offsets()); err != nil {
			return err
		}
		r.sender.Start(r.cell.Rate)
		return r.revive(ctx, m)
	})
}

// offsetAhead takes the broker back to an earlier state of its disk, so that
// the members' stores are ahead of the log that they belong to. What was lost
// is sent again, as any source does that is told of the loss.
func offsetAhead(ctx context.Context, r *rig, rnd *rand.Rand) error {
	r.sender.Pause()
	defer r.sender.Start(r.cell.Rate)
	if err := r.sender.Flush(ctx); err != nil {
		return err
	}
	saved := r.broker.DataDir() + ".saved"
	r.broker.Stop()
	if err := copyDir(saved, r.broker.DataDir()); err != nil {
		return err
	}
	if err := r.brokerBack(ctx); err != nil {
		return err
	}
	r.sender.Record()
	r.sender.Start(r.cell.Rate)
	if err := r.moving(ctx); err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, time.Second, 3*time.Second)); err != nil {
		return err
	}
	r.sender.Pause()
	if err := r.sender.Flush(ctx); err != nil {
		return err
	}
	for _, m := range r.all() { // a graceful stop brings the stores to disk
		r.stop(m)
	}
	r.watching().Close()
	r.broker.Process().Kill()
	if err := copyDir(r.broker.DataDir(), saved); err != nil {
		return err
	}
	if err := r.brokerBack(ctx); err != nil {
		return err
	}
	return r.afterLoss(ctx)
}

// afterLoss begins to watch the log as it is now, starts the members, and sends
// again what the log has lost.
func (r *rig) afterLoss(ctx context.Context) error {
	if err := errors.Join(r.watchAnew(), r.startAll()); err != nil {
		return err
	}
	if err := await(ctx, r.patience, "the members reading the log again", r.allReady); err != nil {
		return err
	}
	if err := r.sender.Reconnect(); err != nil {
		return err
	}
	return r.sender.Replay(ctx)
}

func copyDir(to, from string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("replacing a folder: %w", err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copying a folder: %w", err)
	}
	return nil
}
