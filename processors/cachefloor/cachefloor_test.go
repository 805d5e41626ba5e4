package cachefloor

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/topology"
)

// A reader read v11, v12 was committed and cached, and only then the reader's
// v11 arrives (S 6.3): also when Redis has forgotten the relation meanwhile,
// what comes out of the floor is v12.
func TestALateHintBringsNothingBack(t *testing.T) {
	r := newRig(t)
	r.start(r.cache)
	r.begin(1)
	r.produce(r.fact(like("u7", "V1", 12)))
	r.settled(topology.Facts)
	r.wants(1, "u7", "V1", 12)
	r.produce(r.handover(1, like("u7", "V1", 11)))
	r.settled(topology.CacheTasks)
	r.wants(1, "u7", "V1", 12)
	if err := r.raw.Del(t.Context(), "like:relation:g1:{u7|0}").Err(); err != nil {
		t.Fatal(err)
	}
	r.wants(1, "u7", "V1", 0)
	r.produce(r.handover(1, like("u7", "V1", 11)))
	r.settled(topology.CacheTasks)
	r.wants(1, "u7", "V1", 12)
}

// A reader read nothing, the first like was committed and cached, and only then it
// is handed in that the reader knew nothing of the user: v1 stays, also when Redis
// has forgotten it meanwhile. What the user does not have is known from then on,
// and a first like after that wins.
func TestALateHintOfNothingHidesNoFirstLike(t *testing.T) {
	r := newRig(t)
	r.start(r.cache)
	r.begin(1)
	asked := Unknown(r.topo, 1, 1, topology.Like, "u7")
	r.produce(r.fact(like("u7", "V1", 1)), r.fact(like("u77", "V2", 1)))
	r.settled(topology.Facts)
	r.produce(asked)
	r.settled(topology.CacheTasks)
	r.wants(1, "u7", "V1", 1)
	r.wantsNone(1, "u7", "V2")
	if err := r.raw.Del(t.Context(), "like:relation:g1:{u7|0}").Err(); err != nil {
		t.Fatal(err)
	}
	r.wants(1, "u7", "V1", 0)
	r.produce(r.fact(like("u7", "V3", 1))) // into what is a part now
	r.settled(topology.Facts)
	r.wants(1, "u7", "V1", 0)
	r.produce(asked)
	r.settled(topology.CacheTasks)
	r.wants(1, "u7", "V1", 1)
	r.wants(1, "u7", "V3", 1)
	r.wantsNone(1, "u7", "V2")
	r.produce(r.fact(like("u7", "V2", 1)))
	r.settled(topology.Facts)
	r.wants(1, "u7", "V2", 1)
	r.produce(Unknown(r.topo, 1, 2, topology.Like, "u9"), Unknown(r.topo, 1, 1, topology.Like, "u8")) // 2 never began
	r.settled(topology.CacheTasks)
	r.wantsNone(1, "u8", "V1")
	r.wants(1, "u9", "V1", 0)
}

// A generation takes over the rows of the one before the last: a user's relations
// that only that one had are none of its own.
func TestCompletionGivesAGenerationItsOwn(t *testing.T) {
	r := newRig(t)
	r.start(r.cache)
	r.begin(1)
	r.produce(r.fact(like("u7", "V1", 5)))
	r.settled(topology.Facts)
	r.begin(2)
	r.begin(3)
	r.produce(r.handover(3, like("u7", "V2", 6)), Unknown(r.topo, 1, 3, topology.Like, "u7"))
	r.settled(topology.CacheTasks)
	r.wants(3, "u7", "V2", 6)
	r.wantsNone(3, "u7", "V1")
}

// Of a user who has too many relations nothing is said that is not there.
func TestCompletionHasABound(t *testing.T) {
	r := newRig(t)
	r.start(r.cache)
	r.begin(1)
	for i := range cache.MostOfUser + 1 {
		if i == cache.MostOfUser {
			r.settled(topology.Facts)
			r.produce(Unknown(r.topo, 1, 1, topology.Like, "u7"))
			r.settled(topology.CacheTasks)
			r.wantsNone(1, "u7", "N1")
			if err := r.raw.Del(t.Context(), "like:relation:g1:{u7|0}").Err(); err != nil {
				t.Fatal(err)
			}
		}
		r.produce(r.fact(like("u7", fmt.Sprintf("V%d", i), 1)))
	}
	r.settled(topology.Facts)
	r.produce(Unknown(r.topo, 1, 1, topology.Like, "u7"))
	r.settled(topology.CacheTasks)
	if got := r.holds(1, "u7", "N1"); got != (cache.Cached{Many: true}) {
		t.Errorf("the cache says %+v", got)
	}
}

