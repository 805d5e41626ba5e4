package drills

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/drills/oracle"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/kafkaadmin"
	"github.com/tidemark/tidemark/processors/cachefloor"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

// redisLateTask hands in what readers read before relations changed: to a
// generation that is rebuilt after a flush, and to it when it is active and Redis
// has forgotten those relations, so that nothing there stands against them.
func redisLateTask(ctx context.Context, s *system, rnd *rand.Rand) error {
	lost, err := s.activeAfter(ctx, 0)
	if err != nil {
		return err
	}
	facts, err := s.changed(ctx)
	if err != nil {
		return err
	}
	if err := s.redis.flush(ctx); err != nil {
		return err
	}
	if err := await(ctx, s.patience, "another generation being active", func() error {
		newest, err := s.generation(ctx)
		if err != nil {
			return err
		}
		if newest.ID <= lost.ID {
			return errors.New("none is begun")
		}
		if err := s.handIn(ctx, newest.Generation, some(rnd, facts), older); err != nil {
			return err
		}
		if newest.Status != control.CacheActive {
			return fmt.Errorf("%d is %s: %s", newest.ID, newest.Status, newest.EndedReason)
		}
		return nil
	}); err != nil {
		return err
	}
	active, err := s.activeAfter(ctx, lost.ID)
	if err != nil {
		return err
	}
	late := some(rnd, facts)
	if err := s.redis.forget(ctx, active, late); err != nil {
		return err
	}
	if err := s.handIn(ctx, active, late, older); err != nil {
		return err
	}
	if err := s.taken(ctx); err != nil {
		return err
	}
	return s.cached(ctx)
}

// redisOldGeneration has a writer paused while another generation takes the
// place of the one that it writes, and wakes it; then another one takes the place
// of that, with which the first shares rows of the table, and tasks of both old
// ones come late, with lower and higher versions.
func redisOldGeneration(ctx context.Context, s *system, rnd *rand.Rand) error {
	old, err := s.activeAfter(ctx, 0)
	if err != nil {
		return err
	}
	sleeper, err := s.notKeeper(ctx)
	if err != nil {
		return err
	}
	var next cache.Generation
	if err := sleeper.on(func() error {
		sleeper.now().Pause()
		defer sleeper.now().Continue()
		s.tallies.paused()
		next, err = s.rebuild(ctx, old)
		return err
	}); err != nil {
		return err
	}
	now, err := s.rebuild(ctx, next)
	if err != nil {
		return err
	}
	facts, err := s.changed(ctx)
	if err != nil {
		return err
	}
	for _, ended := range []cache.Generation{old, next} {
		for _, change := range []func(relations.Fact) uint64{older, newer} {
			if err := s.handIn(ctx, ended, some(rnd, facts), change); err != nil {
				return err
			}
		}
	}
	if err := s.taken(ctx); err != nil {
		return err
	}
	if err := s.cached(ctx); err != nil {
		return err
	}
	return errors.Join(s.cleared(ctx, old, now), s.cleared(ctx, next, now))
}

// rebuild has another generation take the place of the active one, as an
// operator does.
func (s *system) rebuild(ctx context.Context, old cache.Generation) (cache.Generation, error) {
	if err := s.operate(ctx, "cache", "rebuild", "relations", "--execute", "--wait", "0", "--as", "drill"); err != nil {
		return old, err
	}
	return s.activeAfter(ctx, old.ID)
}

// notKeeper is a cachefloor process that did not lead the last generation to
// its activation, so that another one can be rebuilt while it is paused.
func (s *system) notKeeper(ctx context.Context) (*role, error) {
	entries, err := s.control.Entries(ctx, "", 1000)
	if err != nil {
		return nil, err
	}
	keeper := ""
	for _, e := range entries {
		if e.Action == "cache.activated" {
			keeper = e.Who
			break
		}
	}
	all := s.rolesOf("cachefloor")
	for _, r := range all {
		if keeper != "cachefloor "+r.name {
			return r, nil
		}
	}
	return all[0], nil
}

