package load

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/tidemark/tidemark/internal/pause"
)

// maxBatch is the largest batch query.
const maxBatch = 128

// batchContinues is the chance that a batch has one more id: sizes are
// geometric with p = 0.382.
const batchContinues = 1 - 0.382

type batch struct {
	due    time.Time
	user   string
	videos []string
}

// read sends batch queries as an open loop until ctx ends.
func (r *run) read(ctx, requests context.Context) {
	jobs := make(chan batch)
	var workers sync.WaitGroup
	for range r.config.Workers {
		workers.Go(func() {
			for b := range jobs {
				r.query(ctx, requests, b)
			}
		})
	}
	defer workers.Wait()
	defer close(jobs)
	rng := rand.New(rand.NewPCG(r.config.Seed, 2))
	users := userNames(r.config)
	videos := targetNames(r.config, r.config.ReadSkew, uint64(r.config.Targets/2))
	for n := 0; ; n++ {
		b := newBatch(rng, users, videos)
		b.due = r.start.Add(time.Duration(float64(n) / r.config.ReadRate * float64(time.Second)))
		if !pause.For(ctx, time.Until(b.due)) {
			return
		}
		select {
		case jobs <- b:
		case <-ctx.Done():
			return
		}
	}
}

func newBatch(rng *rand.Rand, users, videos names) batch {
	b := batch{user: users.draw(rng), videos: []string{videos.draw(rng)}}
	for len(b.videos) < maxBatch && rng.Float64() < batchContinues {
		b.videos = append(b.videos, videos.draw(rng))
	}
	return b
}

// query sends one batch query. Reads are not repeated.
func (r *run) query(ctx, requests context.Context, b batch) {
	a, err := r.executor.client.query(requests, b.user, b.videos)
	if err != nil {
		r.fail(err)
		return
	}
	if a.status == 0 && ctx.Err() != nil {
		return
	}
	r.measures.reads.add(readOutcome(a))
	if !b.due.Before(r.measures.measured) {
		r.measures.readLatency.add(time.Since(b.due))
		r.measures.readItems.Add(int64(len(b.videos)))
	}
}

func readOutcome(a answer) string {
	switch {
	case a.status == 0 && a.timedOut:
		return TimedOut
	case a.status == 0:
		return NoAnswer
	}
	return strconv.Itoa(a.status)
}
