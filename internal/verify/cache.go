package verify

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// CacheConfig says where a comparison of the relation cache reads from.
type CacheConfig struct {
	// Generation is the active one, whose entries are compared.
	Generation cache.Generation
	// Entries visits what Redis holds of it, and the buckets of which it says that
	// nothing is missing; what is visited may come twice.
	Entries func(ctx context.Context, visit func(cache.Relation) error, whole func(cache.Bucket)) error
	Floors  Table // the cachefloor table
	Facts   func(ctx context.Context, visit func(Fact) error) error
}

// CacheReport compares entries with floors and facts.
type CacheReport struct {
	Generation uint64 `json:"generation"`
	Entries    int64  `json:"entries"`
	Floors     int64  `json:"floors"`
	Facts      int64  `json:"facts"`
	// Whole buckets of users say of what they do not have that it does not exist.
	Whole int64 `json:"whole"`
	// Late entries are below their fact: right once the feed is quiet. So is what a
	// whole bucket does not have. Absent relations have no entry elsewhere.
	Late   int64 `json:"late"`
	Absent int64 `json:"absent"`
	// Wrong counts what can never be, whatever is under way: an entry above its
	// floor, a floor above its fact, one version with two states.
	Wrong    int64    `json:"wrong"`
	Examples []string `json:"examples"`
}

// version is a state of a version.
type version struct {
	state  topology.State
	number uint64
}

// cached is what the three places say of a relation.
type cached struct {
	entry, floor, fact version
	relation           topology.Relation // of a fact
}

// CompareCache reads entries, then floors, then facts. Each of them only rises,
// and none is above the next one, so that this order proves a fault also while
// traffic runs (E2): every entry is at most its floor, every floor at most its
// fact. It keeps every relation in memory.
func CompareCache(ctx context.Context, cfg CacheConfig) (CacheReport, error) {
	all := map[string]*cached{}
	at := func(key string) *cached {
		c := all[key]
		if c == nil {
			c = &cached{}
			all[key] = c
		}
		return c
	}
	whole := map[cache.Bucket]bool{}
	err := cfg.Entries(ctx, func(r cache.Relation) error {
		at(r.Key()).entry.raise(r.State, r.Version)
		return nil
	}, func(b cache.Bucket) { whole[b] = true })
	if err != nil {
		return CacheReport{}, err
	}
	var mu sync.Mutex // partitions are read at a time
	if err := cfg.Floors(ctx, func(_ int, key string, value []byte) error {
		mu.Lock()
		defer mu.Unlock()
		return floorOf(cfg.Generation, key, value, at)
	}); err != nil {
		return CacheReport{}, err
	}
	err = cfg.Facts(ctx, func(f Fact) error {
		c := at(f.Relation.Key())
		c.fact, c.relation = version{f.State, f.Version}, f.Relation
		return nil
	})
	if err != nil {
		return CacheReport{}, err
	}
	r := CacheReport{Generation: cfg.Generation.ID, Whole: int64(len(whole)), Examples: []string{}}
	for key, c := range all {
		r.judge(key, c, whole[cache.Bucket{Kind: c.relation.Kind, User: c.relation.User, Number: cfg.Generation.BucketOf(c.relation.Target)}])
	}
	return r, nil
}

func (v *version) raise(s topology.State, number uint64) {
	if number >= v.number {
		*v = version{s, number}
	}
}

func floorOf(g cache.Generation, key string, value []byte, at func(string) *cached) error {
	var row tidemarkv1.FloorRow
	if err := row.UnmarshalVT(value); err != nil {
		return fmt.Errorf("reading the floor under %.60q: %w", key, err)
	}
	floor := row.GetRelation()
	if floor.GetGeneration() != g.ID {
		return nil // of another generation, or about the partition
	}
	_, _, relation, err := topology.ParseCountedKey(key)
	if err != nil {
		return fmt.Errorf("reading the floor under %.60q: %w", key, err)
	}
	at(relation.Key()).floor.raise(topology.State(floor.State), floor.Version)
	return nil
}

// maxExamples of what is wrong are named.
const maxExamples = 20

func (r *CacheReport) judge(key string, c *cached, whole bool) {
	count := func(to *int64, v version) {
		if v.number > 0 {
			*to++
		}
	}
	count(&r.Entries, c.entry)
	count(&r.Floors, c.floor)
	count(&r.Facts, c.fact)
	wrong := ""
	switch {
	case c.entry.above(c.floor):
		wrong = fmt.Sprintf("Redis has it as %v, its floor as %v", c.entry, c.floor)
	case c.floor.above(c.fact):
		wrong = fmt.Sprintf("its floor has it as %v, its shard as %v", c.floor, c.fact)
	case c.entry.number == 0 && !whole:
		r.Absent++
	case c.entry.number < c.fact.number:
		r.Late++
	}
	if wrong == "" {
		return
	}
	r.Wrong++
	if len(r.Examples) < maxExamples {
		r.Examples = append(r.Examples, key+": "+wrong)
	}
}

// above tells whether v says more than the limit, or another state of the same
// version.
func (v version) above(limit version) bool {
	return v.number > limit.number || v.number > 0 && v.number == limit.number && v.state != limit.state
}

func (v version) String() string {
	if v.number == 0 {
		return "nothing"
	}
	return fmt.Sprintf("%v at version %d", v.state, v.number)
}

// WriteTable prints the report for people.
func (r CacheReport) WriteTable(w io.Writer) error {
	_, err := fmt.Fprintf(w, "cache generation %d: %d entries, %d floors, %d facts; %d users' buckets whole; %d entries late, %d relations not cached, %d wrong\n",
		r.Generation, r.Entries, r.Floors, r.Facts, r.Whole, r.Late, r.Absent, r.Wrong)
	for _, e := range r.Examples {
		fmt.Fprintln(w, "  "+e)
	}
	return err
}
