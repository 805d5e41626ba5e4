package drills

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tidemark/tidemark/drills/faultproxy"
	"github.com/tidemark/tidemark/drills/reading"
	"github.com/tidemark/tidemark/internal/cache"
	"github.com/tidemark/tidemark/internal/control"
	"github.com/tidemark/tidemark/internal/embedded"
)

// RedisSort is what Redis a whole system has.
type RedisSort string

// The sorts. But for a cluster, whose nodes tell clients their addresses, a
// proxy that breaks on demand stands before it.
const (
	NoRedis         RedisSort = ""
	OneRedis        RedisSort = "one"
	ReplicatedRedis RedisSort = "replicated" // a server and a replica that may take its place
	ClusteredRedis  RedisSort = "cluster"    // three masters
)

// redisServers are the Redis of a system.
type redisServers struct {
	dir     string
	proxy   *faultproxy.Proxy      // nil: a cluster
	main    *embedded.RedisServer  // nil: a cluster, or memory
	replica *embedded.RedisServer  // of main
	cluster *embedded.RedisCluster // nil: none
	memory  *embedded.Redis        // nil: a real one
}

// startRedis starts what the cell wants. Without a redis-server the embedded
// one stands in where a single server does.
func startRedis(ctx context.Context, dir string, sort RedisSort) (r *redisServers, err error) {
	r = &redisServers{dir: dir}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	defer func() {
		if errors.Is(err, embedded.ErrNoRedisServer) {
			err = missingError{err}
		}
		if err != nil {
			r.close()
		}
	}()
	if sort == ClusteredRedis {
		r.cluster, err = embedded.StartRedisCluster(ctx, embedded.RedisClusterConfig{Dir: dir})
		return r, err
	}
	address := ""
	r.main, err = startServer(ctx, dir, "one")
	switch {
	case errors.Is(err, embedded.ErrNoRedisServer) && sort == OneRedis:
		r.main = nil
		if r.memory, err = embedded.StartRedis(embedded.RedisConfig{}); err != nil {
			return r, err
		}
		address = r.memory.Addr
	case err != nil:
		return r, err
	default:
		address = r.main.Addr
	}
	if sort == ReplicatedRedis {
		if r.replica, err = startServer(ctx, dir, "two"); err != nil {
			return r, err
		}
		if err := follow(ctx, r.replica, r.main); err != nil {
			return r, err
		}
	}
	r.proxy, err = faultproxy.Start(address)
	return r, err
}

func startServer(ctx context.Context, dir, name string) (*embedded.RedisServer, error) {
	at := filepath.Join(dir, name)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, err
	}
	return embedded.StartRedisServer(ctx, embedded.RedisServerConfig{Dir: at, Args: []string{"--repl-diskless-sync-delay", "0"}})
}

// follow makes a server the replica of another one.
func follow(ctx context.Context, replica, of *embedded.RedisServer) error {
	host, port, _ := strings.Cut(of.Addr, ":")
	_, err := replica.Command(ctx, "replicaof", host, port)
	return err
}

func (r *redisServers) url() string {
	if r.cluster != nil {
		return r.cluster.URL()
	}
	return "redis://" + r.proxy.Address()
}

// about says what it is, for the report.
func (r *redisServers) about(ctx context.Context) string {
	one := r.main
	switch {
	case r.memory != nil:
		return "Redis: the embedded one; redis-server is not in PATH"
	case r.cluster != nil:
		one = r.cluster.Nodes[0]
	}
	info, err := one.Command(ctx, "info", "server")
	if err != nil {
		return "Redis: " + err.Error()
	}
	what := "one redis-server"
	switch {
	case r.cluster != nil:
		what = "a Redis Cluster of three"
	case r.replica != nil:
		what = "a redis-server and a replica"
	}
	return "Redis: " + what + ", version " + infoField(info, "redis_version")
}

// infoField is a field of what INFO answers.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if field, value, _ := strings.Cut(strings.TrimSpace(line), ":"); field == name {
			return value
		}
	}
	return ""
}

