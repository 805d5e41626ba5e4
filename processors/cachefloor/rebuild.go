package cachefloor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/cachekeeper"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/pause"
	"github.com/tidemark/tidemark/topology"
)

// Phases of a rebuilding.
const (
	phaseAnnouncing = ""            // the partitions are told of the generation
	phaseReading    = "reading"     // every relation is handed over
	phaseCatchingUp = "catching-up" // until all that, and the facts up to then, is in Redis
	phaseVerifying  = "verifying"
)

const defaultPage = 1000 // relations that are handed over in one step

// Phase is cachekeeper's.
//
// A fact that a partition took before it knew of the generation was committed
// before the reading began, which waits for writers under way (a commit is sent
// before it is seen), and so is read from the shard; every later one reaches the
// generation by itself. So what is in Redis at the end is, of each relation,
// at least what was committed when the reading began, and all that came since.
func (k *Keeper) Phase(ctx context.Context, g *control.CacheGeneration) (next string, err error) {
	switch g.Progress.Phase {
	case phaseAnnouncing:
		k.samples = map[int]*sample{}
		return phaseReading, k.announce(ctx, g)
	case phaseReading:
		return phaseCatchingUp, k.read(ctx, g)
	case phaseCatchingUp:
		return phaseVerifying, k.catchUp(ctx)
	case phaseVerifying:
		return cachekeeper.Activate, k.verify(ctx, g)
	}
	return "", cachekeeper.Unfitf("its rebuilding stands at the unknown phase %q", g.Progress.Phase)
}

// announce has every partition write the generation.
func (k *Keeper) announce(ctx context.Context, g *control.CacheGeneration) error {
	ends, err := k.send(ctx, beginTasks(k.cfg.Topology, g.Generation))
	if err != nil {
		return err
	}
	return k.awaitCommitted(ctx, map[string]map[int]int64{topology.CacheTasks: ends})
}

