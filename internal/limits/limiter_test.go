package limits

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// slow is a limit whose tokens do not come back while a test runs.
func slow(burst int) Limit { return Limit{PerMinute: 1, Burst: burst} }

func newLimiter(t testing.TB, c Config) *Limiter {
	t.Helper()
	l, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func openRedis(t testing.TB, url string) *cache.Client {
	t.Helper()
	c, err := cache.Open(cache.Config{URL: url, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func from(a string) Caller {
	return Caller{Account: "u7", Device: "d7", Address: netip.MustParseAddr(a)}
}

// backends are where buckets may be.
func backends(t *testing.T, test func(t *testing.T, redis *cache.Client)) {
	t.Run("alone", func(t *testing.T) { test(t, nil) })
	t.Run("embedded Redis", func(t *testing.T) { test(t, openRedis(t, testenv.Redis(t))) })
}

func TestEachBucketLimits(t *testing.T) { backends(t, eachBucketLimits) }

func eachBucketLimits(t *testing.T, redis *cache.Client) {
	l := newLimiter(t, Config{Redis: redis, Deployment: t.Name(), Commands: CallerLimits{slow(3), slow(5), slow(7)}})
	ctx := t.Context()
	spend := func(c Caller, want int, limit string) {
		t.Helper()
		for i := range want {
			if v := l.Take(ctx, Commands, c); !v.OK {
				t.Fatalf("request %d of %d was refused: %+v", i, want, v)
			}
		}
		v := l.Take(ctx, Commands, c)
		if v.OK || v.Limit != limit || v.Wait <= 50*time.Second || v.Wait > time.Minute || v.Left != 0 {
			t.Fatalf("after %d requests: %+v, want refused by %s", want, v, limit)
		}
	}
	spend(Caller{"u1", "d1", netip.MustParseAddr("192.0.2.1")}, 3, "account")
	// A refusal takes nothing: the device has 2 of 5 left, the address 4 of 7.
	spend(Caller{"u2", "d1", netip.MustParseAddr("192.0.2.1")}, 2, "device")
	spend(Caller{"u3", "d2", netip.MustParseAddr("192.0.2.1")}, 2, "address")
	// What is not told does not limit, and queries have buckets of their own.
	spend(Caller{Account: "u9"}, 3, "account")
	if v := l.Take(ctx, Queries, from("192.0.2.1")); !v.OK || v.Limit != "" {
		t.Errorf("a query: %+v", v)
	}
}

func TestGatewaysAreNotPunishedByAddressAlone(t *testing.T) {
	l := newLimiter(t, Config{
		Commands: CallerLimits{Address: slow(2)}, Networks: Networks{Gateways: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}}, GatewayFactor: 10,
	})
	taken := func(a string) (n int) {
		for l.Take(t.Context(), Commands, Caller{Address: netip.MustParseAddr(a)}).OK && n < 1000 {
			n++
		}
		return n
	}
	if n := taken("192.0.2.1"); n != 2 {
		t.Errorf("an address took %d, want 2", n)
	}
	if n := taken("198.51.100.9"); n != 20 {
		t.Errorf("a gateway took %d, want 20", n)
	}
	if n := taken("2001:db8::1"); n != 2 {
		t.Errorf("an IPv6 address took %d, want 2", n)
	}
	if n := taken("2001:db8::2:3"); n != 0 {
		t.Errorf("another address of the same /64 took %d", n)
	}
	l.cfg.GatewayFactor = 0
	if v := l.Take(t.Context(), Commands, Caller{Address: netip.MustParseAddr("198.51.100.9")}); !v.OK {
		t.Errorf("a gateway without an address limit: %+v", v)
	}
}

func TestTransitionsAreGivenBack(t *testing.T) { backends(t, transitionsAreGivenBack) }

func transitionsAreGivenBack(t *testing.T, redis *cache.Client) {
	l := newLimiter(t, Config{Redis: redis, Deployment: t.Name(), Transitions: slow(2)})
	r := topology.Relation{Kind: topology.Like, User: "u7", Target: "V1"}
	for range 20 { // none of them was a transition
		if v := l.TakeTransition(t.Context(), r); !v.OK {
			t.Fatalf("%+v", v)
		}
		l.GiveTransitionBack(t.Context(), r)
	}
	l.GiveTransitionBack(t.Context(), r) // more than a full bucket there is not
	for i, want := range []bool{true, true, false} {
		if v := l.TakeTransition(t.Context(), r); v.OK != want || v.Limit != "relation" {
			t.Errorf("transition %d: %+v", i, v)
		}
	}
	r.Target = "V2"
	if v := l.TakeTransition(t.Context(), r); !v.OK {
		t.Errorf("another relation: %+v", v)
	}
}

// Redis away: limits go on here, from full buckets, and come back to Redis.
func TestWithoutRedisEachProcessCounts(t *testing.T) {
	server := miniredis.RunT(t)
	reg := prometheus.NewRegistry()
	l := newLimiter(t, Config{Redis: openRedis(t, "redis://"+server.Addr()), Registerer: reg, Commands: CallerLimits{Account: slow(3)}})
	c := Caller{Account: "u7"}
	count := func() (n int) {
		for l.Take(t.Context(), Commands, c).OK && n < 100 {
			n++
		}
		return n
	}
	if n := count(); n != 3 {
		t.Fatalf("with Redis %d were let through, want 3", n)
	}
	server.SetError("LOADING Redis is loading the dataset in memory")
	if n := count(); n != 3 {
		t.Errorf("without Redis %d were let through, want 3: from a full bucket on", n)
	}
	if counted(t, l.alone) == 0 {
		t.Error("nothing says that Redis was not asked")
	}
	server.SetError("")
	testenv.Eventually(t, 10*time.Second, func() error { // when the breaker tries again
		before := counted(t, l.alone)
		l.Take(t.Context(), Commands, c)
		if counted(t, l.alone) != before {
			return errAway
		}
		return nil
	})
	if v := l.Take(t.Context(), Commands, c); v.OK {
		t.Error("Redis's bucket is full again though it was there before")
	}
}

func counted(t *testing.T, c prometheus.Counter) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}

type away struct{}

func (away) Error() string { return "Redis is not asked yet" }

var errAway away

// The script counts as bucket.take does, for any bucket, time and clock step.
func TestTheScriptIsTheArithmetic(t *testing.T) {
	server := miniredis.RunT(t)
	client := openRedis(t, "redis://"+server.Addr())
	rapid.Check(t, func(rt *rapid.T) {
		server.FlushAll()
		now := int64(1_800_000_000_000_000)
		limits := []Limit{anyLimit(rt), anyLimit(rt)}
		keys := []key{{1}, {2}}
		of := make([]cache.TokenBucket, 2)
		buckets := make([]bucket, 2)
		for i, l := range limits {
			buckets[i] = l.bucket()
			of[i] = cache.TokenBucket{Key: cache.TokenBucketKey(keys[i]), Token: buckets[i].token, Full: buckets[i].full}
		}
		table := newTable(64)
		table.clock = func() int64 { return now }
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			now += rapid.Int64Range(-buckets[0].full, 2*buckets[0].token).Draw(rt, "µs")
			server.SetTime(time.UnixMicro(now))
			n := rapid.IntRange(1, 2).Draw(rt, "buckets")
			want, got := make([]int64, 2), make([]int64, 2)
			wantOK := table.take(keys[:n], buckets[:n], want)
			ok, err := client.TakeTokens(t.Context(), of[:n], got)
			if err != nil {
				rt.Fatal(err)
			}
			if ok != wantOK || got[0] != want[0] || got[1] != want[1] {
				rt.Fatalf("the script says %v %v, the arithmetic %v %v", ok, got, wantOK, want)
			}
			if rapid.Bool().Draw(rt, "give back") && ok {
				table.giveBack(keys[0], buckets[0])
				if err := client.GiveBack(t.Context(), of[0]); err != nil {
					rt.Fatal(err)
				}
			}
		}
	})
}

// Many at once, of several processes: no more than the burst.
func TestManyAtOnceGetNoMoreThanThereIs(t *testing.T) { backends(t, manyAtOnce) }

func manyAtOnce(t *testing.T, redis *cache.Client) {
	c := Config{Redis: redis, Deployment: t.Name(), Commands: CallerLimits{slow(40), slow(60), slow(100)}}
	processes := []*Limiter{newLimiter(t, c)}
	if redis != nil {
		processes = append(processes, newLimiter(t, c), newLimiter(t, c))
	}
	accounts := map[string]*atomic.Int64{"u1": {}, "u2": {}, "u3": {}, "u4": {}}
	var g sync.WaitGroup
	for account, taken := range accounts {
		for i := range 6 {
			g.Go(func() {
				caller := Caller{account, "d" + account[1:] + "x", netip.MustParseAddr("192.0.2.1")}
				for range 25 {
					if processes[i%len(processes)].Take(t.Context(), Commands, caller).OK {
						taken.Add(1)
					}
				}
			})
		}
	}
	g.Wait()
	total := int64(0)
	for account, taken := range accounts {
		if n := taken.Load(); n > 40 {
			t.Errorf("account %s got %d, more than 40", account, n)
		}
		total += taken.Load()
	}
	if total > 100 || total < 90 { // 600 wanted; a cluster refuses a few too many
		t.Errorf("one address got %d, want 100", total)
	}
}

func TestTightened(t *testing.T) {
	l := newLimiter(t, Config{Commands: CallerLimits{Account: slow(8)}})
	l.Tighten(4)
	for i, want := range []bool{true, true, false} {
		if v := l.Take(t.Context(), Commands, Caller{Account: "u7"}); v.OK != want {
			t.Errorf("request %d: %+v", i, v)
		}
	}
	l.Tighten(1)
	if v := l.Take(t.Context(), Commands, Caller{Account: "u7"}); v.Quota.Burst != 8 {
		t.Errorf("afterwards: %+v", v)
	}
}

func TestHeaders(t *testing.T) {
	l := newLimiter(t, Config{Commands: CallerLimits{Account: Limit{60, 3}, Address: Limit{6000, 100}}})
	caller := Caller{Account: "u7", Address: netip.MustParseAddr("192.0.2.1")}
	h := http.Header{}
	l.Take(t.Context(), Commands, caller).WriteHeaders(h)
	if got := h.Get("RateLimit-Policy"); got != `"account";q=3;w=3` {
		t.Errorf("policy %s", got)
	}
	if got := h.Get("RateLimit"); got != `"account";r=2;t=1` {
		t.Errorf("state %s", got)
	}
	for range 3 {
		l.Take(t.Context(), Commands, caller)
	}
	v := l.Take(t.Context(), Commands, caller)
	if v.OK || v.RetryAfter() != time.Second {
		t.Errorf("%+v: retry after %v", v, v.RetryAfter())
	}
}

func TestAddress(t *testing.T) {
	l := newLimiter(t, Config{Networks: Networks{Proxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}})
	for name, test := range map[string]struct {
		remote    string
		forwarded []string
		want      string
	}{
		"directly":                      {"192.0.2.1:5", nil, "192.0.2.1"},
		"a client's own word":           {"192.0.2.1:5", []string{"203.0.113.9"}, "192.0.2.1"},
		"behind a proxy":                {"10.1.1.1:5", []string{"203.0.113.9"}, "203.0.113.9"},
		"its word before the proxy's":   {"10.1.1.1:5", []string{"1.1.1.1, 203.0.113.9"}, "203.0.113.9"},
		"two proxies, two lines":        {"10.1.1.1:5", []string{"1.1.1.1, 203.0.113.9", "10.2.2.2"}, "203.0.113.9"},
		"junk before a proxy":           {"10.1.1.1:5", []string{"203.0.113.9, junk"}, "10.1.1.1"},
		"an old address in a new form":  {"[::ffff:192.0.2.1]:5", nil, "192.0.2.1"},
		"a proxy that asks by itself":   {"10.1.1.1:5", nil, "10.1.1.1"},
		"a zone does not tell it apart": {"[fe80::1%eth0]:5", nil, "fe80::1"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = test.remote
		r.Header["X-Forwarded-For"] = test.forwarded
		if got := l.Address(r).String(); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// No id stands in Redis (J4).
func TestNoIDStandsInRedis(t *testing.T) {
	server := miniredis.RunT(t)
	l := newLimiter(t, Config{
		Redis: openRedis(t, "redis://"+server.Addr()), Commands: CallerLimits{slow(3), slow(3), slow(3)}, Transitions: slow(3),
	})
	l.Take(t.Context(), Commands, Caller{"u-secret", "d-secret", netip.MustParseAddr("192.0.2.77")})
	l.TakeTransition(t.Context(), topology.Relation{Kind: topology.Like, User: "u-secret", Target: "V-secret"})
	if keys := server.Keys(); len(keys) != 4 {
		t.Fatalf("keys %v, want 4", keys)
	}
	if dump := server.Dump(); strings.Contains(dump, "secret") || strings.Contains(dump, "192.0.2") {
		t.Errorf("Redis has an id:\n%s", dump)
	}
}

// Memory without Redis is what it was made with, whoever comes.
func TestTheTableIsBounded(t *testing.T) {
	tab := newTable(64)
	b := slow(5).bucket()
	one := make([]int64, 1)
	for i := range 10_000 {
		tab.take([]key{{byte(i), byte(i >> 8)}}, []bucket{b}, one)
	}
	if n := len(tab.sets) * ways; n != 64 {
		t.Errorf("%d places, want 64", n)
	}
}
