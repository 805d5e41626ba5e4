package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// problems collects what is wrong, each with its setting's path.
type problems []error

func (p *problems) add(path, format string, args ...any) {
	*p = append(*p, fmt.Errorf(path+" "+format, args...))
}

var instanceForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Validate checks the form of every setting and how they fit together, and
// names each that is wrong. It does not ask for URLs that a command may not
// need; Require does.
func (c Config) Validate() error {
	var p problems
	c.validateTopology(&p)
	c.validateStores(&p)
	c.validateServing(&p)
	c.validateRunning(&p)
	return errors.Join(p...)
}

func (c Config) validateTopology(p *problems) {
	if _, err := c.Topology(); err != nil {
		*p = append(*p, err)
	}
}

func (c Config) validateStores(p *problems) {
	if len(c.Postgres) > 0 && len(c.Postgres) != c.Shards {
		p.add("postgres", "has %d URLs for %d shards: give one per shard", len(c.Postgres), c.Shards)
	}
	for i, u := range c.Postgres {
		path := fmt.Sprintf("postgres[%d]", i)
		checkPostgres(p, path, u)
		if first := slices.Index(c.Postgres, u); first < i {
			p.add(path, "is the URL of postgres[%d] again: each shard has its own database", first)
		}
	}
	if c.Control != "" {
		checkPostgres(p, "control", c.Control)
	}
	for i, b := range c.Kafka.Brokers {
		checkAddress(p, fmt.Sprintf("kafka.brokers[%d]", i), b, 1)
	}
	c.Kafka.validateAccess(p)
	c.validateRedis(p)
}

// checkPostgres never repeats the URL: it has a password.
func checkPostgres(p *problems, path, u string) {
	if !strings.HasPrefix(u, "postgres://") && !strings.HasPrefix(u, "postgresql://") {
		p.add(path, "is not a postgres:// URL")
		return
	}
	_, err := pgx.ParseConfig(u)
	var unread *fs.PathError
	switch {
	case errors.As(err, &unread):
		p.add(path, "names a file for TLS that cannot be read: %w", unread)
	case err != nil:
		p.add(path, "is not a URL that PostgreSQL's clients take")
	}
}

func checkAddress(p *problems, path, address string, lowestPort int) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		p.add(path, "%q is not host:port", address)
		return
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < lowestPort || n > 1<<16-1 {
		p.add(path, "%q: the port is not in %d..65535", address, lowestPort)
	}
	if host == "" && lowestPort > 0 {
		p.add(path, "%q names no host", address)
	}
}

func (c Config) validateServing(p *problems) {
	checkAddress(p, "api.listen", c.API.Listen, 0)
	checkAddress(p, "ops.listen", c.Ops.Listen, 0)
	if c.API.Listen == c.Ops.Listen && !strings.HasSuffix(c.API.Listen, ":0") {
		p.add("ops.listen", "%q is api.listen too: operators need an address of their own", c.Ops.Listen)
	}
	c.API.TLS.validate(p, "api.tls")
	c.Ops.TLS.validate(p, "ops.tls")
	c.Likers.validate(p)
	c.Limits.validate(p)
	a := c.Auth
	if a.HS256KeyFile != "" && a.JWKSURL != "" {
		p.add("auth.jwks_url", "and auth.hs256_key_file are both given: choose who signs tokens")
	}
	a.JWKSTLS.validate(p, "auth.jwks_tls")
	if a.JWKSTLS.Enabled && !strings.HasPrefix(a.JWKSURL, "https:") {
		p.add("auth.jwks_tls.enabled", "is true, but auth.jwks_url is not an https URL")
	}
	c.Signatures.validate(p)
	if a.JWKSURL != "" && !safeURL(a.JWKSURL) {
		p.add("auth.jwks_url", "%q is neither https nor http on loopback", a.JWKSURL)
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, c.Log.Level) {
		p.add("log.level", "%q is not one of debug, info, warn, error", c.Log.Level)
	}
	if !slices.Contains([]string{"text", "json"}, c.Log.Format) {
		p.add("log.format", "%q is not one of text, json", c.Log.Format)
	}
}

func (l Likers) validate(p *problems) {
	checkAddress(p, "likers.listen", l.Listen, 0)
	l.TLS.validate(p, "likers.tls")
	if l.MaxStandbyStaleness < 0 || l.MaxStandbyStaleness > time.Hour {
		p.add("likers.max_standby_staleness", "%v is not in 0..1h", l.MaxStandbyStaleness)
	}
	if l.TLS.Enabled && (l.TLS.CertFile == "" || l.TLS.CAFile == "") {
		p.add("likers.tls", "needs cert_file, key_file and ca_file: both sides show who they are")
	}
	if len(l.ClientNames) > 0 && !l.TLS.Enabled {
		p.add("likers.client_names", "are given, but likers.tls.enabled is false: without certificates nobody shows a name")
	}
	if l.Advertise != "" {
		checkAddress(p, "likers.advertise", l.Advertise, 0)
		if unspecified(l.Advertise) {
			p.add("likers.advertise", "%q names no host that others can reach", l.Advertise)
		}
		return
	}
	if unspecified(l.Listen) {
		p.add("likers.advertise", "is not set, and likers.listen %q names no host that others can reach: set it to this process's own host:port", l.Listen)
	}
}

