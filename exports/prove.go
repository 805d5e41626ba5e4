package exports

import (
	"context"
	"fmt"
	"time"

	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
)

// Feed tells whether the change feed has brought everything; see control.DB.
type Feed interface {
	Gaps(ctx context.Context, f control.GapFilter) ([]control.Gap, error)
	Source(ctx context.Context, shard int) (control.Source, error)
}

// gaps writes down which gaps are known, and refuses to export what is known to
// lack something.
func (x *exporter) gaps(ctx context.Context) (map[string]int64, error) {
	all, err := x.Feed.Gaps(ctx, control.GapFilter{})
	if err != nil {
		return nil, err
	}
	known := map[string]int64{}
	for _, g := range all {
		if g.State != control.GapHealed {
			return nil, fmt.Errorf("shard %d lacks %d changes of seal %d (%s): see `tidemark gaps list`, and export when it is healed", g.Shard, g.Rows, g.Seal, g.Cause)
		}
		known[g.Subject()] = g.Revision
	}
	return known, nil
}

// provePause is how often a shard is asked for.
const provePause = 200 * time.Millisecond

// prove waits until intake has compared each shard's changes up to the barrier
// with the shard's own proofs, and that named no gap. A change that was missing
// when the barrier passed is in the list's future, also when it came later.
func (x *exporter) prove(ctx context.Context) error {
	cuts := map[int]uint64{}
	for _, c := range x.j.AsOf.Shards {
		cuts[c.Shard] = c.Seal
		if err := x.proveShard(ctx, c); err != nil {
			return err
		}
	}
	all, err := x.Feed.Gaps(ctx, control.GapFilter{})
	if err != nil {
		return err
	}
	for _, g := range all {
		if revision, known := x.j.Gaps[g.Subject()]; g.Seal <= cuts[g.Shard] && (!known || revision != g.Revision) {
			return fmt.Errorf("%w: changes of shard %d from before the barrier were missing when it passed: see `tidemark gaps list`", errBegunAnew, g.Shard)
		}
	}
	return nil
}

func (x *exporter) proveShard(ctx context.Context, c Cut) error {
	ctx, cancel := context.WithTimeout(ctx, x.Patience)
	defer cancel()
	for {
		s, err := x.Feed.Source(ctx, c.Shard)
		switch {
		case err != nil:
			return err
		case s.VerifiedSeal >= c.Seal:
			return nil
		case !pause.For(ctx, provePause):
			return fmt.Errorf("the change feed of shard %d is verified up to seal %d, the barrier is seal %d: not within %v; `tidemark cdc status` tells where it stands, and the same export goes on", c.Shard, s.VerifiedSeal, c.Seal, x.Patience)
		}
	}
}
