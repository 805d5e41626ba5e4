package drills

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"
)

// upgrade turns members of the previous version into ones of this, one after
// the other; downgrade the other way. Between two steps both versions count
// side by side, and partitions move from one to the other.
func upgrade(ctx context.Context, r *rig, rnd *rand.Rand) error { return r.roll(ctx, rnd, "") }

func downgrade(ctx context.Context, r *rig, rnd *rand.Rand) error {
	return r.roll(ctx, rnd, r.previous)
}

func (r *rig) roll(ctx context.Context, rnd *rand.Rand, program string) error {
	for _, m := range r.all() {
		if m.Program() == program {
			continue
		}
		release, err := r.reserve(ctx, m)
		if err != nil {
			return err
		}
		if rnd.IntN(2) == 0 {
			r.stop(m)
		} else { // a roll-out may also end its predecessor like this
			r.kill(m)
		}
		m.Become(program)
		err = r.revive(ctx, m)
		release()
		if err != nil {
			return err
		}
		if err := sleep(ctx, between(rnd, 0, 2*time.Second)); err != nil {
			return err
		}
	}
	return r.moving(ctx)
}

// previousName is what `make previous` calls its binary.
const previousName = "tidemark-previous"

// FindPrevious looks for the binary of another version beside this program and
// in .bin; "" when there is none.
func FindPrevious() string {
	program, err := os.Executable()
	if err != nil {
		return ""
	}
	beside := filepath.Dir(program)
	for _, path := range []string{filepath.Join(beside, previousName), filepath.Join(beside, ".bin", previousName)} {
		if s, err := os.Stat(path); err == nil && s.Mode().IsRegular() {
			return path
		}
	}
	return ""
}
