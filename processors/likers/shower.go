package likers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/pause"
)

// shower brings acked rows to where pages see them while the partition is
// owned, and lets pages be read for as long.
type shower struct {
	likers *Likers
	part   *gokakit.Partition
	wake   chan struct{}
	heads  *partHeads // nil: none are kept
}

func (l *Likers) newShower(part *gokakit.Partition) gokakit.Owner {
	if l.cfg.Weakness.Has(gokakit.WithoutWholeList) {
		l.serve(l.owned, part)
	}
	return &shower{likers: l, part: part, wake: make(chan struct{}, 1), heads: l.headsFor(part)}
}

// Settled wakes Run.
func (s *shower) Settled(key string, _ []byte, offset int64, _ []gokakit.Derived) {
	s.heads.told(key, offset)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Run shows what is new at most every show interval until ctx ends. It begins
// when the whole log is read.
func (s *shower) Run(ctx context.Context) error {
	if !s.likers.cfg.Weakness.Has(gokakit.WithoutCatchUp) {
		if all, err := s.catchUp(ctx); err != nil || !all {
			return err
		}
	}
	s.likers.serve(s.likers.owned, s.part)
	defer s.likers.withdraw(s.likers.owned, s.part)
	defer s.keepHeads(ctx)()
	for {
		all, err := s.part.Show()
		if err != nil {
			return fmt.Errorf("showing new entries: %w", err)
		}
		if !pause.For(ctx, s.likers.cfg.ShowInterval) {
			return nil
		}
		if !all {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		}
	}
}

// keepHeads begins to keep heads; what it returns ends that.
func (s *shower) keepHeads(ctx context.Context) (end func()) {
	if s.heads == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { s.heads.run(ctx) })
	return func() { cancel(); done.Wait() }
}

// Follow shows what the owner elsewhere has written, as far as it is read here,
// until ctx ends. Nobody says when something comes, so it looks every show
// interval.
func (s *shower) Follow(ctx context.Context) error {
	if all, err := s.catchUp(ctx); err != nil || !all {
		return err
	}
	s.likers.serve(s.likers.warm, s.part)
	defer s.likers.withdraw(s.likers.warm, s.part)
	for {
		if _, err := s.part.Show(); err != nil {
			return fmt.Errorf("showing entries of a partition that is kept warm: %w", err)
		}
		if !pause.For(ctx, s.likers.cfg.ShowInterval) {
			return nil
		}
	}
}

// catchUpPause is short beside what a batch takes to be written.
const catchUpPause = 2 * time.Millisecond

// catchUp brings to disk what was acked when the partition was taken over:
// what came since the store was opened is in RAM only. Nobody is served before,
// since the owner before this one has shown it, and a list that it has told must
// not lose users who stayed in it. It says false when ctx ended first.
func (s *shower) catchUp(ctx context.Context) (bool, error) {
	goal := s.part.AckedOffset()
	for {
		if _, err := s.part.Show(); err != nil {
			return false, fmt.Errorf("showing what was read from the log: %w", err)
		}
		var shown int64
		err := s.part.Snapshot(func(snap *gokakit.Snapshot) (err error) {
			shown, err = snap.Offset()
			return err
		})
		if err != nil {
			return false, fmt.Errorf("showing what was read from the log: %w", err)
		}
		if shown >= goal {
			return true, nil
		}
		if !pause.For(ctx, catchUpPause) {
			return false, nil
		}
	}
}

// serve puts a partition among those that answer: owned or warm ones.
func (l *Likers) serve(among map[int]*gokakit.Partition, part *gokakit.Partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	among[part.Number()] = part
}

// withdraw leaves a partition alone that was lost and has come back as another
// one.
func (l *Likers) withdraw(among map[int]*gokakit.Partition, part *gokakit.Partition) {
	l.exports.endAll(part)
	l.mu.Lock()
	defer l.mu.Unlock()
	if among[part.Number()] == part {
		delete(among, part.Number())
	}
}

// followed is a partition that is kept warm here; nil when it is not.
func (l *Likers) followed(partition int) *gokakit.Partition {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.warm[partition]
}

// served is the partition that answers; nil when none does here.
func (l *Likers) served(partition int) *gokakit.Partition {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.owned[partition]
}
