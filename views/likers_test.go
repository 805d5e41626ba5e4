package views

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/newest"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// index is every owner of a reverse index at once, for one target.
type index struct {
	reverse topology.ReverseGeneration
	entries map[string]newest.Entry // by user
	seals   map[int]uint64          // by partition, of source shard 0
	asked   map[int]int             // questions by partition
	fetched []newest.Entry          // of the last page, popped or not
}

func newIndex(g topology.ReverseGeneration) *index {
	return &index{reverse: g, entries: map[string]newest.Entry{}, seals: map[int]uint64{}, asked: map[int]int{}}
}

func (x *index) add(user string, at int64) {
	x.entries[user] = newest.Entry{User: user, LikedAtUs: at, Version: 1}
}

func (x *index) ask(_ context.Context, _ string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
	after := map[int]newest.Entry{}
	for _, a := range req.After {
		after[int(a.ReverseShard)] = newest.Entry{User: a.UserId, LikedAtUs: a.LikedAtUs}
	}
	var left []newest.Entry
	for _, e := range x.entries {
		shard := x.reverse.Shard(e.User)
		position, told := after[shard]
		if x.reverse.Partition(topology.Kind(req.Kind), req.TargetId, shard) == int(req.Partition) && (!told || position.Before(e)) {
			left = append(left, e)
		}
	}
	slices.SortFunc(left, func(a, b newest.Entry) int {
		if a.Before(b) {
			return -1
		}
		return 1
	})
	resp := &tidemarkv1.ListLikersResponse{More: len(left) > int(req.Limit), AsOf: []*tidemarkv1.SourceWatermark{{Shard: 0, Seal: x.seals[int(req.Partition)], SealedAtUs: 5}}}
	for _, e := range left[:min(len(left), int(req.Limit))] {
		x.fetched = append(x.fetched, e)
		resp.Entries = append(resp.Entries, &tidemarkv1.LikerEntry{UserId: e.User, LikedAtUs: e.LikedAtUs, Version: e.Version})
	}
	x.asked[int(req.Partition)]++
	return resp, nil
}

// everywhere knows one owner of everything.
type everywhere struct{}

func (everywhere) Owner(context.Context, int) (string, error) { return "owner:1", nil }
func (everywhere) Forget(int, string)                         {}
func (everywhere) Others(string) []string                     { return []string{"other:1", "other:2", "other:3"} }

// serial lets one question be asked at a time.
func serial(ask asker) asker {
	one := make(chan struct{}, 1)
	return func(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
		one <- struct{}{}
		defer func() { <-one }()
		return ask(ctx, address, req)
	}
}

func viewOf(t testing.TB, d directory, ask asker) *Likers {
	topo := testenv.Topology(t, func(c *topology.Config) { c.Shards = 1 })
	l, err := newLikers(LikersConfig{
		Topology: topo, Reverse: topology.NewReverseGeneration(7, topo.Config.LikerPartitions, topo.Config.ReverseShards),
		Now: func() time.Time { return time.UnixMicro(9) },
	})
	if err != nil {
		t.Fatal(err)
	}
	l.owners, l.ask = d, ask
	return l
}

// walk reads a list to its end; between gets a word after every page. next, if
// not nil, replaces the page's frontier.
func walk(l *Likers, limit int, between func(), next func(q LikersQuery, p LikersPage) Frontier) (users []string, err error) {
	q := LikersQuery{Kind: topology.Like, Target: "V1", Limit: limit}
	for pages := 0; ; pages++ {
		p, err := l.Page(context.Background(), q)
		if err != nil {
			return nil, err
		}
		for _, e := range p.Entries {
			users = append(users, e.User)
		}
		if p.Done {
			return users, nil
		}
		if len(p.Entries) != limit || pages > 20_000 {
			return nil, fmt.Errorf("page %d has %d entries of %d and says that there is more", pages, len(p.Entries), limit)
		}
		q.Frontier, q.Generation = p.Frontier, p.Generation
		if next != nil {
			q.Frontier = next(q, p)
		}
		between()
	}
}