// unspecified tells whether an address stands for every one of the machine.
func unspecified(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	return err == nil && (host == "" || ip != nil && ip.IsUnspecified())
}

// Address is where query processes reach a likers process that listens on l.
func (l Likers) Address(listener net.Addr) string {
	address := l.Advertise
	if address == "" {
		return listener.String()
	}
	host, port, err := net.SplitHostPort(address)
	if _, bound, boundErr := net.SplitHostPort(listener.String()); err == nil && boundErr == nil && port == "0" {
		return net.JoinHostPort(host, bound)
	}
	return address
}

// safeURL tells whether what comes from the URL can be believed.
func safeURL(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "https" || u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback())
}

func (c Config) validateRunning(p *problems) {
	if c.StateDir == "" {
		p.add("state_dir", "is empty: name a folder for local stores")
	}
	if !instanceForm.MatchString(c.Instance) {
		p.add("instance", "%q is not 1 to 64 letters, digits, dots, dashes or underscores", c.Instance)
	}
	within := func(path string, d, lo, hi time.Duration) {
		if d < lo || d > hi {
			p.add(path, "is %v, not in %v..%v", d, lo, hi)
		}
	}
	between := func(path string, v, lo, hi int) {
		if v < lo || v > hi {
			p.add(path, "is %d, not in %d..%d", v, lo, hi)
		}
	}
	between("cache.relation_buckets", c.Cache.RelationBuckets, 1, 64)
	between("cache.rebuild_rate", c.Cache.RebuildRate, 100, 10_000_000)
	between("overload.commands_in_flight", c.Overload.CommandsInFlight, 8, 100_000)
	between("overload.queries_in_flight", c.Overload.QueriesInFlight, 8, 100_000)
	within("overload.command_latency", c.Overload.CommandLatency, time.Millisecond, 10*time.Second)
	within("overload.pool_wait", c.Overload.PoolWait, time.Millisecond, 10*time.Second)
	within("overload.count_lag", c.Overload.CountLag, time.Second, time.Hour)
	between("cache.fallback_reads", c.Cache.FallbackReads, 1, 1000)
	between("cache.head_length", c.Cache.HeadLength, 100, 100_000)
	between("cache.hot_reads", c.Cache.HotReads, 1, 1_000_000)
	between("cache.hot_lists", c.Cache.HotLists, 1, 10_000)
	if c.Cache.Heads && c.Redis == "" {
		p.add("cache.heads", "is true, and redis is not set: heads of hot lists are kept there")
	}
	switch c.Cache.CountSource {
	case CountsFromView:
	case CountsFromRedis, CountsFromBoth:
		if c.Redis == "" {
			p.add("cache.count_source", "is %s, and redis is not set", c.Cache.CountSource)
		}
	default:
		p.add("cache.count_source", "is none of view, redis, both")
	}
	within("cache.read_timeout", c.Cache.ReadTimeout, time.Millisecond, 10*time.Second)
	within("refresh_interval", c.RefreshInterval, time.Millisecond, time.Minute)
	within("seal_interval", c.SealInterval, 50*time.Millisecond, time.Hour)
	policy := func(path, v string) {
		if v != RejectStale && v != LastCommitWins {
			p.add(path, "%q is not one of %s, %s", v, RejectStale, LastCommitWins)
		}
	}
	policy("stale_base_policy", c.StaleBasePolicy)
	for kind, v := range map[string]string{"like": c.StaleBase.Like, "favorite": c.StaleBase.Favorite, "follow": c.StaleBase.Follow} {
		if v != "" {
			policy("stale_base."+kind, v)
		}
	}
	c.Visibility.validate(p)
	c.Risk.validate(p)
	if c.GapHealing != HealManually && c.GapHealing != HealAutomatically {
		p.add("gap_healing", "%q is not one of %s, %s", c.GapHealing, HealManually, HealAutomatically)
	}
	within("outbox_retention", c.OutboxRetention, 24*time.Hour, 366*24*time.Hour)
	within("command_retention", c.CommandRetention, 24*time.Hour, 10*366*24*time.Hour)
}

// Part is a part of the configuration that a command or role cannot do
// without.
type Part string

// The parts.
const (
	PartPostgres Part = "postgres"
	PartControl  Part = "control"
	PartKafka    Part = "kafka.brokers"
	PartRedis    Part = "redis"
	PartAuth     Part = "auth.hs256_key_file"
)

// Require names each part that is not set.
func (c Config) Require(parts ...Part) error {
	set := map[Part]bool{
		PartPostgres: len(c.Postgres) > 0,
		PartControl:  c.Control != "",
		PartKafka:    len(c.Kafka.Brokers) > 0,
		PartRedis:    c.Redis != "",
		PartAuth:     c.Auth.HS256KeyFile != "" || c.Auth.JWKSURL != "",
	}
	var p problems
	for _, part := range parts {
		if !set[part] {
			s := setting{path: string(part)}
			p.add(s.path, "is not set: set it in the configuration file, or %s in the environment", s.env())
		}
	}
	return errors.Join(p...)
}

// Redact is a URL without its password, for logs and errors.
func Redact(u string) string {
	parsed, err := url.Parse(u)
	if err != nil {
		return "(not a URL)"
	}
	return parsed.Redacted()
}