// server is the one that is written; missingError when it is no process.
func (r *redisServers) server() (*embedded.RedisServer, error) {
	if r.main == nil {
		return nil, missingError{embedded.ErrNoRedisServer}
	}
	return r.main, nil
}

// flush empties Redis.
func (r *redisServers) flush(ctx context.Context) error {
	if r.memory != nil {
		return r.anew()
	}
	_, err := r.main.Command(ctx, "flushall")
	return err
}

// anew ends the embedded one, and has an empty one stand where it was.
func (r *redisServers) anew() (err error) {
	_ = r.memory.Stop()
	if r.memory, err = embedded.StartRedis(embedded.RedisConfig{}); err != nil {
		return err
	}
	r.proxy.LeadTo(r.memory.Addr)
	return nil
}

// heal ends every fault that a server may have been left with.
func (r *redisServers) heal(ctx context.Context) error {
	if r.proxy != nil {
		r.proxy.Slow(0)
		r.proxy.CutAfter(0)
	}
	if r.main == nil {
		return nil
	}
	r.main.Signal(syscall.SIGCONT)
	return r.room(ctx, 0, "noeviction")
}

// room limits a server's memory, to bytes beyond which it does what the policy
// says; 0: no limit.
func (r *redisServers) room(ctx context.Context, most int64, policy string) error {
	if _, err := r.main.Command(ctx, "config", "set", "maxmemory-policy", policy); err != nil {
		return err
	}
	_, err := r.main.Command(ctx, "config", "set", "maxmemory", strconv.FormatInt(most, 10))
	return err
}

// used is how much memory a server uses, in bytes.
func (r *redisServers) used(ctx context.Context) (int64, error) {
	info, err := r.main.Command(ctx, "info", "memory")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(infoField(info, "used_memory"), 10, 64)
}

func (r *redisServers) close() {
	if r.proxy != nil {
		r.proxy.Close()
	}
	for _, server := range []*embedded.RedisServer{r.main, r.replica} {
		if server != nil {
			_ = server.Stop()
		}
	}
	if r.cluster != nil {
		_ = r.cluster.Stop()
	}
	if r.memory != nil {
		_ = r.memory.Stop()
	}
}

const (
	// askers ask for their relations while a drill of Redis runs.
	askers = 6
	// askedTargets are what each of them has relations to.
	askedTargets = 12
	askEvery     = 25 * time.Millisecond
)

// startAskers waits for a whole cache, then has users ask until the end.
func (s *system) startAskers(ctx context.Context) (err error) {
	if s.redis == nil {
		return nil
	}
	s.tallies.note("%s", s.redis.about(ctx))
	if s.control, err = control.Open(ctx, s.cfg.Control); err != nil {
		return err
	}
	if _, err := s.activeAfter(ctx, 0); err != nil {
		return err
	}
	s.askers, err = reading.Start(reading.Config{
		BaseURL: "http://" + s.cfg.API.Listen, Token: func(user string) (string, error) { return s.auth.Mint(user, "", 24*time.Hour) },
		Users: askers, Targets: askedTargets, Every: askEvery, Seed: s.seed, Findings: s.findings,
	})
	return err
}

// generation is the newest of the relation cache; nil when there is none.
func (s *system) generation(ctx context.Context) (*control.CacheGeneration, error) {
	all, err := s.control.CacheGenerations(ctx, cache.Relations, 1)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

// activeAfter waits until a generation above one is active.
func (s *system) activeAfter(ctx context.Context, id uint64) (g cache.Generation, err error) {
	err = await(ctx, s.patience, fmt.Sprintf("a cache generation above %d being active", id), func() error {
		newest, err := s.generation(ctx)
		switch {
		case err != nil:
			return err
		case newest == nil:
			return errors.New("there is none")
		case newest.ID <= id || newest.Status != control.CacheActive:
			return fmt.Errorf("the newest is %d, %s: %s %s", newest.ID, newest.Status, newest.Progress.Phase, newest.EndedReason)
		}
		g = newest.Generation
		return nil
	})
	return g, err
}
