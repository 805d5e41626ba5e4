package limits

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark/tidemark/internal/breaker"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/topology"
)

// Sort is what a request asks for.
type Sort int

// The sorts.
const (
	Commands Sort = iota
	Queries
	sorts
)

var sortNames = [sorts]string{"commands", "queries"}

// The buckets of a caller, in the order of Verdict.
const (
	account = iota
	device
	address
	callers
)

var limitNames = [callers]string{"account", "device", "address"}

// CallerLimits are those of one sort of request.
type CallerLimits struct{ Account, Device, Address Limit }

// Config of a Limiter.
type Config struct {
	// Deployment tells those that share a Redis apart.
	Deployment        string
	Commands, Queries CallerLimits
	// Transitions bounds the effective transitions of each relation.
	Transitions Limit
	Networks    Networks
	// GatewayFactor is how many times as wide the address limits of gateways are;
	// 0: they have none.
	GatewayFactor int
	// Redis keeps the buckets of all processes; nil: each counts for itself.
	Redis *cache.Client
	// LocalEntries are the buckets that a process remembers without Redis, 16
	// bytes each: 65536.
	LocalEntries int
	Registerer   prometheus.Registerer // nil: no metrics
}

// Timeout is what a decision may wait for Redis.
const Timeout = 50 * time.Millisecond

// tightest is the highest factor of Tighten.
const tightest = 16

// Limiter decides who may go on. It is safe for concurrent use.
type Limiter struct {
	cfg     Config
	local   *table
	breaker breaker.Breaker
	tight   atomic.Int64

	refused *prometheus.CounterVec
	alone   prometheus.Counter
}

// New makes a limiter.
func New(c Config) (*Limiter, error) {
	if c.LocalEntries == 0 {
		c.LocalEntries = 1 << 16
	}
	var errs []error
	for name, l := range map[string]Limit{
		"commands by account": c.Commands.Account, "commands by device": c.Commands.Device, "commands by address": c.Commands.Address,
		"queries by account": c.Queries.Account, "queries by device": c.Queries.Device, "queries by address": c.Queries.Address,
		"transitions": c.Transitions,
	} {
		if l.PerMinute < 0 || l.PerMinute > 0 && l.Burst < 1 {
			errs = append(errs, fmt.Errorf("limits: of %s: %d per minute with a burst of %d: give both above 0, or 0 per minute for no limit", name, l.PerMinute, l.Burst))
		}
	}
	l := &Limiter{
		cfg: c, local: newTable(c.LocalEntries),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tidemark_limits_refused_total", Help: "Requests that a limit held off, by what they asked for and whose limit it was."}, []string{"sort", "limit"}),
		alone:   prometheus.NewCounter(prometheus.CounterOpts{Name: "tidemark_limits_local_total", Help: "Decisions of limits that were made without Redis though there is one."}),
	}
	l.tight.Store(1)
	for _, sort := range sortNames {
		for _, limit := range limitNames {
			l.refused.WithLabelValues(sort, limit)
		}
	}
	l.refused.WithLabelValues("transitions", "relation")
	if c.Registerer != nil {
		errs = append(errs, c.Registerer.Register(l.refused), c.Registerer.Register(l.alone))
	}
	return l, errors.Join(errs...)
}

// Tighten divides every limit by factor, 1 to 16; 1 sets them back. Buckets keep
// what they have: rate and burst shrink alike.
func (l *Limiter) Tighten(factor int) { l.tight.Store(int64(min(max(factor, 1), tightest))) }

// under is a limit as it is while limits are tightened.
func (l *Limiter) under(limit Limit) Limit {
	t := int(l.tight.Load())
	if limit.PerMinute == 0 || t == 1 {
		return limit
	}
	return Limit{max(1, limit.PerMinute/t), max(1, limit.Burst/t)}
}

// Caller is who asks. What is empty is not limited by.
type Caller struct {
	Account, Device string
	Address         netip.Addr
}

// Verdict is a decision, and how the limit stands that is nearest to its end, or
// that refused.
type Verdict struct {
	OK    bool
	Limit string // account, device, address, relation; "": nothing limits
	Quota Limit  // of it
	Left  int64  // tokens of it
	// Full is until all its tokens are back, Wait until the first is.
	Full, Wait time.Duration
}

// Take takes a token of each of the caller's buckets, or none at all.
func (l *Limiter) Take(ctx context.Context, sort Sort, c Caller) Verdict {
	var (
		limits = l.cfg.Commands
		which  [callers]int
		keys   [callers]key
		quotas [callers]Limit
		n      int
	)
	if sort == Queries {
		limits = l.cfg.Queries
	}
	add := func(at int, limit Limit, of string) {
		if limit.PerMinute > 0 {
			which[n], keys[n], quotas[n] = at, l.key(byte(sort)*callers+byte(at), of), l.under(limit)
			n++
		}
	}
	if c.Account != "" {
		add(account, limits.Account, c.Account)
	}
	if c.Device != "" {
		add(device, limits.Device, c.Device)
	}
	if c.Address.IsValid() {
		network := subscriber(c.Address)
		var text [64]byte
		b, _ := network.AppendText(text[:0])
		add(address, l.ofAddress(limits.Address, c.Address), string(b))
	}
	v, worst := l.take(ctx, keys[:n], quotas[:n])
	if worst < 0 {
		return v
	}
	v.Limit = limitNames[which[worst]]
	if !v.OK {
		l.refused.WithLabelValues(sortNames[sort], v.Limit).Inc()
	}
	return v
}

