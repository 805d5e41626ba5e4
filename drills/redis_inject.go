package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tidemark/tidemark/drills/reading"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/topology"
)

// redisStop has the server stand still: connections stay, answers do not come.
func redisStop(ctx context.Context, s *system, rnd *rand.Rand) error {
	server, err := s.redis.server()
	if err != nil {
		return err
	}
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	if err := sleep(ctx, between(rnd, 2*time.Second, 7*time.Second)); err != nil {
		return err
	}
	server.Signal(syscall.SIGCONT)
	return s.cached(ctx)
}

// killRedis kills the server, and gives it with the generation that was active.
func (s *system) killRedis(ctx context.Context) (server *embedded.RedisServer, lost cache.Generation, err error) {
	if server, err = s.redis.server(); err != nil {
		return nil, lost, err
	}
	if lost, err = s.activeAfter(ctx, 0); err != nil {
		return nil, lost, err
	}
	server.Signal(os.Kill)
	s.tallies.killed()
	return server, lost, nil
}

// redisKill loses everything, and what was under way.
func redisKill(ctx context.Context, s *system, rnd *rand.Rand) error {
	server, lost, err := s.killRedis(ctx)
	if err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, 0, 3*time.Second)); err != nil {
		return err
	}
	if err := server.Start(ctx); err != nil {
		return err
	}
	return s.rebuilt(ctx, lost.ID)
}

func redisFlush(ctx context.Context, s *system, _ *rand.Rand) error {
	lost, err := s.activeAfter(ctx, 0)
	if err != nil {
		return err
	}
	if err := s.redis.flush(ctx); err != nil {
		return err
	}
	return s.rebuilt(ctx, lost.ID)
}

// rebuilt waits until another generation is active in the place of a lost one,
// and compares.
func (s *system) rebuilt(ctx context.Context, lost uint64) error {
	// Without its stamps nobody notices that anything was lost.
	if !s.weak.Has(gokakit.WithoutStamp) {
		if _, err := s.activeAfter(ctx, lost); err != nil {
			return err
		}
	}
	return s.cached(ctx)
}

func redisSlow(ctx context.Context, s *system, rnd *rand.Rand) error {
	const late = 2 * time.Second
	s.redis.proxy.Slow(late)
	defer s.redis.proxy.Slow(0)
	if err := sleep(ctx, between(rnd, 2*late, 4*late)); err != nil {
		return err
	}
	s.redis.proxy.Slow(0)
	return s.cached(ctx)
}

// redisFull leaves the server no room: what it cannot bring up to date it must
// not keep.
func redisFull(ctx context.Context, s *system, rnd *rand.Rand) error {
	return s.withoutRoom(ctx, rnd, "noeviction", 0)
}

// redisEvict has the server forget what it likes to, stamps too.
func redisEvict(ctx context.Context, s *system, rnd *rand.Rand) error {
	return s.withoutRoom(ctx, rnd, "allkeys-lru", 64<<10)
}

// withoutRoom limits memory to less than what is used.
func (s *system) withoutRoom(ctx context.Context, rnd *rand.Rand, policy string, less int64) error {
	if _, err := s.redis.server(); err != nil {
		return err
	}
	used, err := s.redis.used(ctx)
	if err != nil {
		return err
	}
	if err := s.redis.room(ctx, used-less, policy); err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, 2*time.Second, 6*time.Second)); err != nil {
		return err
	}
	if err := s.redis.room(ctx, 0, "noeviction"); err != nil {
		return err
	}
	return s.cached(ctx)
}

// redisFailover has a replica take over that lacks the last writes: it is
// promoted while the old master still takes some.
func redisFailover(ctx context.Context, s *system, rnd *rand.Rand) error {
	old, next := s.redis.main, s.redis.replica
	lost, err := s.activeAfter(ctx, 0)
	if err != nil {
		return err
	}
	// Users of whom nobody asks until the end, so that nothing repairs what the
	// replica lacks of them.
	marked := fmt.Sprintf("marked-%x-", rnd.Uint32())
	if err := s.setMarked(ctx, lost, marked, topology.Liked, 0); err != nil {
		return err
	}
	if err := await(ctx, s.patience, "the replica being in step", func() error { return inStep(ctx, next) }); err != nil {
		return err
	}
	if _, err := next.Command(ctx, "replicaof", "no", "one"); err != nil {
		return err
	}
	if err := s.setMarked(ctx, lost, marked, topology.Unliked, 1); err != nil {
		return err
	}
	if err := sleep(ctx, between(rnd, time.Second, 3*time.Second)); err != nil {
		return err
	}
	old.Signal(os.Kill)
	s.tallies.killed()
	s.redis.main, s.redis.replica = next, old
	s.redis.proxy.LeadTo(next.Addr)
	if err := old.Start(ctx); err != nil {
		return err
	}
	if err := follow(ctx, old, next); err != nil {
		return err
	}
	return s.rebuilt(ctx, lost.ID)
}

