package embedded

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Command has the server do something, as redis-cli does, and gives what it
// answers, line by line.
func (r *RedisServer) Command(ctx context.Context, args ...string) (string, error) {
	_, port, _ := strings.Cut(r.Addr, ":")
	out, err := redisCLI(ctx, r.cfg.TLS, append([]string{"-p", port}, args...)...)
	if err != nil {
		return "", fmt.Errorf("redis-server at %s: %v: %w", r.Addr, args, err)
	}
	return out, nil
}

func redisCLI(ctx context.Context, tls *RedisTLS, args ...string) (string, error) {
	all := []string{"-e"}
	if tls != nil {
		all = append(all, "--tls", "--cacert", tls.CA, "--cert", tls.Cert, "--key", tls.Key)
	}
	out, err := exec.CommandContext(ctx, "redis-cli", append(all, args...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("redis-cli: %w: %.400s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// RedisClusterConfig says how to start a Redis Cluster.
type RedisClusterConfig struct {
	// Dir holds what the nodes write, in a folder each.
	Dir string
	// Replicas of each master.
	Replicas int
	// TLS of clients and between nodes; nil: none.
	TLS *RedisTLS
	// Args follow those that make nodes of a cluster.
	Args []string
}

// RedisCluster is a Redis Cluster of this machine: three masters, then their
// replicas.
type RedisCluster struct {
	Nodes []*RedisServer

	scheme string
}

const clusterMasters = 3

// StartRedisCluster starts the nodes and waits until every one serves, and every
// replica is in step with its master.
func StartRedisCluster(ctx context.Context, cfg RedisClusterConfig) (c *RedisCluster, err error) {
	c = &RedisCluster{scheme: "redis"}
	if cfg.TLS != nil {
		c.scheme = "rediss"
	}
	defer func() {
		if err != nil {
			_ = c.Stop()
		}
	}()
	create := []string{"--cluster", "create"}
	for n := range clusterMasters * (1 + cfg.Replicas) {
		dir := filepath.Join(cfg.Dir, "node-"+strconv.Itoa(n+1))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return c, fmt.Errorf("starting a Redis Cluster: %w", err)
		}
		port, err := freeClusterPort()
		if err != nil {
			return c, fmt.Errorf("starting a Redis Cluster: %w", err)
		}
		node, err := StartRedisServer(ctx, RedisServerConfig{Dir: dir, Port: port, TLS: cfg.TLS, Args: append([]string{
			"--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-config-file", "nodes.conf", "--repl-diskless-sync-delay", "0",
		}, cfg.Args...)})
		if err != nil {
			return c, err
		}
		c.Nodes = append(c.Nodes, node)
		create = append(create, node.Addr)
	}
	if _, err := redisCLI(ctx, cfg.TLS, append(create, "--cluster-replicas", strconv.Itoa(cfg.Replicas), "--cluster-yes")...); err != nil {
		return c, fmt.Errorf("making a Redis Cluster: %w", err)
	}
	for _, node := range c.Nodes {
		for err := c.serves(ctx, node, cfg.Replicas); err != nil; err = c.serves(ctx, node, cfg.Replicas) {
			if wait(ctx, 20*time.Millisecond) != nil {
				return c, fmt.Errorf("waiting for a Redis Cluster: %w", err)
			}
		}
	}
	return c, nil
}

// busPort is how far above its own port a node listens for the others.
const busPort = 10_000

// freeClusterPort finds a port of which the bus's is free, too, and below those
// that systems give to whoever asks for any.
func freeClusterPort() (int, error) {
	for {
		port, err := FreePort()
		if err != nil {
			return 0, err
		}
		if port+busPort <= lastPort && takePort(port+busPort) {
			return port, nil
		}
	}
}

func (c *RedisCluster) serves(ctx context.Context, node *RedisServer, replicas int) error {
	state, err := node.Command(ctx, "cluster", "info")
	if err != nil {
		return err
	}
	if !strings.Contains(state, "cluster_state:ok") {
		return fmt.Errorf("node %s is in no whole cluster: %s", node.Addr, state)
	}
	state, err = node.Command(ctx, "info", "replication")
	if err != nil {
		return err
	}
	if !strings.Contains(state, "master_link_status:up") && !strings.Contains(state, "connected_slaves:"+strconv.Itoa(replicas)) {
		return fmt.Errorf("node %s is not in step with its master or replicas: %s", node.Addr, state)
	}
	return nil
}

// URL names every master.
func (c *RedisCluster) URL() string {
	return c.scheme + "://" + c.Nodes[0].Addr + "?addr=" + c.Nodes[1].Addr + "&addr=" + c.Nodes[2].Addr
}

// Stop ends every node.
func (c *RedisCluster) Stop() error {
	var errs []error
	for _, node := range c.Nodes {
		errs = append(errs, node.Stop())
	}
	return errors.Join(errs...)
}

// slotKeys of a slot are moved in one step.
const slotKeys = "100"

// MoveSlot moves a slot that one master serves to another, with its keys. It may
// be written meanwhile.
func (c *RedisCluster) MoveSlot(ctx context.Context, slot int, from, to *RedisServer) error {
	ids, n := [2]string{}, strconv.Itoa(slot)
	for i, node := range []*RedisServer{from, to} {
		var err error
		if ids[i], err = node.Command(ctx, "cluster", "myid"); err != nil {
			return err
		}
	}
	if _, err := to.Command(ctx, "cluster", "setslot", n, "importing", ids[0]); err != nil {
		return err
	}
	if _, err := from.Command(ctx, "cluster", "setslot", n, "migrating", ids[1]); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(to.Addr)
	if err != nil {
		return err
	}
	for {
		keys, err := from.Command(ctx, "cluster", "getkeysinslot", n, slotKeys)
		if err != nil {
			return err
		}
		if keys == "" {
			break
		}
		move := append([]string{"migrate", host, port, "", "0", "5000", "keys"}, strings.Split(keys, "\n")...)
		if _, err := from.Command(ctx, move...); err != nil {
			return err
		}
	}
	for _, node := range []*RedisServer{to, from} {
		if _, err := node.Command(ctx, "cluster", "setslot", n, "node", ids[1]); err != nil {
			return err
		}
	}
	return nil
}
