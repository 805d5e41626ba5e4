package display

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// generation is what one cache generation has of a partition.
type generation struct {
	*follower
	name cache.Generation

	// Guarded by the follower's lock.
	waiting map[string]*change
	forgot  bool // waiting lacks changes: the log has them

	// Of the goroutine of Run.
	begun    bool
	position int64              // everything up to this offset of the log is in Redis; -1: not known
	writing  map[string]*change // left of the newest cut
	cut      cut
	told     cache.CountProgress // the newest progress that Redis was told
	toldAt   time.Time
	copying  *copying // nil when the whole table has been copied
	again    time.Time
	pause    time.Duration
	over     bool // nothing more is written to it
}

// cut is a moment of the log: what stands behind the writes before it.
type cut struct {
	offset int64
	asOf   []cache.ShardSeal
}

// copying is the first copy of a partition into a generation.
type copying struct {
	after   string // key up to which it is done
	from    int64  // offset that its first page included
	read    int64
	about   int64
	sampled []cache.DisplayCount
	compare bool // all is read
}

const (
	samples       = 50  // read back per partition
	writeBatch    = 256 // targets of one pipeline
	progressEvery = time.Second
	maxRetryPause = 5 * time.Second
)

// failed decides when to try again.
func (g *generation) failed(err error) {
	switch {
	case errors.Is(err, cache.ErrFenced):
		// Another owner has written since. It has the table as well.
		g.over = true
		g.log.Warn("counts of a partition are not cached from here: a later owner writes them", "partition", g.part.Number(), "generation", g.name.ID)
	case errors.Is(err, errFault), errors.Is(err, cache.ErrManifest):
		g.over = true
		g.log.Warn("counts of a partition are not cached in this generation any more", "partition", g.part.Number(), "generation", g.name.ID, "error", err)
	case g.pause == 0:
		g.log.Debug("writing counts to Redis, trying again", "partition", g.part.Number(), "generation", g.name.ID, "error", err)
	}
	g.pause = min(max(2*g.pause, g.cfg.interval), maxRetryPause)
	g.again = time.Now().Add(g.pause)
}

func (g *generation) owner() cache.Owner {
	g.mu.Lock()
	defer g.mu.Unlock()
	return cache.Owner{Name: topology.Hex4(g.part.Number()), Epoch: g.epoch}
}

// step writes some of what there is to write.
func (g *generation) step(ctx context.Context) error {
	switch {
	case !g.begun:
		return g.begin(ctx)
	case g.copying != nil:
		if err := g.copyPage(ctx); err != nil || g.copying != nil {
			return err
		}
	}
	if len(g.writing) == 0 {
		if err := g.readOn(ctx); err != nil {
			return err
		}
		g.takeCut()
	}
	return g.write(ctx)
}

// begin finds out how far the generation has come under an earlier owner. What
// settles from here on is told to it already.
func (g *generation) begin(ctx context.Context) error {
	old, err := g.cfg.Cache.CountProgress(ctx, g.name, []int{g.part.Number()})
	if err != nil {
		return err
	}
	acked := g.part.AckedOffset()
	err = g.snapshot(ctx, acked, func(s *gokakit.Snapshot, offset int64) error {
		if err := g.loadProgress(s); err != nil {
			return err
		}
		if p := old[0]; p != nil && p.Whole && int64(p.Offset) <= acked+1 {
			g.position, g.told = int64(p.Offset)-1, *p
			return nil
		}
		g.copying = &copying{from: offset}
		return s.Values("", func(key string, _ []byte) bool {
			if _, _, err := topology.ParseTargetKey(key); err == nil {
				g.copying.about++
			}
			return ctx.Err() == nil
		})
	})
	if err != nil {
		return err
	}
	g.mu.Lock()
	g.forgot = g.copying == nil // the log has what came since the earlier owner's progress
	g.mu.Unlock()
	g.begun = true
	return ctx.Err()
}

// snapshot reads a moment of the table that includes an offset.
func (g *generation) snapshot(ctx context.Context, least int64, read func(s *gokakit.Snapshot, offset int64) error) error {
	for late := false; ; late = true {
		if late && !pause.For(ctx, 10*time.Millisecond) {
			return ctx.Err()
		}
		if _, err := g.part.Show(); err != nil {
			return err
		}
		done := false
		err := g.part.Snapshot(func(s *gokakit.Snapshot) error {
			offset, err := s.Offset()
			if err != nil || offset < least {
				return err
			}
			done = true
			return read(s, offset)
		})
		if err != nil || done {
			return err
		}
	}
}

// loadProgress reads what counts include from the table: of what was told before
// this owner came, nothing else is known.
func (g *generation) loadProgress(s *gokakit.Snapshot) error {
	for count := range g.partitions {
		value, err := s.Get(topology.ProgressKey(g.part.Number(), count))
		if err != nil {
			return err
		}
		var row tidemarkv1.DisplayRow
		if err := row.UnmarshalVT(value); err != nil {
			return fmt.Errorf("reading the progress of count partition %d: %w", count, err)
		}
		if p := row.GetProgress(); p != nil {
			g.mu.Lock()
			g.advance(p)
			g.mu.Unlock()
		}
	}
	return nil
}

