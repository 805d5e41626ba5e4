package testenv

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/embedded"
)

// Redis starts an embedded Redis for the test and returns its URL.
func Redis(t testing.TB) string {
	t.Helper()
	r, err := embedded.StartRedis(embedded.RedisConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return "redis://" + r.Addr
}

// RedisServer starts a real one, with more arguments of redis-server. Without
// its program the test is skipped.
func RedisServer(t testing.TB, args ...string) *embedded.RedisServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := embedded.StartRedisServer(ctx, embedded.RedisServerConfig{Dir: t.TempDir(), Args: args})
	if errors.Is(err, embedded.ErrNoRedisServer) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Stop() })
	return r
}

// RedisCluster starts a Redis Cluster of three masters and waits until it
// serves every slot. replicas of each can be added.
func RedisCluster(t testing.TB, replicas int) (url string, nodes []*embedded.RedisServer) {
	t.Helper()
	create := []string{"--cluster", "create"}
	for range 3 * (1 + replicas) {
		n := RedisServer(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1500", "--cluster-config-file", "nodes.conf", "--repl-diskless-sync-delay", "0")
		nodes = append(nodes, n)
		create = append(create, n.Addr)
	}
	create = append(create, "--cluster-replicas", fmt.Sprint(replicas), "--cluster-yes")
	if out, err := exec.Command("redis-cli", create...).CombinedOutput(); err != nil {
		t.Fatalf("making a Redis Cluster: %v: %s", err, out)
	}
	for _, n := range nodes {
		_, port, _ := strings.Cut(n.Addr, ":")
		Eventually(t, 30*time.Second, func() error {
			out, err := exec.Command("redis-cli", "-p", port, "cluster", "info").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "cluster_state:ok") {
				return fmt.Errorf("node %s is not in a whole cluster: %w: %s", n.Addr, err, out)
			}
			out, err = exec.Command("redis-cli", "-p", port, "info", "replication").CombinedOutput()
			if err != nil || !strings.Contains(string(out), "master_link_status:up") && !strings.Contains(string(out), fmt.Sprintf("connected_slaves:%d", replicas)) {
				return fmt.Errorf("node %s is not in step with its master or replicas: %w: %s", n.Addr, err, out)
			}
			return nil
		})
	}
	return "redis://" + nodes[0].Addr + "?addr=" + nodes[1].Addr + "&addr=" + nodes[2].Addr, nodes
}