// cleared waits until nothing is left in Redis of an ended generation.
func (s *system) cleared(ctx context.Context, old, now cache.Generation) error {
	redis, err := cache.Open(cache.Config{URL: s.cfg.Redis, Timeout: 10 * time.Second})
	if err != nil {
		return err
	}
	defer func() { _ = redis.Close() }()
	err = await(ctx, s.patience, "Redis being cleared of an ended generation", func() error {
		n, err := redis.CountRelations(ctx, old)
		if err == nil && n > 0 {
			err = fmt.Errorf("%d relations of %d are there, while %d is active", n, old.ID, now.ID)
		}
		return err
	})
	var not stuckError
	if errors.As(err, &not) {
		s.findings.Add(CacheAlive, "%v", err)
		return nil
	}
	return err
}

// older is the version before a fact's.
func older(f relations.Fact) uint64 { return f.Version - 1 }

// newer is one that never was.
func newer(f relations.Fact) uint64 { return f.Version + 1000 }

// changed are the relations that have changed, once there are any.
func (s *system) changed(ctx context.Context) (changed []relations.Fact, err error) {
	err = await(ctx, s.patience, "relations having changed", func() error {
		changed = changed[:0]
		err := s.eachFact(ctx, func(f relations.Fact) {
			if f.Version > 1 {
				changed = append(changed, f)
			}
		})
		if err == nil && len(changed) < handedIn/10 {
			err = fmt.Errorf("%d have", len(changed))
		}
		return err
	})
	return changed, err
}

// handedIn are the relations of one handing in, at most.
const handedIn = 300

func some(rnd *rand.Rand, facts []relations.Fact) []relations.Fact {
	some := slices.Clone(facts)
	rnd.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	return some[:min(handedIn, len(some))]
}

// forget removes what Redis has of the users of relations. The embedded one
// cannot be told to.
func (r *redisServers) forget(ctx context.Context, g cache.Generation, facts []relations.Fact) error {
	if r.main == nil {
		return nil
	}
	forget := []string{"unlink"}
	for _, f := range facts {
		forget = append(forget, fmt.Sprintf("%v:relation:g%d:{%s|0}", f.Relation.Kind, g.ID, f.Relation.User))
	}
	_, err := r.main.Command(ctx, forget...)
	return err
}

// handIn writes tasks of a generation about relations, in the other state, at
// the version that change says.
func (s *system) handIn(ctx context.Context, g cache.Generation, facts []relations.Fact, change func(relations.Fact) uint64) error {
	shards, err := s.control.ShardMap(ctx)
	if err != nil {
		return err
	}
	var tasks []*kgo.Record
	for _, f := range facts {
		r := cache.Relation{Relation: f.Relation, State: f.Relation.Kind.Initial(), Version: change(f)}
		if f.State == r.State {
			r.State = f.Relation.Kind.Active()
		}
		tasks = append(tasks, cachefloor.Handover(s.topo, shards.Shard(f.Relation.User), g.ID, r))
	}
	client, err := kafkaadmin.Client(s.cfg.Kafka.Brokers, nil, kgo.ClientID(oracle.ClientID))
	if err != nil {
		return err
	}
	defer client.Close()
	return client.ProduceSync(ctx, tasks...).FirstErr()
}

// taken waits until the cachefloor group has committed all of its tasks that
// stand now.
func (s *system) taken(ctx context.Context) error {
	client, err := kafkaadmin.Client(s.cfg.Kafka.Brokers, nil, kgo.ClientID(oracle.ClientID))
	if err != nil {
		return err
	}
	defer client.Close()
	admin, topic := kadm.NewClient(client), s.topo.Topic(topology.CacheTasks)
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("reading the end of %s: %w", topic, err)
	}
	return await(ctx, s.patience, "the cache's tasks being taken", func() error {
		committed, err := admin.FetchOffsets(ctx, s.topo.Group(topology.CacheFloorGroup).ID)
		if err != nil {
			return err
		}
		for partition, end := range ends[topic] {
			if at, ok := committed.Lookup(topic, partition); end.Offset > 0 && (!ok || at.At < end.Offset) {
				err = fmt.Errorf("partition %d is taken up to %d of %d", partition, at.At, end.Offset)
			}
		}
		return err
	})
}
