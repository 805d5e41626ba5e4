package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/bits-and-blooms/bloom/v3"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/relations"
	"github.com/tidemark/tidemark/topology"
)

const (
	stateTargets = 50 // of a batch
	stateBatches = 4000
	statesWrong  = 0.01 // of the filter's answers for what is not in it
)

// Users of two sizes; the relations of each size fit in the server's memory.
var stateUsers = []struct{ users, relations int }{{1000, 200}, {4, 50_000}}

// benchStates asks for one user's own states, as batch queries do, in the ways
// that could spare the shard: behind a per-user Bloom filter of every target
// that the user ever related to, and from the relation cache.
//
// A filter that may lag behind a commit would wrongly say no to who liked just
// now, so it needs a proof that it is current, which only the shard can give.
// The proof here is the cheapest there is, one row of one user; what keeping
// that row costs commands is not in these figures.
func benchStates(ctx context.Context) error {
	b, err := newStateBench(ctx)
	if errors.Is(err, embedded.ErrNoRedisServer) {
		fmt.Println("  skipped:", err)
		return nil
	}
	if err != nil {
		return err
	}
	defer b.close()
	fmt.Printf("  batches of %d targets, one shard, real Redis, %d clients, %d turns of %v each;\n  CPU of client and servers per batch, its ratio to that from the shard, median time\n", stateTargets, wayClients, wayTurns, wayTurn)
	for _, u := range stateUsers {
		if err := b.fill(ctx, u.users, u.relations); err != nil {
			return err
		}
		f := b.filters[0]
		fmt.Printf("  %d users of %d relations: filter %d bytes a user (%.1f bits a relation), %.2f %% wrongly maybe\n",
			u.users, u.relations, f.Cap()/8, float64(f.Cap())/float64(u.relations), 100*b.wrong())
		for _, share := range []float64{0, 0.01, 0.1} {
			batches := b.batches(share)
			fmt.Printf("    %2.0f %% of the targets are related to; of %.0f %% of the batches the filter says no to all\n", 100*share, 100*b.spared(batches))
			if err := compareWays(ctx, b.ways(batches)); err != nil {
				return err
			}
		}
	}
	return nil
}

type stateBench struct {
	store   *relations.Store
	pool    *pgxpool.Pool
	redis   *cache.Client
	cached  cache.Generation // of entries like those of the relation cache, and of filters
	stop    []func()
	name    string // of the users
	users   int
	size    int // relations of each
	filters []*bloom.BloomFilter
}

func (b *stateBench) close() {
	for _, f := range slices.Backward(b.stop) {
		f()
	}
}

func newStateBench(ctx context.Context) (b *stateBench, err error) {
	b = &stateBench{cached: cache.Generation{Family: cache.Counts, ID: 1, Deployment: "bench", Manifest: 1}}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	url, stop, err := startPostgres(ctx)
	if err != nil {
		return nil, err
	}
	b.stop = append(b.stop, stop)
	if err := relations.Migrate(ctx, url, 0); err != nil {
		return nil, err
	}
	if b.store, err = relations.Open(ctx, relations.Config{URLs: []string{url}, Map: topology.NewShardMap(1, 1)}); err != nil {
		return nil, err
	}
	b.stop = append(b.stop, b.store.Close)
	if b.pool, err = pgxpool.New(ctx, url); err != nil {
		return nil, err
	}
	b.stop = append(b.stop, b.pool.Close)
	if _, err := b.pool.Exec(ctx, `CREATE TABLE bench_user (user_id text COLLATE "C" PRIMARY KEY, changes bigint NOT NULL)`); err != nil {
		return nil, err
	}
	if b.redis, stop, err = startRedis(ctx); err != nil {
		return nil, err
	}
	b.stop = append(b.stop, stop)
	return b, b.redis.Stamp(ctx, b.cached)
}

func (b *stateBench) user(i int) string { return fmt.Sprintf("%s-%04d", b.name, i) }

func related(i int) string { return fmt.Sprintf("V%08d", i) }

// Only the cache's projector may write relation keys, so the same hashes and
// the filters stand under keys of counts here: their sizes matter, not their
// names.
func (b *stateBench) hash(user int) cache.Key {
	return b.cached.CountKey(topology.Like, b.user(user), 0)
}
func (b *stateBench) blob(user int) cache.Key {
	return b.cached.DisplayKey(topology.Like, b.user(user))
}

var (
	setBlob   = cache.NewScript(`return redis.call('SET', KEYS[1], ARGV[#ARGV])`)
	setFields = cache.NewScript(`
local n = tonumber(ARGV[#ARGV])
for i = #ARGV - n, #ARGV - 1 do redis.call('HSET', KEYS[1], ARGV[i], '2|1|1') end
return n`)
)

