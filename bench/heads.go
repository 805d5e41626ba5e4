package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/gokakit"
	"github.com/tidemark/tidemark/processors/likers"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
	"github.com/tidemark/tidemark/views"
)

const (
	headLikers = 200_000 // of the one target
	headLength = 5_000   // entries of a head, over all its parts
	headPage   = 20
	headBatch  = 64 // changes that an owner brings to its part at a time
	headTarget = "V9001"
)

// benchHeads reads the first page of a hot target's likers from the reverse
// index, over HTTP/2 from processes that own its partitions, and from a head
// of the list in Redis: sorted sets of the newest entries.
//
// A head has a part for each partition, since only a partition's owner knows
// up to which offset its entries are whole; the reader takes the newest of each
// part with its offset, and merges. One set for all of a target is the bound
// for a head that anyone would make: nobody could say what it includes.
func benchHeads(ctx context.Context) error {
	s, err := startStage(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	redis, stop, err := startRedis(ctx)
	if errors.Is(err, embedded.ErrNoRedisServer) {
		fmt.Println("  skipped:", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer stop()
	g := topology.NewReverseGeneration(1, s.topo.Config.LikerPartitions, s.topo.Config.ReverseShards)
	all, err := prepareHot(ctx, s, g, headTarget, headLikers)
	if err != nil {
		return err
	}
	view, stopOwner, err := startOwner(ctx, s, g)
	if err != nil {
		return err
	}
	defer stopOwner()
	if err := awaitCommitted(ctx, s.client, s.topo.Group(topology.LikersGroup).ID, headLikers); err != nil {
		return err
	}
	h, err := newHeads(ctx, redis, g, all)
	if err != nil {
		return err
	}
	fmt.Printf("  a target of %d likers, R = %d, on %d partitions; first page of %d; %d clients, %d turns of %v each\n", headLikers, g.Shards(), len(h.parts), headPage, wayClients, wayTurns, wayTurn)
	fmt.Printf("  CPU of client, owner and Redis per page, its ratio to that of the index, median time\n")
	q := views.LikersQuery{Kind: topology.Like, Target: headTarget, Limit: headPage}
	err = compareWays(ctx, []way{
		{"from the index", func(ctx context.Context, _ int) error {
			page, err := view.Page(ctx, q)
			if err == nil && len(page.Entries) != headPage {
				err = fmt.Errorf("%d entries", len(page.Entries))
			}
			return err
		}},
		{fmt.Sprintf("from a head of %d parts", len(h.parts)), func(ctx context.Context, _ int) error { return h.page(ctx, h.parts) }},
		{"from one set (not a head that could be told)", func(ctx context.Context, _ int) error { return h.page(ctx, h.whole) }},
	})
	if err != nil {
		return err
	}
	cost, err := h.churn(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("  keeping it: %.1f core-µs a change of the target, %d changes a script\n", cost, headBatch)
	return nil
}

func startRedis(ctx context.Context) (c *cache.Client, stop func(), err error) {
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return nil, nil, err
	}
	server, err := embedded.StartRedisServer(ctx, embedded.RedisServerConfig{Dir: dir})
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, nil, err
	}
	stopServer := func() { _ = server.Stop(); _ = os.RemoveAll(dir) }
	if c, err = cache.Open(cache.Config{URL: "redis://" + server.Addr, Timeout: 5 * time.Second}); err != nil {
		stopServer()
		return nil, nil, err
	}
	return c, func() { _ = c.Close(); stopServer() }, nil
}

// hotLike is a liker of the hot target.
type hotLike struct {
	user string
	at   int64
	part int // partition
}

// prepareHot fills liker-changes with n likers of a target.
func prepareHot(ctx context.Context, s *stage, g topology.ReverseGeneration, target string, n int) (all []hotLike, err error) {
	var failed error
	for i := range n {
		at := int64(1_700_000_000_000_000) + int64(i)*1000
		rel := topology.Relation{Kind: topology.Like, User: fmt.Sprintf("user%07d", i), Target: target}
		c := &tidemarkv1.RelationChange{
			EventId: "0190f5fe-7a00-7000-8000-000000000000", Kind: tidemarkv1.Kind_KIND_LIKE, UserId: rel.User, TargetId: rel.Target,
			RelationVersion: 1, State: tidemarkv1.State(topology.Liked), StateChangedAtUs: at, CommittedAtUs: at, CdcOffset: at,
			Position: &tidemarkv1.SourcePosition{PreviousCommitLsn: uint64(at), Lsn: uint64(at)}, Reverse: g.Place(rel),
		}
		value, err := (&tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Relation{Relation: c}}).MarshalVT()
		if err != nil {
			return nil, err
		}
		all = append(all, hotLike{rel.User, at, int(c.Reverse.Partition)})
		s.client.Produce(ctx, &kgo.Record{Topic: s.topo.Topic(topology.LikerChanges), Partition: int32(c.Reverse.Partition), Key: []byte(topology.LikerKey(c.Reverse, rel.Key())), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err
			}
		})
	}
	if err := s.client.Flush(ctx); err != nil {
		return nil, err
	}
	return all, failed
}

