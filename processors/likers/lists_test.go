package likers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func sortEntries(entries []Entry) {
	slices.SortFunc(entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.LikedAtUs, a.LikedAtUs), strings.Compare(a.User, b.User))
	})
}

// readList reads a list page by page.
func readList(l *Likers, name listName, limit int) (entries []Entry, err error) {
	q := Query{Generation: l.cfg.Reverse.ID, Kind: name.kind, Target: name.target, ReverseShard: name.shard, Limit: limit}
	for {
		page, err := l.Page(q)
		if err != nil {
			return nil, err
		}
		entries = append(entries, page.Entries...)
		if !page.More {
			return entries, nil
		}
		if len(page.Entries) != limit || page.Next == q.After {
			return nil, fmt.Errorf("a page of %d entries, limit %d, goes from %v to %v and says there is more", len(page.Entries), limit, q.After, page.Next)
		}
		q.After = page.Next
	}
}

func entriesDiffer(have, want []Entry) string {
	for i := range min(len(have), len(want)) {
		if have[i] != want[i] {
			return fmt.Sprintf("entry %d is %+v, the facts say %+v", i, have[i], want[i])
		}
	}
	if len(have) != len(want) {
		return fmt.Sprintf("%d entries, the facts say %d", len(have), len(want))
	}
	return ""
}