// fill gives users relations in the shard, in the relation cache and in their
// filters.
func (b *stateBench) fill(ctx context.Context, users, size int) error {
	b.name, b.users, b.size, b.filters = fmt.Sprintf("of%d", size), users, size, nil
	now := time.Now()
	_, err := b.pool.CopyFrom(ctx, pgx.Identifier{"relation"},
		[]string{"user_id", "kind", "target_id", "state", "version", "state_changed_at", "last_operation_id", "created_at", "updated_at"},
		pgx.CopyFromSlice(users*size, func(i int) ([]any, error) {
			return []any{b.user(i / size), int16(topology.Like), related(i % size), int16(topology.Liked), int64(1), now, "bench", now, now}, nil
		}))
	if err != nil {
		return err
	}
	for u := range users {
		if _, err := b.pool.Exec(ctx, "INSERT INTO bench_user VALUES ($1, $2)", b.user(u), size); err != nil {
			return err
		}
		f := bloom.NewWithEstimates(uint(size), statesWrong)
		var fields []any
		for i := range size {
			f.AddString(related(i))
			if fields = append(fields, related(i)); len(fields) == 1000 || i == size-1 {
				call := cache.Call{Key: b.hash(u), Args: append(fields, len(fields))}
				if reply := b.redis.Run(ctx, setFields, []cache.Call{call})[0]; reply.Err != nil {
					return reply.Err
				}
				fields = nil
			}
		}
		for i := range size {
			if !f.TestString(related(i)) {
				return fmt.Errorf("a filter wrongly says no to %s", related(i))
			}
		}
		b.filters = append(b.filters, f)
		blob, err := f.MarshalBinary()
		if err != nil {
			return err
		}
		call := cache.Call{Key: b.blob(u), Args: []any{blob}}
		if reply := b.redis.Run(ctx, setBlob, []cache.Call{call})[0]; reply.Err != nil {
			return reply.Err
		}
	}
	_, err = b.pool.Exec(ctx, "VACUUM ANALYZE relation, bench_user")
	return err
}

// wrong is how often a filter says maybe of what is not in it.
func (b *stateBench) wrong() float64 {
	n := 0
	const asked = 200_000
	for i := range asked {
		if b.filters[i%len(b.filters)].TestString(fmt.Sprintf("other%d", i)) {
			n++
		}
	}
	return float64(n) / asked
}

type stateBatch struct {
	user    int
	targets []string
}

// batches are of any users, with this share of targets that they relate to.
func (b *stateBench) batches(share float64) []stateBatch {
	rnd := rand.New(rand.NewPCG(1, uint64(1000*share)))
	all := make([]stateBatch, stateBatches)
	for i := range all {
		all[i].user = rnd.IntN(b.users)
		for range stateTargets {
			target := fmt.Sprintf("N%010d", rnd.Int64N(1e10))
			if rnd.Float64() < share {
				target = related(rnd.IntN(b.size))
			}
			all[i].targets = append(all[i].targets, target)
		}
	}
	return all
}

func maybes(f *bloom.BloomFilter, targets []string) (out []string) {
	for _, t := range targets {
		if f.TestString(t) {
			out = append(out, t)
		}
	}
	return out
}

func (b *stateBench) spared(batches []stateBatch) float64 {
	n := 0
	for _, x := range batches {
		if len(maybes(b.filters[x.user], x.targets)) == 0 {
			n++
		}
	}
	return float64(n) / float64(len(batches))
}

func (b *stateBench) ways(batches []stateBatch) []way {
	shard := func(ctx context.Context, user int, targets []string) error {
		if len(targets) == 0 {
			return nil
		}
		_, err := b.store.States(ctx, b.user(user), topology.Like, targets)
		return err
	}
	proof := func(ctx context.Context, user int) error {
		var changes int64
		err := b.pool.QueryRow(ctx, "SELECT changes FROM bench_user WHERE user_id = $1", b.user(user)).Scan(&changes)
		if err == nil && changes != int64(b.size) {
			err = errors.New("the filter is not current")
		}
		return err
	}
	cached := func(ctx context.Context, x stateBatch) (missing []string, err error) {
		reply := b.redis.Read(ctx, []cache.Read{cache.HashFields(b.hash(x.user), x.targets...)})[0]
		if reply.Err != nil {
			return nil, reply.Err
		}
		values, _ := reply.Value.([]any)
		for i, v := range values {
			if v == nil {
				missing = append(missing, x.targets[i])
			}
		}
		return missing, nil
	}
	on := func(name string, ask func(context.Context, stateBatch) error) way {
		return way{name, func(ctx context.Context, i int) error { return ask(ctx, batches[i%len(batches)]) }}
	}
	return []way{
		on("from the shard", func(ctx context.Context, x stateBatch) error { return shard(ctx, x.user, x.targets) }),
		on("the proof alone", func(ctx context.Context, x stateBatch) error { return proof(ctx, x.user) }),
		on("filter in RAM, proven, shard for maybe", func(ctx context.Context, x stateBatch) error {
			if err := proof(ctx, x.user); err != nil {
				return err
			}
			return shard(ctx, x.user, maybes(b.filters[x.user], x.targets))
		}),
		on("filter in RAM, unproven, shard for maybe", func(ctx context.Context, x stateBatch) error {
			return shard(ctx, x.user, maybes(b.filters[x.user], x.targets))
		}),
		on("filter in Redis, unproven, shard for maybe", func(ctx context.Context, x stateBatch) error {
			reply := b.redis.Read(ctx, []cache.Read{cache.Value(b.blob(x.user))})[0]
			if reply.Err != nil {
				return reply.Err
			}
			text, _ := reply.Value.(string)
			var f bloom.BloomFilter
			if err := f.UnmarshalBinary([]byte(text)); err != nil {
				return err
			}
			return shard(ctx, x.user, maybes(&f, x.targets))
		}),
		on("relation cache, shard for what it lacks", func(ctx context.Context, x stateBatch) error {
			missing, err := cached(ctx, x)
			if err != nil {
				return err
			}
			return shard(ctx, x.user, missing)
		}),
		on("relation cache alone", func(ctx context.Context, x stateBatch) error {
			_, err := cached(ctx, x)
			return err
		}),
	}
}