// copyPage copies the next rows of the table.
func (g *generation) copyPage(ctx context.Context) error {
	c := g.copying
	if c.compare {
		return g.compare(ctx)
	}
	page, last, more := map[string]*change{}, "", false
	var bad error
	err := g.part.Snapshot(func(s *gokakit.Snapshot) error {
		return s.Values(c.after, func(key string, value []byte) bool {
			if len(page) == g.rate {
				more = true
				return false
			}
			last = key
			bad = read(page, key, value)
			return bad == nil
		})
	})
	if err := errors.Join(err, bad); err != nil {
		return err
	}
	for _, ch := range page {
		c.sample(ch.display)
	}
	if err := g.send(ctx, page); err != nil {
		return err
	}
	if last != "" {
		c.after = last
	}
	c.compare = !more
	if time.Since(g.toldAt) > progressEvery || c.compare {
		return g.tell(ctx, cache.CountProgress{Read: c.read, About: max(c.about, c.read)})
	}
	return nil
}

// read adds a row of the table to a page, if it is a target's.
func read(page map[string]*change, key string, value []byte) error {
	var row tidemarkv1.DisplayRow
	if err := row.UnmarshalVT(value); err != nil {
		return fmt.Errorf("reading a row of the display table: %w", err)
	}
	if row.GetSnapshot() == nil {
		return nil
	}
	c, err := wholeRow(key, row.GetSnapshot())
	page[key] = c
	return err
}

// sample keeps some of the rows, each as likely as any other.
func (c *copying) sample(d cache.DisplayCount) {
	c.read++
	if len(c.sampled) < samples {
		c.sampled = append(c.sampled, d)
	} else if at := rand.Int64N(c.read); at < samples {
		c.sampled[at] = d
	}
}

// compare reads samples back: Redis must have each, not below what was copied.
func (g *generation) compare(ctx context.Context) error {
	c := g.copying
	for _, want := range c.sampled {
		got, err := g.cfg.Cache.Displays(ctx, g.name, want.Kind, []string{want.Target})
		if err != nil {
			return err
		}
		if d := got[0]; d == nil || d.Seq < want.Seq || d.Seq == want.Seq && *d != want {
			return g.fault(ctx, fmt.Errorf("%v %s was copied as %v at seq %d and is not there: has Redis room for it (maxmemory)?", want.Kind, want.Target, want.Counts, want.Seq))
		}
	}
	g.position, g.copying = c.from, nil
	g.told.Read, g.told.About, g.told.Sampled = c.read, c.read, int64(len(c.sampled))
	return nil
}

// readOn looks up in the table's log what waiting lacks.
func (g *generation) readOn(ctx context.Context) error {
	g.mu.Lock()
	forgot := g.forgot
	g.forgot = false // what settles from here on waits again
	g.mu.Unlock()
	if !forgot {
		return nil
	}
	to := g.part.AckedOffset()
	err := g.snapshot(ctx, to, func(s *gokakit.Snapshot, _ int64) error {
		page := map[string]*change{}
		err := g.part.ReadLog(ctx, g.position+1, to, func(key string, _ []byte, _ int64) error {
			if page[key] != nil {
				return nil
			}
			value, err := s.Get(key) // the winner, whatever the record says
			if err == nil {
				err = read(page, key, value)
			}
			if err != nil || len(page) < writeBatch {
				return err
			}
			return g.send(ctx, page)
		})
		if err != nil {
			return err
		}
		return g.send(ctx, page)
	})
	if err != nil {
		g.mu.Lock()
		g.forgot = true
		g.mu.Unlock()
		return err
	}
	g.position = to
	return nil
}

// takeCut takes what waits.
func (g *generation) takeCut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.forgot {
		return // since readOn: it comes first again
	}
	g.waitings.Sub(float64(len(g.waiting)))
	g.writing, g.waiting = g.waiting, map[string]*change{}
	g.cut = cut{max(g.settled, g.position), g.includes()}
}

// write brings the cut to Redis, and then says so.
func (g *generation) write(ctx context.Context) error {
	if err := g.send(ctx, g.writing); err != nil {
		return err
	}
	if g.cut.offset < g.position {
		return nil // there was none
	}
	g.position = g.cut.offset
	if g.told.Whole && int64(g.told.Offset) == g.position+1 {
		return nil
	}
	if g.told.Whole && slices.Equal(g.told.AsOf, g.cut.asOf) && time.Since(g.toldAt) < progressEvery {
		return nil // what a successor would write twice is little
	}
	p := g.told
	p.Whole, p.Offset, p.AsOf = true, uint64(g.position+1), g.cut.asOf
	return g.tell(ctx, p)
}

func (g *generation) tell(ctx context.Context, p cache.CountProgress) error {
	p.Manifest = g.name.Manifest
	w, err := g.name.WriteProgress(g.part.Number(), p)
	if err != nil {
		return err
	}
	if _, err := g.counts.writer.Write(ctx, g.name, g.owner(), []cache.CountWrite{w}); err != nil {
		return err
	}
	g.written.Inc()
	g.told, g.toldAt = p, time.Now()
	return nil
}

// fault says that the generation cannot have what it should, for good.
func (g *generation) fault(ctx context.Context, why error) error {
	p := g.told
	p.Whole, p.Fault = false, why.Error()
	if err := g.tell(ctx, p); err != nil {
		return err
	}
	return fmt.Errorf("%w: %w", errFault, why)
}

// send writes changes and takes those that Redis has from the map.
func (g *generation) send(ctx context.Context, changes map[string]*change) error {
	for len(changes) > 0 {
		var keys []string
		var writes []cache.CountWrite
		for key, c := range changes {
			w, err := c.writes(g.name)
			if err != nil {
				return g.fault(ctx, err)
			}
			keys, writes = append(keys, key), append(writes, w...)
			if len(keys) == writeBatch {
				break
			}
		}
		if _, err := g.counts.writer.Write(ctx, g.name, g.owner(), writes); err != nil {
			return err
		}
		g.written.Add(float64(len(writes)))
		for _, key := range keys {
			delete(changes, key)
		}
	}
	return nil
}
