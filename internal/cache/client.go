package cache

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/tidemark/tidemark/internal/tlsfiles"
)

// Config says where the cache is and how long it may take.
type Config struct {
	// URL is redis:// or rediss://host:port/db. With ?cluster=true, or with
	// further nodes as ?addr=host:port&addr=..., it is a Redis Cluster, of which
	// any of the nodes named need answer.
	URL string
	// TLS of a rediss:// URL; nil: the system's authorities, and no certificate of
	// this side.
	TLS *tlsfiles.Client
	// Credentials say who comes, for each new connection; nil: whom the URL names.
	Credentials func(context.Context) (user, password string, err error)
	// Timeout of connecting and of each pipeline; default DefaultTimeout. The
	// deadline of a call's context counts too.
	Timeout time.Duration
	// Connections per node; default DefaultConnections.
	Connections int
}

// DefaultTimeout bounds what a call waits for a node. A cache that takes longer
// is of no use to whoever can read the source.
const DefaultTimeout = 250 * time.Millisecond

// DefaultConnections are enough for a process whose calls take milliseconds.
const DefaultConnections = 16

// maxPipeline is the most commands that are sent before their replies are read.
const maxPipeline = 512

// ErrStamp says that a node does not hold the generation: it was never stamped
// there or is retired, the memory was flushed, or the server's history is not
// the one that was stamped.
var ErrStamp = errors.New("the server does not hold this cache generation")

// ErrFenced says that a later owner has written where an earlier one tries to.
var ErrFenced = errors.New("a later owner writes this part of the cache")

// Client speaks to the nodes of a Redis or Redis Cluster. It is safe for
// concurrent use. A node that is away is an error of the call, never of Open.
type Client struct {
	redis    redis.UniversalClient
	cluster  bool
	trusting atomic.Bool // see Trust

	mu    sync.Mutex
	nodes map[string]*node // by address
	stop  context.CancelFunc
	done  chan struct{}
}

// Open makes a client; it does not connect yet.
func Open(cfg Config) (*Client, error) {
	if cfg.Timeout == 0 {
		cfg.Timeout = DefaultTimeout
	}
	if cfg.Connections == 0 {
		cfg.Connections = DefaultConnections
	}
	redis.SetLogger(silent{})
	c := &Client{nodes: map[string]*node{}, done: make(chan struct{})}
	if err := c.open(cfg); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	go c.watch(ctx)
	return c, nil
}

// Trust has the client take whatever a server holds for what was written there:
// for drills that must be able to fail.
func (c *Client) Trust() { c.trusting.Store(true) }

// silent drops what go-redis would write to stderr: its errors are the calls'.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func (c *Client) open(cfg Config) error {
	at, err := url.Parse(cfg.URL)
	if err != nil {
		return errors.New("the URL of Redis is malformed")
	}
	query := at.Query()
	c.cluster = query.Has("addr") || query.Get("cluster") == "true"
	query.Del("cluster")
	at.RawQuery = query.Encode()
	if c.cluster {
		o, err := redis.ParseClusterURL(at.String())
		if err != nil {
			return fmt.Errorf("reading the URL of Redis: %w", err)
		}
		o.NewClient = c.newNode
		if cfg.TLS != nil {
			o.Dialer = cfg.TLS.Dial
		}
		o.CredentialsProviderContext = cfg.Credentials
		o.MaxRedirects = 2
		o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = cfg.Timeout, cfg.Timeout, cfg.Timeout, cfg.Timeout
		o.Protocol, o.DialerRetries, o.ContextTimeoutEnabled, o.PoolSize = 2, 1, true, cfg.Connections
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		o.PipelinePoolSize = cfg.Connections
		c.redis = redis.NewClusterClient(o)
		return nil
	}
	o, err := redis.ParseURL(at.String())
	if err != nil {
		return fmt.Errorf("reading the URL of Redis: %w", err)
	}
	if cfg.TLS != nil {
		o.Dialer = cfg.TLS.Dial
	}
	o.CredentialsProviderContext = cfg.Credentials
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = cfg.Timeout, cfg.Timeout, cfg.Timeout, cfg.Timeout
	o.Protocol, o.DialerRetries, o.MaxRetries, o.ContextTimeoutEnabled, o.PoolSize = 2, 1, -1, true, cfg.Connections
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	o.PipelinePoolSize = cfg.Connections
	c.redis = c.newNode(o)
	return nil
}

