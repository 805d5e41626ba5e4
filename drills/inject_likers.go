package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// likersJoin has one likers process more. It has nothing on disk, so it reads
// the logs of the partitions that it is given.
func likersJoin(ctx context.Context, s *system, _ *rand.Rand) error {
	s.joined++
	if err := s.startRole(fmt.Sprintf("likers-more-%d", s.joined), "likers"); err != nil {
		return err
	}
	return s.answered(ctx)
}

// likersLeave has one of the likers processes less. It stops gracefully, and
// its partitions move when its session is over.
func likersLeave(ctx context.Context, s *system, rnd *rand.Rand) error {
	r, err := s.someLikers(rnd)
	if err != nil {
		return err
	}
	if err := r.on(func() error {
		took, _ := r.now().Stop(stopPatience)
		s.tallies.stopped(took)
		s.dismiss(r)
		return nil
	}); err != nil {
		return err
	}
	return s.answered(ctx)
}

func likersRestart(ctx context.Context, s *system, rnd *rand.Rand) error {
	r, err := s.someLikers(rnd)
	if err != nil {
		return err
	}
	if err := s.stopAndStart(r); err != nil {
		return err
	}
	return s.answered(ctx)
}

// likersKill kills a process that comes back at once, every other time without
// its local stores.
func likersKill(ctx context.Context, s *system, rnd *rand.Rand) error {
	if err := sleep(ctx, between(rnd, 0, time.Second)); err != nil {
		return err
	}
	r, err := s.someLikers(rnd)
	if err != nil {
		return err
	}
	if err := r.on(func() error {
		r.now().Kill()
		s.tallies.killed()
		if rnd.IntN(2) == 0 {
			if err := os.RemoveAll(filepath.Join(s.cfg.StateDir, r.name)); err != nil {
				return err
			}
		}
		return r.start()
	}); err != nil {
		return err
	}
	return s.answered(ctx)
}

// likersAway kills a process that stays away until the others have its
// partitions, and then takes some back.
func likersAway(ctx context.Context, s *system, rnd *rand.Rand) error {
	r, err := s.someLikers(rnd)
	if err != nil {
		return err
	}
	r.away.Store(true)
	defer r.away.Store(false)
	if err := r.on(func() error {
		r.now().Kill()
		s.tallies.killed()
		return s.answered(ctx)
	}); err != nil {
		return err
	}
	if err := r.on(r.start); err != nil {
		return err
	}
	r.away.Store(false)
	return s.answered(ctx)
}

// likersKillAll kills all of them, so that nobody answers for a while.
func likersKillAll(ctx context.Context, s *system, _ *rand.Rand) error {
	for _, r := range s.rolesOf("likers") {
		if err := s.killAndStart(r); err != nil {
			return err
		}
	}
	return s.answered(ctx)
}

var errNoLikers = errors.New("no likers process runs")

func (s *system) someLikers(rnd *rand.Rand) (*role, error) {
	all := s.rolesOf("likers")
	if len(all) == 0 {
		return nil, errNoLikers
	}
	return all[rnd.IntN(len(all))], nil
}

// startRole starts a process that is looked after from now on.
func (s *system) startRole(name string, roles ...string) error {
	r, err := newRole(s.dir, s.file(), name, roles...)
	if err != nil {
		return err
	}
	r.more = weakenArgs(s.weak)
	if err := r.start(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roles = append(s.roles, r)
	return nil
}

// dismiss takes an ended process away for good.
func (s *system) dismiss(r *role) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roles = slices.DeleteFunc(slices.Clone(s.roles), func(x *role) bool { return x == r })
	s.gone = append(s.gone, r)
}