// markedUsers have one relation each.
const markedUsers = 20

const markedTarget = "marked"

// setMarked changes marked users' relations, and waits until Redis has that.
func (s *system) setMarked(ctx context.Context, g cache.Generation, prefix string, state topology.State, base uint64) error {
	redis, err := cache.Open(cache.Config{URL: s.cfg.Redis, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = redis.Close() }()
	for n := range markedUsers {
		user := prefix + strconv.Itoa(n)
		token, err := s.auth.Mint(user, "", time.Hour)
		if err != nil {
			return err
		}
		told, err := reading.Client{BaseURL: "http://" + s.cfg.API.Listen, Token: token}.Set(ctx, markedTarget, state, base)
		if err != nil {
			return fmt.Errorf("changing a marked relation: %w", err)
		}
		if err := await(ctx, s.patience, "a marked relation being in Redis", func() error {
			have, err := redis.Relations(ctx, g, topology.Like, user, []string{markedTarget})
			if err == nil && have[0].Version < told.Version {
				err = fmt.Errorf("it is there at version %d of %d", have[0].Version, told.Version)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func inStep(ctx context.Context, replica *embedded.RedisServer) error {
	info, err := replica.Command(ctx, "info", "replication")
	if err == nil && infoField(info, "master_link_status") != "up" {
		err = fmt.Errorf("its link is %q", infoField(info, "master_link_status"))
	}
	return err
}

// movedSlots are moved in one injection.
const movedSlots = 6

// redisSlotMove moves slots that hold relations from node to node while they
// are written.
func redisSlotMove(ctx context.Context, s *system, rnd *rand.Rand) error {
	nodes := s.redis.cluster.Nodes
	for range movedSlots {
		at := rnd.IntN(len(nodes))
		from, to := nodes[at], nodes[(at+1+rnd.IntN(len(nodes)-1))%len(nodes)]
		slot, err := relationSlot(ctx, from)
		if errors.Is(err, errNobody) {
			continue
		}
		if err != nil {
			return err
		}
		if err := s.redis.cluster.MoveSlot(ctx, slot, from, to); err != nil {
			return err
		}
		s.tallies.note("slots with relations were moved while they were written")
	}
	return s.cached(ctx)
}

// relationSlot is a slot of a node that holds a user's relations.
func relationSlot(ctx context.Context, node *embedded.RedisServer) (int, error) {
	const tries = 2000 // of 5461 stamps and as many keys as there are users
	for range tries {
		key, err := node.Command(ctx, "randomkey")
		if err != nil {
			return 0, err
		}
		if !strings.Contains(key, ":relation:") {
			continue
		}
		slot, err := node.Command(ctx, "cluster", "keyslot", key)
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(slot)
	}
	return 0, errNobody
}

// redisFloorKill ends those who keep the cache again and again, between any two
// of their steps, and compares while nobody does.
func redisFloorKill(ctx context.Context, s *system, rnd *rand.Rand) error {
	const lives = 4
	all := s.rolesOf("cachefloor")
	for range lives {
		for _, r := range all {
			r.busy.Lock()
			r.now().Kill()
			s.tallies.killed()
		}
		err := sleep(ctx, between(rnd, 300*time.Millisecond, time.Second))
		if err == nil {
			err = s.compareCache(ctx)
		}
		for _, r := range all {
			err = errors.Join(err, r.start())
			r.busy.Unlock()
		}
		if err != nil {
			return err
		}
		for _, r := range all {
			if err := await(ctx, s.patience, r.name+" being ready", func() error { return r.ready(ctx) }); err != nil {
				return err
			}
		}
		if err := sleep(ctx, between(rnd, 0, time.Second)); err != nil {
			return err
		}
	}
	return s.cached(ctx)
}

// redisCut cuts connections within what they pass on: a part of a pipeline is
// done, and nobody is told.
func redisCut(ctx context.Context, s *system, rnd *rand.Rand) error {
	before := s.redis.proxy.Cuts()
	s.redis.proxy.CutAfter(between(rnd, int64(4<<10), 64<<10))
	defer s.redis.proxy.CutAfter(0)
	if err := sleep(ctx, between(rnd, 3*time.Second, 6*time.Second)); err != nil {
		return err
	}
	s.redis.proxy.CutAfter(0)
	if s.redis.proxy.Cuts() == before {
		return stuckError{errNobody}
	}
	return s.cached(ctx)
}
