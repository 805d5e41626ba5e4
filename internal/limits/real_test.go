//go:build real

package limits

import (
	"syscall"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/testenv"
)

// What holds of the embedded Redis holds of a real one, and of a cluster, where
// the buckets of a caller lie apart.
func TestRealRedisLimits(t *testing.T) {
	for name, url := range map[string]string{
		"server":  "redis://" + testenv.RedisServer(t).Addr,
		"cluster": testenv.RedisCluster(t, 0).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			redis := openRedis(t, url)
			for what, test := range map[string]func(*testing.T, *cache.Client){
				"each bucket limits": eachBucketLimits, "transitions are given back": transitionsAreGivenBack, "many at once": manyAtOnce,
			} {
				t.Run(what, func(t *testing.T) { test(t, redis) })
			}
		})
	}
}

// By the server's clock: never more than burst and rate, and nearly all of it.
func TestRealRedisKeepsTheRate(t *testing.T) {
	l := newLimiter(t, Config{Redis: openRedis(t, "redis://"+testenv.RedisServer(t).Addr), Commands: CallerLimits{Account: Limit{6000, 20}}})
	begun, taken := time.Now(), 0
	for time.Since(begun) < 2*time.Second {
		if l.Take(t.Context(), Commands, Caller{Account: "u7"}).OK {
			taken++
		}
	}
	most := 20 + 1 + int(time.Since(begun).Seconds()*100)
	if taken > most || taken < most*9/10 {
		t.Errorf("%d were let through, want %d", taken, most)
	}
}

// A Redis that stands still costs its timeout a few times, then nothing.
func TestASilentRedisIsNotWaitedFor(t *testing.T) {
	server := testenv.RedisServer(t)
	redis, err := cache.Open(cache.Config{URL: "redis://" + server.Addr, Timeout: Timeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = redis.Close() })
	l := newLimiter(t, Config{Redis: redis, Commands: CallerLimits{Account: Limit{600_000, 100_000}}})
	l.Take(t.Context(), Commands, Caller{Account: "u7"})
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	begun := time.Now()
	for range 10_000 {
		if v := l.Take(t.Context(), Commands, Caller{Account: "u7"}); !v.OK {
			t.Fatalf("%+v", v)
		}
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("10000 decisions beside a silent Redis took %v", took)
	}
}

func TestRealRedisAllocations(t *testing.T) {
	limits := CallerLimits{Limit{600_000, 100_000}, Limit{600_000, 100_000}, Limit{600_000, 100_000}}
	l := newLimiter(t, Config{Commands: limits, Redis: openRedis(t, "redis://"+testenv.RedisServer(t).Addr)})
	caller := from("192.0.2.1")
	n := testing.AllocsPerRun(2000, func() { l.Take(t.Context(), Commands, caller) })
	t.Logf("%v allocations a decision", n)
	if n > 60 {
		t.Errorf("%v allocations of a decision, more than 60", n)
	}
}
