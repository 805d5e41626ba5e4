package relations

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/singleflight"

	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

// A routing is the shard map that a store goes by. Maps are immutable and
// their ids rise, so the newest known is the one to use; whether it still is
// the right one each shard says, within the transaction (fence.go).
type routing struct {
	current atomic.Pointer[topology.ShardMap]
	shards  int
	load    func(context.Context) (topology.ShardMap, error) // nil: there is only the first
	loading singleflight.Group
}

func newRouting(c Config) *routing {
	r := &routing{shards: len(c.URLs), load: c.LoadMap}
	r.current.Store(&c.Map)
	return r
}

// renew takes over the stored map if it is newer than the one in use. Callers
// that come meanwhile share one look.
func (r *routing) renew(ctx context.Context) error {
	if r.load == nil {
		return errors.New("this process reads its shard map only at its start")
	}
	_, err, _ := r.loading.Do("", func() (any, error) {
		m, err := r.load(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading the shard map: %w", err)
		}
		if m.ID <= r.current.Load().ID {
			return nil, nil
		}
		if err := m.Check(r.shards); err != nil {
			return nil, err
		}
		r.current.Store(&m)
		return nil, nil
	})
	return err
}

// follow looks for a newer map now and then, until ctx ends: readers are not
// fenced and would stay with an old one.
func (s *Store) follow(ctx context.Context) {
	for pause.For(ctx, s.config.MapInterval) {
		// A map that cannot be read is told by the command that needs it.
		_ = s.routing.renew(ctx)
	}
}

// set routes a command and routes it again while the shard says that it goes
// by another map: after this process's, or not yet as far.
func (s *Store) set(ctx context.Context, r request) (Result, error) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 5*time.Millisecond, 250*time.Millisecond
	for {
		m := s.routing.current.Load()
		sh := s.shards[m.Shard(r.cmd.Relation.User)]
		r.epoch = m.ID
		res, err := sh.set(ctx, r)
		if !errors.Is(err, errOtherMap) {
			return res, err
		}
		if renewed := s.routing.renew(ctx); renewed != nil {
			err = renewed
		}
		if s.routing.current.Load().ID == m.ID && !pause.For(ctx, retry.NextBackOff()) {
			return Result{}, sh.unavailable(ctx, fmt.Errorf("it does not serve writers of shard map %d: %w", m.ID, err))
		}
	}
}