// ofAddress is the limit of an address by its class.
func (l *Limiter) ofAddress(limit Limit, a netip.Addr) Limit {
	if l.cfg.Networks.IsGateway(a) {
		limit.PerMinute *= l.cfg.GatewayFactor
		limit.Burst *= l.cfg.GatewayFactor
	}
	return limit
}

// TakeTransition takes the token that an effective transition of the relation
// needs. What turns out to be none is given back.
func (l *Limiter) TakeTransition(ctx context.Context, r topology.Relation) Verdict {
	if l.cfg.Transitions.PerMinute == 0 {
		return Verdict{OK: true}
	}
	v, _ := l.take(ctx, []key{l.relationKey(r)}, []Limit{l.under(l.cfg.Transitions)})
	v.Limit = "relation"
	if !v.OK {
		l.refused.WithLabelValues("transitions", v.Limit).Inc()
	}
	return v
}

// GiveTransitionBack returns the token of a command that was no transition.
func (l *Limiter) GiveTransitionBack(ctx context.Context, r topology.Relation) {
	if l.cfg.Transitions.PerMinute == 0 {
		return
	}
	k, b := l.relationKey(r), l.under(l.cfg.Transitions).bucket()
	if l.cfg.Redis == nil || !l.breaker.Enter() {
		l.local.giveBack(k, b)
		return
	}
	// A token that is lost on the way comes back by itself.
	l.breaker.Leave(l.cfg.Redis.GiveBack(ctx, cache.TokenBucket{Key: cache.TokenBucketKey(k), Token: b.token, Full: b.full}))
}

// take decides, and tells which of the limits is worst off; -1 without limits.
func (l *Limiter) take(ctx context.Context, keys []key, quotas []Limit) (v Verdict, worst int) {
	if len(keys) == 0 {
		return Verdict{OK: true}, -1
	}
	var buckets [callers]bucket
	var fullIn [callers]int64
	for i, q := range quotas {
		buckets[i] = q.bucket()
	}
	b, in := buckets[:len(keys)], fullIn[:len(keys)]
	ok, decided := l.shared(ctx, keys, b, in)
	if !decided {
		ok = l.local.take(keys, b, in)
	}
	for i := range b {
		if worse(b[i], in[i], b[worst], in[worst], ok) {
			worst = i
		}
	}
	at, fi := b[worst], in[worst]
	v = Verdict{OK: ok, Quota: quotas[worst], Left: at.left(fi), Full: time.Duration(fi) * time.Microsecond}
	if !ok {
		v.Wait = time.Duration(at.wait(fi)) * time.Microsecond
	}
	return v, worst
}

// worse compares two buckets: by the time until there is a token when the caller
// is refused, else by the share that is left.
func worse(a bucket, aIn int64, b bucket, bIn int64, ok bool) bool {
	if !ok {
		return a.wait(aIn) > b.wait(bIn)
	}
	return float64(aIn)/float64(a.full) > float64(bIn)/float64(b.full)
}

// shared decides in Redis; decided is false when it is away.
func (l *Limiter) shared(ctx context.Context, keys []key, buckets []bucket, fullIn []int64) (ok, decided bool) {
	if l.cfg.Redis == nil {
		return false, false
	}
	if !l.breaker.Enter() {
		l.alone.Inc()
		return false, false
	}
	var of [callers]cache.TokenBucket
	for i, b := range buckets {
		of[i] = cache.TokenBucket{Key: cache.TokenBucketKey(keys[i]), Token: b.token, Full: b.full}
	}
	ok, err := l.cfg.Redis.TakeTokens(ctx, of[:len(buckets)], fullIn)
	if ctx.Err() == nil { // a client that has gone says nothing of Redis
		l.breaker.Leave(err)
	}
	if err != nil {
		l.alone.Inc()
		return false, false
	}
	return ok, true
}

// relationKind is what the keys of relations begin with; callers' are below it.
const relationKind = byte(sorts) * callers

func (l *Limiter) relationKey(r topology.Relation) key { return l.key(relationKind, r.Key()) }

// key hashes what a bucket belongs to.
func (l *Limiter) key(kind byte, of string) key {
	var room [512]byte
	b := append(append(room[:0], kind), l.cfg.Deployment...)
	b = append(append(b, 0), of...)
	sum := sha256.Sum256(b)
	return key(sum[:len(key{})])
}