// Close ends every connection.
func (c *Client) Close() error {
	c.stop()
	<-c.done
	return c.redis.Close()
}

// Ping tells whether every node answers.
func (c *Client) Ping(ctx context.Context) error {
	err := c.eachMaster(ctx, func(ctx context.Context, n *redis.Client) error { return n.Ping(ctx).Err() })
	if err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	return nil
}

func (c *Client) eachMaster(ctx context.Context, do func(context.Context, *redis.Client) error) error {
	switch r := c.redis.(type) {
	case *redis.ClusterClient:
		return r.ForEachMaster(ctx, do)
	case *redis.Client:
		return do(ctx, r)
	}
	return nil
}

// stampKey is the sentinel that guards a key. One server has one; in a cluster
// every slot has its own, so that a script reaches it wherever the slot is.
func (c *Client) stampKey(k Key) string { return k.gen.stampKey(c.stampSlot(k.slot)) }

func (c *Client) stampSlot(slot uint16) uint16 {
	if !c.cluster {
		return 0
	}
	return slot
}

// Read is a reading command on one key.
type Read struct {
	key  Key
	args []any
}

// HashFields reads fields of a hash: a []any with nil for a field that is not
// there.
func HashFields(k Key, fields ...string) Read {
	args := make([]any, 0, 2+len(fields))
	args = append(args, "hmget", k.name)
	for _, f := range fields {
		args = append(args, f)
	}
	return Read{k, args}
}

// Value reads a string; nil when there is none.
func Value(k Key) Read { return Read{k, []any{"get", k.name}} }

// Newest reads members of a sorted set from the highest score on, with their
// scores: member, score, member, score, the scores as text.
func Newest(k Key, from, to int) Read {
	return Read{k, []any{"zrevrange", k.name, from, to, "withscores"}}
}

// Reply is the answer to one Read or Call.
type Reply struct {
	Value any // as Redis's protocol has it: string, int64, []any, nil
	Err   error
}

// Read reads, pipelined per node. A reply without an error was read from a
// server that held its key's generation when the reading was over; ErrStamp
// says that it did not, and that nothing it says may be believed.
func (c *Client) Read(ctx context.Context, reads []Read) []Reply {
	replies := make([]Reply, len(reads))
	for from := 0; from < len(reads); from += maxPipeline {
		to := min(from+maxPipeline, len(reads))
		c.read(ctx, reads[from:to], replies[from:to])
	}
	return replies
}

func (c *Client) read(ctx context.Context, reads []Read, replies []Reply) {
	pipe := c.redis.Pipeline()
	cmds := make([]*redis.Cmd, len(reads))
	for i, r := range reads {
		cmds[i] = pipe.Do(ctx, r.args...)
	}
	// The stamps come last: what a pipeline that was cut and sent again has read
	// from two servers is judged by the second.
	stamps := make(map[string]*redis.StringCmd, 1)
	for _, r := range reads {
		name := c.stampKey(r.key)
		if stamps[name] == nil {
			stamps[name] = redis.NewStringCmd(ctx, "hget", name, "h")
			_ = pipe.Process(ctx, stamps[name])
		}
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i, r := range reads {
		value, err := cmds[i].Result()
		if errors.Is(err, redis.Nil) {
			value, err = nil, nil
		}
		if err == nil && !c.trusting.Load() {
			err = believe(stamps[c.stampKey(r.key)], r.key.gen)
		}
		if err != nil {
			value, err = nil, c.named("reading", r.key, err)
		}
		replies[i] = Reply{value, err}
	}
}

// believe tells whether a stamp is that of a generation; the node's hook has
// compared its history (node.judge).
func believe(stamp *redis.StringCmd, g Generation) error {
	value, err := stamp.Result()
	deployment, _, _ := strings.Cut(value, " ")
	switch {
	case errors.Is(err, redis.Nil) || err == nil && deployment != g.Deployment:
		return ErrStamp
	}
	return err
}

func (c *Client) named(doing string, k Key, err error) error {
	if redis.HasErrorPrefix(err, stampRefusal) {
		err = ErrStamp
	}
	if redis.HasErrorPrefix(err, fenceRefusal) {
		err = ErrFenced
	}
	return fmt.Errorf("redis: %s generation %d of %s: %w", doing, k.gen.ID, k.gen.Family, err)
}
