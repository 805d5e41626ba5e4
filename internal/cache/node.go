package cache

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// node is one server, and which history of it this client has seen.
//
// A server's history is its replication id: it changes when the server starts
// anew and when a replica is promoted, which are the moments at which writes
// that were acknowledged may be gone. It is asked on every new connection,
// before any command, and once a second beside that: a connection can outlive a
// replica's promotion, but not a restart.
type node struct {
	client   *redis.Client
	history  atomic.Pointer[string] // nil: not known
	trusting *atomic.Bool           // see Client.Trust
}

// Histories that are no replication id.
const (
	// unknown matches no stamp: the server is a replica, or did not answer.
	unknown = "?"
	// memoryOnly is that of the embedded server, which has no replication id and
	// needs none: it keeps nothing over a restart.
	memoryOnly = "memory"
)

const historyInterval = time.Second

// newNode makes the client of one server.
func (c *Client) newNode(o *redis.Options) *redis.Client {
	n := &node{trusting: &c.trusting}
	o.OnConnect = func(ctx context.Context, cn *redis.Conn) error { return n.ask(ctx, cn) }
	n.client = redis.NewClient(o)
	n.client.AddHook(n)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[o.Addr] = n
	return n.client
}

type infoReader interface {
	Info(ctx context.Context, sections ...string) *redis.StringCmd
}

// ask learns the server's history.
func (n *node) ask(ctx context.Context, from infoReader) error {
	text, err := from.Info(ctx, "replication").Result()
	history := unknown
	var refused redis.Error
	switch {
	case err == nil:
		history = historyIn(text)
	case errors.As(err, &refused) && strings.Contains(err.Error(), "is not supported"):
		history, err = memoryOnly, nil
	}
	n.history.Store(&history)
	return err
}

func historyIn(info string) string {
	var role, id string
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "role":
			role = value
		case "master_replid":
			id = value
		}
	}
	if role != "master" || id == "" {
		return unknown
	}
	return id
}

// known is the server's history, asked for if it has to be.
func (n *node) known(ctx context.Context) string {
	h := n.history.Load()
	if h == nil || *h == unknown {
		_ = n.ask(ctx, n.client) // the commands that follow meet the same error
		h = n.history.Load()
	}
	return *h
}

// watch keeps histories fresh until ctx ends.
func (c *Client) watch(ctx context.Context) {
	defer close(c.done)
	tick := time.NewTicker(historyInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for address, n := range c.known() {
			err := n.ask(ctx, n.client)
			if errors.Is(err, redis.ErrClosed) {
				c.forget(address, n)
				continue
			}
			if cluster, ok := c.redis.(*redis.ClusterClient); ok && err != nil {
				cluster.ReloadState(ctx) // another node may be master in its place
			}
		}
	}
}

func (c *Client) known() map[string]*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := make(map[string]*node, len(c.nodes))
	for address, n := range c.nodes {
		nodes[address] = n
	}
	return nodes
}

func (c *Client) forget(address string, n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes[address] == n {
		delete(c.nodes, address)
	}
}

// DialHook is go-redis's; it changes nothing.
func (n *node) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook is go-redis's; it changes nothing.
func (n *node) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook stands where it is known which server answers: it tells
// scripts the server's own stamp, and compares the stamps that were read.
func (n *node) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !slices.ContainsFunc(cmds, guarded) {
			return next(ctx, cmds) // go-redis greets new connections in a pipeline
		}
		before := n.known(ctx)
		for _, cmd := range cmds {
			stampArgument(cmd.Args(), before)
			if n.trusting.Load() {
				n.trust(ctx, cmd.Args())
			}
		}
		err := next(ctx, cmds)
		after := unknown
		if h := n.history.Load(); h != nil && *h == before {
			after = *h
		}
		for _, cmd := range cmds {
			if !n.trusting.Load() {
				judge(cmd, after)
			}
		}
		return err
	}
}

// trust makes the stamp that a guarded script compares what the script is given.
func (n *node) trust(ctx context.Context, args []any) {
	if at := guardAt(args); at >= 0 {
		_ = n.client.HSet(ctx, args[at-1].(string), "h", args[at]).Err() // the script meets the same error
	}
}

// guarded tells whether a command depends on a stamp.
func guarded(cmd redis.Cmder) bool { return isStamp(cmd) || guardAt(cmd.Args()) >= 0 }

// isStamp tells whether a command reads a stamp, as opposed to a Value.
func isStamp(cmd redis.Cmder) bool {
	_, ok := cmd.(*redis.StringCmd)
	return ok && cmd.Name() == "hget"
}

// stampArgument completes the stamp that a guarded script is given as its first
// argument: deployment becomes deployment and history.
func stampArgument(args []any, history string) {
	at := guardAt(args)
	if at < 0 {
		return
	}
	deployment, _, _ := strings.Cut(args[at].(string), " ")
	args[at] = deployment + " " + history
}

// guardAt is where a guarded script's stamp stands; -1 when it is no such
// command.
func guardAt(args []any) int {
	name, _ := args[0].(string)
	if name != "eval" && name != "evalsha" {
		return -1
	}
	return 3 + args[2].(int)
}

// judge refuses what was read or written under another history than the
// server's.
func judge(cmd redis.Cmder, history string) {
	if cmd.Err() != nil {
		return
	}
	if isStamp(cmd) {
		if _, stamped, _ := strings.Cut(cmd.(*redis.StringCmd).Val(), " "); stamped != history || history == unknown {
			cmd.SetErr(ErrStamp)
		}
	}
	if guardAt(cmd.Args()) >= 0 && history == unknown {
		cmd.SetErr(ErrStamp) // written, perhaps, where nobody will believe it
	}
}