// The processor ends after the floor is in the log and before Redis is written;
// the fact does not come again by itself (I17).
func TestADeathBetweenFloorAndRedisLosesNothing(t *testing.T) {
	r := newRig(t)
	stop := r.start(r.cache)
	r.begin(1)
	// Without its stamp Redis refuses: the floor goes on, the commit does not.
	if err := r.cache.Unstamp(t.Context(), generation(1)); err != nil {
		t.Fatal(err)
	}
	r.produce(r.fact(like("u7", "V1", 12)))
	r.inLog("0001|0001|like:u7:V1")
	stop()
	if err := r.cache.Stamp(t.Context(), generation(1)); err != nil {
		t.Fatal(err)
	}
	r.wants(1, "u7", "V1", 0)
	r.start(r.cache)
	r.eventually(1, "u7", "V1", 12)
}

// A task of a generation that has ended reaches neither that one nor the one in
// its place, although both share their rows with others (E3).
func TestALateTaskOfAnEndedGeneration(t *testing.T) {
	r := newRig(t)
	r.start(r.cache)
	r.begin(1)
	r.produce(r.fact(like("u7", "V1", 11)))
	r.settled(topology.Facts)
	r.begin(2)
	r.produce(r.handover(2, like("u7", "V1", 11)))
	r.produce(r.fact(like("u7", "V1", 12)))
	r.settled(topology.Facts)
	r.settled(topology.CacheTasks)
	r.wants(1, "u7", "V1", 12)
	r.wants(2, "u7", "V1", 12)
	r.produce(endTasks(r.topo, 1)...)
	r.settled(topology.CacheTasks)
	r.produce(r.handover(1, like("u7", "V1", 13)), r.handover(1, like("u8", "V1", 1)))
	r.settled(topology.CacheTasks)
	r.wants(1, "u7", "V1", 12)
	r.wants(1, "u8", "V1", 0)
	r.begin(3) // takes the rows of 1 over, and begins empty: a lower version is news to it
	r.produce(r.handover(3, like("u7", "V1", 11)))
	r.settled(topology.CacheTasks)
	r.wants(3, "u7", "V1", 11)
	r.wants(2, "u7", "V1", 12)
}

// After a flush nothing is written, and nothing committed, until it is known
// that the generation has ended; then the facts flow on.
func TestAFlushStopsUntilTheGenerationHasEnded(t *testing.T) {
	r := newRig(t)
	r.start(r.cache)
	r.begin(1)
	r.produce(r.fact(like("u7", "V1", 12)))
	r.settled(topology.Facts)
	if err := r.raw.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	r.produce(r.fact(like("u7", "V1", 13)), r.fact(like("u8", "V1", 11)))
	r.inLog("0001|0001|like:u8:V1")
	if n := r.raw.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written into a flushed Redis", n)
	}
	r.lives.end(1)
	r.settled(topology.Facts)
	if n := r.raw.DBSize(t.Context()).Val(); n != 0 {
		t.Errorf("%d keys were written into a flushed Redis", n)
	}
}

// A pipeline that is cut after some of its entries is written again; what is
// there twice is there once.
func TestAPipelineThatIsCutIsWrittenAgain(t *testing.T) {
	r := newRig(t)
	proxy := newCutting(t, strings.TrimPrefix(r.url, "redis://"))
	c := r.open("redis://" + proxy.address)
	r.start(c)
	r.begin(1)
	proxy.cutAfter.Store(8 << 10)
	const users = 300
	var last []string
	for i := range users {
		user := "u" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		last = append(last, user)
		r.kafka.Produce(t.Context(), r.fact(like(user, "V1", 1)), nil)
		r.kafka.Produce(t.Context(), r.fact(like(user, "V1", 2)), nil)
	}
	if err := r.kafka.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.settled(topology.Facts)
	if proxy.cuts.Load() == 0 {
		t.Error("no pipeline was cut: the test shows nothing")
	}
	for _, user := range last {
		r.wants(1, user, "V1", 2)
	}
}

// cutting is a way to Redis that is cut, a few times, after so many bytes.
type cutting struct {
	address  string
	cutAfter atomic.Int64 // 0: never
	cuts     atomic.Int64
}

func newCutting(t *testing.T, to string) *cutting {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c := &cutting{address: l.Addr().String()}
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			go func() { _, _ = io.Copy(from, server); _ = from.Close() }()
			go func() { c.forward(server, from); _ = server.Close(); _ = from.Close() }()
		}
	}()
	return c
}

func (c *cutting) forward(to io.Writer, from io.Reader) {
	buf, passed := make([]byte, 512), int64(0)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		passed += int64(n)
		if limit := c.cutAfter.Load(); limit > 0 && passed > limit && c.cuts.Add(1) <= 3 {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