// once says what is wrong when not every stable user was told exactly once.
func once(users []string, stable int) error {
	times := map[string]int{}
	for _, u := range users {
		times[u]++
	}
	for i := range stable {
		if n := times[fmt.Sprintf("stable%d", i)]; n != 1 {
			return fmt.Errorf("stable%d was told %d times", i, n)
		}
	}
	return nil
}

const stableUsers = 230

// The union of all pages is every user who stayed, exactly once, whatever comes
// and goes between pages, for every page size.
func TestPagesTellEveryStableUserOnce(t *testing.T) {
	for _, limit := range []int{1, 7, 100, 200} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				l := viewOf(t, everywhere{}, nil)
				x := newIndex(l.reverse)
				l.ask = serial(x.ask)
				for i := range stableUsers {
					x.add(fmt.Sprintf("stable%d", i), rapid.Int64Range(1, 300).Draw(rt, "at"))
				}
				churned := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})
				users, err := walk(l, limit, func() {
					user := churned.Draw(rt, "who")
					if _, in := x.entries[user]; in {
						delete(x.entries, user)
					} else {
						x.add(user, rapid.Int64Range(1, 400).Draw(rt, "when"))
					}
				}, nil)
				if err == nil {
					err = once(users, stableUsers)
				}
				if err != nil {
					rt.Fatal(err)
				}
			})
		})
	}
}

// What was fetched and not popped must not move a position: the very walk above
// loses users when it does.
func TestPrefetchedEntriesMoveNothing(t *testing.T) {
	l := viewOf(t, everywhere{}, nil)
	x := newIndex(l.reverse)
	l.ask = serial(x.ask)
	for i := range stableUsers {
		x.add(fmt.Sprintf("stable%d", i), int64(1+i))
	}
	users, err := walk(l, 7, func() { x.fetched = nil }, nil)
	if err != nil || once(users, stableUsers) != nil {
		t.Fatal(err, once(users, stableUsers))
	}
	x.fetched = nil
	users, err = walk(l, 7, func() { x.fetched = nil }, func(q LikersQuery, p LikersPage) Frontier {
		slices.SortFunc(x.fetched, func(a, b newest.Entry) int { return int(b.LikedAtUs - a.LikedAtUs) })
		return p.Frontier.advance(x.fetched, l.reverse.Shard)
	})
	if err == nil && once(users, stableUsers) == nil {
		t.Error("positions moved past entries that were not told, and nobody was lost: the check above proves nothing")
	}
}

// A page moves the positions of the shards whose entries it has, and no other.
func TestFrontierOfAPage(t *testing.T) {
	l := viewOf(t, everywhere{}, nil)
	x := newIndex(l.reverse)
	l.ask = serial(x.ask)
	for i := range 100 {
		x.add(fmt.Sprintf("u%d", i), int64(1000-i))
	}
	p, err := l.Page(t.Context(), LikersQuery{Kind: topology.Like, Target: "V1", Limit: 1})
	want := ShardPosition{Shard: uint32(l.reverse.Shard("u0")), LikedAtUs: 1000, User: "u0"}
	if err != nil || p.Done || p.Generation != 7 || !slices.Equal(p.Frontier, Frontier{want}) {
		t.Fatalf("%+v, %v", p, err)
	}
	if !p.Entries[0].LikedAt.Equal(time.UnixMicro(1000)) || p.Entries[0].Version != 1 {
		t.Errorf("entry %+v", p.Entries[0])
	}
	before := slices.Clone(p.Frontier)
	q := LikersQuery{Kind: topology.Like, Target: "V1", Limit: 99, Frontier: p.Frontier, Generation: 7}
	if p, err = l.Page(t.Context(), q); err != nil || !p.Done || len(p.Entries) != 99 {
		t.Fatalf("%d entries, done %v, %v", len(p.Entries), p.Done, err)
	}
	if !slices.Equal(q.Frontier, before) {
		t.Error("the caller's frontier was changed")
	}
	if !slices.IsSortedFunc(p.Frontier, func(a, b ShardPosition) int { return int(a.Shard) - int(b.Shard) }) {
		t.Errorf("frontier %v is out of order", p.Frontier)
	}
	q.Frontier = p.Frontier
	if p, err = l.Page(t.Context(), q); err != nil || !p.Done || len(p.Entries) != 0 || !slices.Equal(p.Frontier, q.Frontier) {
		t.Errorf("behind the last: %+v, %v", p, err)
	}
	for partition, n := range x.asked {
		if n != 3 || len(x.asked) != l.reverse.Spread {
			t.Errorf("for 3 pages partition %d was asked %d times, of %d partitions", partition, n, len(x.asked))
		}
	}
}