func produce(t *testing.T, cl *kgo.Client, records ...*kgo.Record) {
	t.Helper()
	if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// like makes a change of a relation at its place.
func like(g topology.ReverseGeneration, user, target string, version uint64, s topology.State, at int64) *tidemarkv1.RelationChange {
	rel := topology.Relation{Kind: s.Kind(), User: user, Target: target}
	return &tidemarkv1.RelationChange{
		Kind: tidemarkv1.Kind(rel.Kind), UserId: user, TargetId: target, RelationVersion: version,
		State: tidemarkv1.State(s), StateChangedAtUs: at, Reverse: g.Place(rel),
	}
}

// A page is in order, says what it includes, and ends where the list does; one
// that cannot be answered says why and is never empty.
func TestPages(t *testing.T) {
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	cl := producer(t, brokers)
	cfg := testConfig(brokers, topo, t.TempDir(), 0)
	l, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	shard := cfg.Reverse.Shard("u1")
	query := Query{Generation: 1, Kind: topology.Like, Target: "V1", ReverseShard: shard, Limit: 10}
	if _, err := l.Page(query); !errors.Is(err, ErrNotReady) {
		t.Errorf("before it runs: %v", err)
	}
	l = run(t, cfg)
	page := func(ready func(Page) error) (p Page) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() (err error) {
			if p, err = l.Page(query); err == nil {
				err = ready(p)
			}
			return err
		})
		return p
	}
	p := page(func(Page) error { return nil })
	if len(p.Entries) != 0 || p.More || p.Next != (Frontier{}) || len(p.AsOf) != 2 || p.AsOf[1].Seal != 0 {
		t.Errorf("an empty list: %+v", p)
	}
	produce(t, cl,
		likerRecord(t, topo, like(cfg.Reverse, "u1", "V1", 1, topology.Liked, 500)),
		likerRecord(t, topo, like(cfg.Reverse, "u1", "V1", 3, topology.Liked, 700)), // over a missing version 2
		likerRecord(t, topo, like(cfg.Reverse, "u1", "V1", 2, topology.Unliked, 600)),
	)
	partition := cfg.Reverse.Partition(topology.Like, "V1", shard)
	watermark := func(shard uint32, seal uint64, barrier string) {
		t.Helper()
		value, err := (&tidemarkv1.LikerChange{Body: &tidemarkv1.LikerChange_Watermark{Watermark: &tidemarkv1.SourceWatermark{Shard: shard, Seal: seal, SealedAtUs: 9, BarrierId: barrier}}}).MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		produce(t, cl, &kgo.Record{Topic: topo.Topic(topology.LikerChanges), Partition: int32(partition), Key: []byte(topology.WatermarkKey(partition, int(shard))), Value: value})
	}
	watermark(1, 4, "barrier-1")
	p = page(func(p Page) error {
		if p.AsOf[1].Seal != 4 {
			return fmt.Errorf("as of seal %d", p.AsOf[1].Seal)
		}
		return nil
	})
	// The seal came behind the changes: a page as of it includes them.
	want := []Entry{{User: "u1", LikedAtUs: 700, Version: 3}}
	if !slices.Equal(p.Entries, want) || p.More || p.Next != (Frontier{700, "u1"}) || p.AsOf[0].Seal != 0 || p.AsOf[1].BarrierId != "barrier-1" || p.Offset < 2 || p.Generation != 1 {
		t.Errorf("page %+v", p)
	}
	query.After = p.Next
	if p, err := l.Page(query); err != nil || len(p.Entries) != 0 || p.Next != query.After || p.More {
		t.Errorf("behind the last: %+v, %v", p, err)
	}
	for name, test := range map[string]struct {
		change func(*Query)
		want   error
	}{
		"another generation": {func(q *Query) { q.Generation = 2 }, ErrGeneration},
		"limit 0":            {func(q *Query) { q.Limit = 0 }, ErrQuery},
		"limit too high":     {func(q *Query) { q.Limit = MaxPage + 1 }, ErrQuery},
		"shard too high":     {func(q *Query) { q.ReverseShard = 16 }, ErrQuery},
		"shard negative":     {func(q *Query) { q.ReverseShard = -1 }, ErrQuery},
		"no kind":            {func(q *Query) { q.Kind = 0 }, ErrQuery},
		"no target":          {func(q *Query) { q.Target = "" }, ErrQuery},
		"NUL in the target":  {func(q *Query) { q.Target = "V1\x00" }, ErrQuery},
	} {
		q := query
		test.change(&q)
		if _, err := l.Page(q); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Records that do not belong where they are are set aside; the rest flows on.
func TestGoodRecordsFlowAroundBadOnes(t *testing.T) {
	brokers := testenv.Kafka(t)
	topo := testTopology(testenv.Prefix(t))
	testenv.CreateTopics(t, brokers, topo)
	cl := producer(t, brokers)
	cfg := testConfig(brokers, topo, t.TempDir(), 0)
	good := likerRecord(t, topo, like(cfg.Reverse, "u1", "V1", 1, topology.Liked, 500))
	foreign := like(cfg.Reverse, "u1", "V1", 2, topology.Unliked, 600)
	foreign.Reverse.Generation = 2
	bad := likerRecord(t, topo, foreign)
	produce(t, cl, bad, &kgo.Record{Topic: bad.Topic, Partition: bad.Partition, Key: bad.Key, Value: []byte{0xff}}, good)
	l := run(t, cfg)
	testenv.Eventually(t, time.Minute, func() error {
		p, err := l.Page(Query{Generation: 1, Kind: topology.Like, Target: "V1", ReverseShard: cfg.Reverse.Shard("u1"), Limit: 10})
		if err == nil && !slices.Equal(p.Entries, []Entry{{User: "u1", LikedAtUs: 500, Version: 1}}) {
			err = fmt.Errorf("entries %+v", p.Entries)
		}
		return err
	})
	awaitCommitted(t, cl, topo)
}

// I15: a process whose configuration is not that of its generation does not
// start.
func TestI15NewRefusesAnotherGeneration(t *testing.T) {
	topo := testTopology("tidemark")
	for name, test := range map[string]struct {
		g    topology.ReverseGeneration
		want string
	}{
		"other R":          {topology.NewReverseGeneration(1, 4, 32), "reverse generation 1: reverse shards is configured as 16, but it was made for 32"},
		"other partitions": {topology.NewReverseGeneration(1, 8, 16), "reverse generation 1: liker partitions is configured as 4, but it was made for 8"},
		"nothing":          {topology.ReverseGeneration{}, "reverse generation 0"},
	} {
		cfg := testConfig([]string{"127.0.0.1:1"}, topo, t.TempDir(), 0)
		cfg.Reverse = test.g
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	cfg := testConfig([]string{"127.0.0.1:1"}, topo, t.TempDir(), 0)
	cfg.ShowInterval = time.Microsecond
	if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "show interval") {
		t.Errorf("show interval: %v", err)
	}
}