// startOwner runs likers, which answers a view over HTTP/2.
func startOwner(ctx context.Context, s *stage, g topology.ReverseGeneration) (v *views.Likers, stop func(), err error) {
	dir, err := os.MkdirTemp("", "tidemark-bench-")
	if err != nil {
		return nil, nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	client := gokakit.Client{Brokers: s.addresses}
	l, err := likers.New(likers.Config{
		Client: client, Topology: s.topo, Reverse: g, StateDir: dir, Instance: "bench", ShowInterval: 20 * time.Millisecond,
		Advertise: listener.Addr().String(), Logger: log,
	})
	if err != nil {
		return nil, nil, err
	}
	if v, err = views.NewLikers(views.LikersConfig{Client: client, Topology: s.topo, Reverse: g}); err != nil {
		return nil, nil, err
	}
	runCtx, cancel := context.WithCancel(ctx)
	done := make(chan struct{}, 2)
	go func() { _ = l.Run(runCtx); done <- struct{}{} }()
	go func() {
		_ = likers.NewServer(l, likers.ServerConfig{Listener: listener, Logger: log}).Run(runCtx)
		done <- struct{}{}
	}()
	stop = func() { v.Close(); cancel(); <-done; <-done; _ = os.RemoveAll(dir) }
	if err := awaitReady(ctx, l.Ready); err != nil {
		stop()
		return nil, nil, err
	}
	return v, stop, nil
}

// heads are the parts of a target's head, and the one set.
type heads struct {
	redis *cache.Client
	gen   cache.Generation
	parts []cache.Key
	whole []cache.Key
	keep  map[string]int // of each key
	all   []hotLike
	key   map[int]cache.Key // by partition
}

// newHeads gives Redis the newest entries. The sets stand under keys of counts,
// beside which a hash says what each includes: their sizes matter, not their
// names.
func newHeads(ctx context.Context, redis *cache.Client, g topology.ReverseGeneration, all []hotLike) (*heads, error) {
	h := &heads{redis: redis, gen: cache.Generation{Family: cache.Counts, ID: 1, Deployment: "bench", Manifest: 1}, keep: map[string]int{}, all: all, key: map[int]cache.Key{}}
	if err := redis.Stamp(ctx, h.gen); err != nil {
		return nil, err
	}
	one := h.gen.DisplayKey(topology.Like, headTarget)
	h.whole, h.keep[one.String()] = []cache.Key{one}, headLength
	on := g.ShardsByPartition(topology.Like, headTarget)
	for partition := range on {
		key := h.gen.CountKey(topology.Like, headTarget, partition)
		h.parts, h.key[partition], h.keep[key.String()] = append(h.parts, key), key, headLength/len(on)
	}
	newest := all[len(all)-2*headLength:]
	for part := range slices.Chunk(newest, headBatch) {
		if err := h.add(ctx, part, true); err != nil {
			return nil, err
		}
	}
	return h, nil
}

// addEntries takes pairs of time and user, then the offset that they reach, the
// length to cut to, and the number of pairs. The offset stands in the set, below
// every entry.
var addEntries = cache.NewScript(`
local n = tonumber(ARGV[#ARGV])
local first = #ARGV - 2 - 2 * n
for i = first, first + 2 * n - 1, 2 do redis.call('ZADD', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', 0)
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - tonumber(ARGV[#ARGV - 1]))
redis.call('ZADD', KEYS[1], 0, '~' .. ARGV[#ARGV - 2])
return n`)

// add brings changes to the parts, and to the one set if that is wanted.
func (h *heads) add(ctx context.Context, changes []hotLike, whole bool) error {
	by := map[cache.Key][]any{}
	for _, c := range changes {
		pair := []any{c.at, c.user}
		by[h.key[c.part]] = append(by[h.key[c.part]], pair...)
		if whole {
			by[h.whole[0]] = append(by[h.whole[0]], pair...)
		}
	}
	var calls []cache.Call
	for key, args := range by {
		calls = append(calls, cache.Call{Key: key, Args: append(args, changes[len(changes)-1].at, h.keep[key.String()], len(args)/2)})
	}
	for _, r := range h.redis.Run(ctx, addEntries, calls) {
		if r.Err != nil {
			return r.Err
		}
	}
	return nil
}

// page reads the newest of each part with the offset of each, and merges.
func (h *heads) page(ctx context.Context, keys []cache.Key) error {
	var reads []cache.Read
	for _, k := range keys {
		reads = append(reads, cache.Newest(k, 0, headPage-1), cache.Newest(k, -1, -1))
	}
	var merged []hotLike
	for i, r := range h.redis.Read(ctx, reads) {
		if r.Err != nil {
			return r.Err
		}
		values, _ := r.Value.([]any)
		if i%2 == 1 {
			if len(values) != 2 {
				return errors.New("a part without its offset")
			}
			continue
		}
		for j := 0; j+1 < len(values); j += 2 {
			user, _ := values[j].(string)
			score, _ := values[j+1].(string)
			at, err := strconv.ParseFloat(score, 64)
			if err != nil {
				return err
			}
			merged = append(merged, hotLike{user: user, at: int64(at)})
		}
	}
	slices.SortFunc(merged, func(a, b hotLike) int { return int(b.at - a.at) })
	if len(merged) < headPage || merged[0].at != h.all[len(h.all)-1].at || merged[headPage-1].at != h.all[len(h.all)-headPage].at {
		return errors.New("the head is not the newest of the list")
	}
	return nil
}

// churn is the CPU time, of client and Redis, that a change of the parts takes.
func (h *heads) churn(ctx context.Context) (coreMicros float64, err error) {
	before, err := treeCPU()
	if err != nil {
		return 0, err
	}
	n := 0
	for part := range slices.Chunk(h.all[len(h.all)-10*headLength:], headBatch) {
		if err := h.add(ctx, part, false); err != nil {
			return 0, err
		}
		n += len(part)
	}
	after, err := treeCPU()
	return float64((after - before).Microseconds()) / float64(n), err
}