// A page includes what the least of its partitions includes; one that knows
// nothing of a shard leaves it out.
func TestAsOfIsTheLeastOfThePartitions(t *testing.T) {
	l := viewOf(t, everywhere{}, nil)
	x := newIndex(l.reverse)
	l.ask = serial(x.ask)
	q := LikersQuery{Kind: topology.Like, Target: "V1", Limit: 1}
	if p, err := l.Page(t.Context(), q); err != nil || len(p.AsOf) != 0 || p.Staleness != UnknownStaleness {
		t.Errorf("nothing known: %+v, %v", p, err)
	}
	for partition := range l.reverse.Partitions() {
		x.seals[partition] = uint64(10 + partition)
	}
	least := uint64(1000)
	for partition := range l.reverse.ShardsByPartition(topology.Like, "V1") {
		least = min(least, x.seals[partition])
	}
	p, err := l.Page(t.Context(), q)
	if err != nil || len(p.AsOf) != 1 || p.AsOf[0].Seal != least || p.Staleness != 4*time.Microsecond {
		t.Errorf("%+v, %v, want seal %d", p, err, least)
	}
}

func TestLikersQueryIsChecked(t *testing.T) {
	l := viewOf(t, everywhere{}, nil)
	l.ask = func(context.Context, string, *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
		t.Error("an owner was asked")
		return nil, errAskAgain
	}
	shard := uint32(l.reverse.Shard("u"))
	for name, test := range map[string]struct {
		change func(*LikersQuery)
		want   error
	}{
		"limit 0":             {func(q *LikersQuery) { q.Limit = 0 }, ErrLikersQuery},
		"limit too high":      {func(q *LikersQuery) { q.Limit = MaxLikersPage + 1 }, ErrLikersQuery},
		"no kind":             {func(q *LikersQuery) { q.Kind = 0 }, ErrLikersQuery},
		"no target":           {func(q *LikersQuery) { q.Target = "" }, ErrLikersQuery},
		"generation gone":     {func(q *LikersQuery) { q.Generation = 6 }, ErrGenerationGone},
		"no generation":       {func(q *LikersQuery) { q.Generation = 0 }, ErrGenerationGone},
		"a position twice":    {func(q *LikersQuery) { q.Frontier = append(q.Frontier, q.Frontier[0]) }, ErrLikersQuery},
		"another shard":       {func(q *LikersQuery) { q.Frontier[0].Shard++ }, ErrLikersQuery},
		"no time":             {func(q *LikersQuery) { q.Frontier[0].LikedAtUs = 0 }, ErrLikersQuery},
		"no user":             {func(q *LikersQuery) { q.Frontier[0].User = "" }, ErrLikersQuery},
		"a shard beyond all":  {func(q *LikersQuery) { q.Frontier[0].Shard = 1 << 31 }, ErrLikersQuery},
		"a time before 1970":  {func(q *LikersQuery) { q.Frontier[0].LikedAtUs = -1 }, ErrLikersQuery},
		"NUL in the position": {func(q *LikersQuery) { q.Frontier[0].User = "u\x00" }, ErrLikersQuery},
	} {
		q := LikersQuery{Kind: topology.Like, Target: "V1", Limit: 5, Generation: 7, Frontier: Frontier{{shard, 9, "u"}}}
		test.change(&q)
		if _, err := l.Page(t.Context(), q); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// moving is a directory whose partitions move when they are forgotten.
type moving struct{ forgotten chan string }

func (m moving) Owner(context.Context, int) (string, error) {
	if len(m.forgotten) > 0 {
		return "new:1", nil
	}
	return "old:1", nil
}
func (m moving) Forget(_ int, address string) { m.forgotten <- address }
func (moving) Others(string) []string         { return nil }

// A partition that has moved is asked where it is now; one that nobody serves
// makes the whole page late and then an error, never a list without it.
func TestAPartitionThatIsNotServed(t *testing.T) {
	q := LikersQuery{Kind: topology.Like, Target: "V1", Limit: 200}
	synctest.Test(t, func(t *testing.T) {
		l := viewOf(t, moving{make(chan string, 100)}, nil)
		x := newIndex(l.reverse)
		x.add("u1", 5)
		answer := serial(x.ask)
		l.ask = func(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
			if address == "old:1" {
				return nil, fmt.Errorf("%w: moved", errAskAgain)
			}
			return answer(ctx, address, req)
		}
		if p, err := l.Page(t.Context(), q); err != nil || len(p.Entries) != 1 {
			t.Errorf("moved: %+v, %v", p, err)
		}
		dead := int(l.requests(q)[2].Partition)
		l.ask = func(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
			if int(req.Partition) == dead {
				return nil, fmt.Errorf("%w: recovering", errAskAgain)
			}
			return answer(ctx, address, req)
		}
		l.owners = everywhere{}
		start := time.Now()
		p, err := l.Page(t.Context(), q)
		notReady := new(NotReadyError)
		if !errors.As(err, &notReady) || notReady.Partition != dead || notReady.RetryAfter <= 0 || p.Entries != nil || p.Done {
			t.Errorf("not served: %+v, %v", p, err)
		}
		if took := time.Since(start); took < DefaultPatience/2 || took > DefaultPatience {
			t.Errorf("was patient for %v", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.Page(ctx, q); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller's deadline: %v", err)
		}
		l.ask = func(ctx context.Context, _ string, _ *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
			<-ctx.Done() // silent
			return nil, fmt.Errorf("%w: %w", errAskAgain, ctx.Err())
		}
		if _, err := l.Page(t.Context(), q); !errors.As(err, &notReady) {
			t.Errorf("silent: %v", err)
		}
	})
}

// While a partition's owner does not answer, a standby does, as long as it says
// that it is young enough; the page tells. Nobody asks one unasked for.
func TestStandbysAnswerForAnAbsentOwner(t *testing.T) {
	const bound = 30 * time.Microsecond // seals are of µs 5
	for name, test := range map[string]struct {
		bound    time.Duration
		now      int64 // µs
		seal     uint64
		warm     string // address that keeps everything warm
		own      bool   // and has become the owner
		answered bool
		standby  bool
	}{
		"the first that is asked":    {bound, 35, 1, "other:1", false, true, true},
		"the second":                 {bound, 35, 1, "other:2", false, true, true},
		"the owner by now":           {bound, 900, 1, "other:1", true, true, false},
		"too old":                    {bound, 36, 1, "other:1", false, false, false},
		"of unknown age":             {bound, 35, 0, "other:1", false, false, false},
		"nobody keeps it warm":       {bound, 35, 1, "", false, false, false},
		"standbys are not to answer": {0, 35, 1, "other:1", false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := viewOf(t, everywhere{}, nil)
				l.maxStale, l.now = test.bound, func() time.Time { return time.UnixMicro(test.now) }
				x := newIndex(l.reverse)
				x.add("u1", 5)
				q := LikersQuery{Kind: topology.Like, Target: "V1", Limit: 10}
				for l.requests(q)[0].Partition%3 != 0 { // so that other:1 is asked first
					q.Target += "x"
				}
				dead := l.requests(q)[0].Partition
				for partition := range l.reverse.ShardsByPartition(topology.Like, q.Target) {
					x.seals[partition] = test.seal
				}
				l.ask = serial(func(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
					if req.Partition == dead && (address == "owner:1" || address != test.warm || !req.Standby) {
						return nil, fmt.Errorf("%w: away", errAskAgain)
					}
					if req.Standby && req.Partition != dead {
						t.Error("a standby was asked although the owner answers")
					}
					resp, err := x.ask(ctx, address, req)
					resp.Standby = req.Standby && !test.own
					return resp, err
				})
				p, err := l.Page(t.Context(), q)
				notReady := new(NotReadyError)
				switch {
				case test.answered && (err != nil || p.Standby != test.standby || len(p.Entries) != 1):
					t.Errorf("got %+v, %v", p, err)
				case test.standby && p.Staleness != time.Duration(test.now-5)*time.Microsecond:
					t.Errorf("staleness %v", p.Staleness)
				case !test.answered && !errors.As(err, &notReady):
					t.Errorf("got %+v, %v", p, err)
				}
			})
		})
	}
}