// read hands every relation over, page by page, throttled.
func (k *Keeper) read(ctx context.Context, g *control.CacheGeneration) error {
	if g.Progress.Shards == nil {
		g.Progress.Shards = map[int]control.CacheShardProgress{}
	}
	for shard := range k.cfg.Topology.Config.Shards {
		if err := k.readShard(ctx, g, shard); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) readShard(ctx context.Context, g *control.CacheGeneration, shard int) (err error) {
	p := g.Progress.Shards[shard]
	if p.Seal == 0 {
		if err := k.cfg.Source.AwaitWriters(ctx, shard); err != nil {
			return err
		}
		if p.About, p.Seal, err = k.cfg.Source.Extent(ctx, shard); err != nil {
			return err
		}
	}
	var after topology.Relation
	if p.After != "" {
		if after, err = topology.ParseRelationKey(p.After); err != nil {
			return cachekeeper.Unfitf("the place in shard %d up to which it is read is unreadable: %w", shard, err)
		}
	}
	for noted := time.Now(); !p.Done; {
		began := time.Now()
		page, err := k.cfg.Source.Relations(ctx, shard, after, k.cfg.page)
		if err != nil {
			return err
		}
		if len(page) > 0 {
			if err := k.handOver(ctx, g.ID, shard, page); err != nil {
				return err
			}
			k.sampleOf(shard).add(page)
			after = page[len(page)-1].Relation
			p.After, p.Read = after.Key(), p.Read+int64(len(page))
		}
		p.Done = len(page) < k.cfg.page
		g.Progress.Shards[shard] = p
		if p.Done || time.Since(noted) > time.Second {
			noted = time.Now()
			if going, err := k.cfg.Control.NoteCacheProgress(ctx, g.Generation, g.Progress); err != nil || !going {
				return errors.Join(err, notGoing(going))
			}
		}
		k.rebuilt.Add(float64(len(page)))
		pause.For(ctx, time.Duration(len(page))*time.Second/time.Duration(k.cfg.Rate)-time.Since(began))
	}
	return ctx.Err()
}

func (k *Keeper) sampleOf(shard int) *sample {
	if k.samples[shard] == nil {
		k.samples[shard] = new(sample)
	}
	return k.samples[shard]
}

func notGoing(going bool) error {
	if going {
		return nil
	}
	return cachekeeper.Unfitf("somebody has ended it")
}

func (k *Keeper) handOver(ctx context.Context, generation uint64, shard int, page []cache.Relation) error {
	records := make([]*kgo.Record, len(page))
	for i, r := range page {
		records[i] = Handover(k.cfg.Topology, shard, generation, r)
	}
	_, err := k.send(ctx, records)
	return err
}

// catchUp waits until everything that facts and tasks hold now has its effect in
// Redis: the group commits nothing before that.
func (k *Keeper) catchUp(ctx context.Context) error {
	admin := kadm.NewClient(k.cfg.Kafka)
	goal := map[string]map[int]int64{}
	for _, stream := range []string{topology.Facts, topology.CacheTasks} {
		topic := k.cfg.Topology.Topic(stream)
		ends, err := admin.ListEndOffsets(ctx, topic)
		if err == nil {
			err = ends.Error()
		}
		if err != nil {
			return fmt.Errorf("reading the ends of %s: %w", topic, err)
		}
		goal[stream] = map[int]int64{}
		for partition, end := range ends[topic] {
			goal[stream][int(partition)] = end.Offset
		}
	}
	return k.awaitCommitted(ctx, goal)
}

const commitLooks = 100 * time.Millisecond

// awaitCommitted waits until the group has committed up to offsets, by stream
// and partition.
func (k *Keeper) awaitCommitted(ctx context.Context, goal map[string]map[int]int64) error {
	admin := kadm.NewClient(k.cfg.Kafka)
	group := k.cfg.Topology.Group(topology.CacheFloorGroup).ID
	for {
		committed, err := admin.FetchOffsets(ctx, group)
		if err != nil {
			return fmt.Errorf("reading the position of group %s: %w", group, err)
		}
		behind := false
		for stream, ends := range goal {
			for partition, end := range ends {
				at, ok := committed.Lookup(k.cfg.Topology.Topic(stream), int32(partition))
				behind = behind || end > 0 && (!ok || at.At < end)
			}
		}
		if !behind {
			return nil
		}
		if !pause.For(ctx, commitLooks) {
			return ctx.Err()
		}
	}
}

// samples of a shard are compared before an activation.
const samples = 200

// sample keeps some of what a reading came upon, each as likely as any other.
type sample struct {
	seen int
	kept []cache.Relation
}

func (s *sample) add(page []cache.Relation) {
	for _, r := range page {
		s.seen++
		if len(s.kept) < samples {
			s.kept = append(s.kept, r)
		} else if at := rand.IntN(s.seen); at < samples {
			s.kept[at] = r
		}
	}
}

// sampleGrace is how long Redis may take to have what a shard had when it was
// read.
const sampleGrace = 10 * time.Second

// verify compares what Redis holds of the generation with the shards: a sample
// of relations, each at least at the version that it was read at, and the number
// of entries.
func (k *Keeper) verify(ctx context.Context, g *control.CacheGeneration) error {
	var read int64
	for shard, p := range g.Progress.Shards {
		read += p.Read
		s := k.samples[shard]
		if s == nil { // another keeper read the shard
			page, err := k.cfg.Source.Relations(ctx, shard, topology.Relation{}, samples)
			if err != nil {
				return err
			}
			s = &sample{kept: page}
		}
		if err := k.compare(ctx, g, shard, s.kept); err != nil {
			return err
		}
		g.Progress.Sampled += int64(len(s.kept))
	}
	entries, err := k.cfg.Cache.CountRelations(ctx, g.Generation)
	if err != nil {
		return err
	}
	if g.Progress.Entries = entries; entries < read {
		return cachekeeper.Unfitf("%d relations were read from the shards, and Redis holds %d: has it room for them (maxmemory)?", read, entries)
	}
	return nil
}

func (k *Keeper) compare(ctx context.Context, g *control.CacheGeneration, shard int, sampled []cache.Relation) error {
	end := time.Now().Add(sampleGrace)
	for _, want := range sampled {
		for {
			got, err := k.cfg.Cache.Relations(ctx, g.Generation, want.Kind, want.User, []string{want.Target})
			if errors.Is(err, cache.ErrStamp) {
				return cachekeeper.Unfitf("Redis lost it while it was verified")
			}
			if err != nil {
				return err
			}
			has := got[0]
			if has.Found && (has.Version > want.Version || has.Version == want.Version && has.State == want.State) {
				break
			}
			if time.Now().After(end) {
				return cachekeeper.Unfitf("shard %d has %s as %v at version %d, Redis as %v at %d", shard, want.Key(), want.State, want.Version, has.State, has.Version)
			}
			if !pause.For(ctx, commitLooks) {
				return ctx.Err()
			}
		}
	}
	return nil
}