// An answer that cannot be of its question is an error, not a list.
func TestWrongAnswersAreRefused(t *testing.T) {
	l := viewOf(t, everywhere{}, nil)
	x := newIndex(l.reverse)
	for i := range 50 {
		x.add(fmt.Sprintf("u%d", i), int64(100-i))
	}
	ask := serial(x.ask)
	q := LikersQuery{Kind: topology.Like, Target: "V1", Limit: 3}
	first, err := func() (LikersPage, error) { l.ask = ask; return l.Page(t.Context(), q) }()
	if err != nil {
		t.Fatal(err)
	}
	q.Frontier, q.Generation = first.Frontier, 7
	for want, spoil := range map[string]func(*tidemarkv1.ListLikersResponse){
		"out of order":   func(r *tidemarkv1.ListLikersResponse) { slices.Reverse(r.Entries) },
		"lies elsewhere": func(r *tidemarkv1.ListLikersResponse) { r.Entries[0].UserId = elsewhere(l, r.Entries[0].UserId) },
		"not behind": func(r *tidemarkv1.ListLikersResponse) {
			r.Entries[0] = &tidemarkv1.LikerEntry{UserId: first.Entries[0].User, LikedAtUs: 1 << 40}
		},
		"0 entries": func(r *tidemarkv1.ListLikersResponse) { r.Entries, r.More = nil, true },
		"4 entries": func(r *tidemarkv1.ListLikersResponse) {
			last := r.Entries[2]
			r.Entries = append(r.Entries, &tidemarkv1.LikerEntry{UserId: last.UserId, LikedAtUs: last.LikedAtUs - 1})
		},
	} {
		of := l.reverse.Partition(topology.Like, "V1", l.reverse.Shard(first.Entries[0].User))
		l.ask = func(ctx context.Context, address string, req *tidemarkv1.ListLikersRequest) (*tidemarkv1.ListLikersResponse, error) {
			r, err := ask(ctx, address, req)
			if err == nil && int(req.Partition) == of {
				spoil(r)
			}
			return r, err
		}
		if p, err := l.Page(t.Context(), q); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", want, p, err)
		}
	}
}

// elsewhere is a user of a reverse shard that lies on another partition.
func elsewhere(l *Likers, user string) string {
	for i := 0; ; i++ {
		other := fmt.Sprintf("x%d", i)
		if l.reverse.Shard(other)%l.reverse.Spread != l.reverse.Shard(user)%l.reverse.Spread {
			return other
		}
	}
}
