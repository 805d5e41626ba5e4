//go:build real

package cache

import (
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestRedisServerConforms(t *testing.T) {
	server := testenv.RedisServer(t)
	conform(t, func(t *testing.T) rig {
		c := open(t, "redis://"+server.Addr)
		flushAll(t, c)
		return rig{c, func(t *testing.T) { flushAll(t, c) }}
	})
}

func TestRedisClusterConforms(t *testing.T) {
	cluster := testenv.RedisCluster(t, 0)
	conform(t, func(t *testing.T) rig {
		c := open(t, cluster.URL())
		flushAll(t, c)
		return rig{c, func(t *testing.T) { flushAll(t, c) }}
	})
}

// A server that comes back from a snapshot has lost what was written after it,
// and still has the generation's stamp.
func TestASnapshotIsNotBelieved(t *testing.T) {
	server := testenv.RedisServer(t)
	r := rig{client: open(t, "redis://"+server.Addr)}
	stamped(t, r, gen7)
	write(t, r.client, gen7, 1, like("u7", "V1", 11))
	cli(t, server, "save")
	write(t, r.client, gen7, 1, like("u7", "V1", 12))
	server.Signal(os.Kill)
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if out := cli(t, server, "hget", "like:relation:g7:{u7|0}", "V1"); !strings.HasPrefix(out, "2|11|") {
		t.Fatalf("the server came back with %q: it shows nothing", out)
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		_, err := r.client.Relations(t.Context(), gen7, topology.Like, "u7", []string{"V1"})
		if errors.Is(err, ErrStamp) {
			return nil
		}
		if err == nil {
			t.Fatal("v11 of the snapshot was believed")
		}
		return err // the connections that the kill has cut
	})
}

// A replica that takes over without the last writes has the stamp too.
func TestAPromotedReplicaIsNotBelieved(t *testing.T) {
	cluster := testenv.RedisCluster(t, 1)
	t.Cleanup(awaitDialers(t))
	r := rig{client: open(t, cluster.URL())}
	stamped(t, r, gen7)
	for _, user := range []string{"u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8"} {
		write(t, r.client, gen7, 1, like(user, "V1", 11))
	}
	cluster.Nodes[0].Signal(os.Kill)
	refused := 0
	testenv.Eventually(t, 30*time.Second, func() error {
		refused = 0
		for _, user := range []string{"u1", "u2", "u3", "u4", "u5", "u6", "u7", "u8"} {
			_, err := r.client.Relations(t.Context(), gen7, topology.Like, user, []string{"V1"})
			if errors.Is(err, ErrStamp) {
				refused++
			} else if err != nil {
				return err
			}
		}
		return nil
	})
	if refused == 0 {
		t.Error("every user is read as before: the promoted replica is believed")
	}
}

// awaitDialers waits for what go-redis looks after a dead node with: it notices
// within a second that its client is closed.
func awaitDialers(t *testing.T) func() {
	return func() {
		testenv.Eventually(t, 10*time.Second, func() error {
			stacks := make([]byte, 1<<20)
			if strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "tryDial") {
				return errors.New("go-redis is still dialing")
			}
			return nil
		})
	}
}

// While a server stands still, calls end by their own time.
func TestASilentServerCostsTheTimeoutOnly(t *testing.T) {
	server := testenv.RedisServer(t)
	c, err := Open(Config{URL: "redis://" + server.Addr})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	stamped(t, rig{client: c}, gen7)
	server.Signal(syscall.SIGSTOP)
	defer server.Signal(syscall.SIGCONT)
	start := time.Now()
	if _, err := c.Relations(t.Context(), gen7, topology.Like, "u7", []string{"V1"}); err == nil {
		t.Error("a server that stands still has answered")
	}
	if took := time.Since(start); took > 10*DefaultTimeout {
		t.Errorf("it took %v", took)
	}
}

// A full server forgets what it cannot bring up to date.
func TestAFullServerKeepsNoOldVersion(t *testing.T) {
	server := testenv.RedisServer(t)
	r := rig{client: open(t, "redis://"+server.Addr)}
	stamped(t, r, gen7)
	w := NewRelationWriter(r.client)
	whole := []UserRelations{{Kind: topology.Like, User: "u7", Relations: []Relation{like("u7", "V1", 11)}}}
	if err := w.WriteUsers(t.Context(), gen7, first, whole); err != nil {
		t.Fatal(err)
	}
	if got := read(t, r.client, gen7, "u7", "V2")[0]; !got.Found {
		t.Errorf("a whole user's V2 reads %+v", got)
	}
	cli(t, server, "config", "set", "maxmemory", "1")
	write(t, r.client, gen7, 0, like("u7", "V2", 1))
	if got := read(t, r.client, gen7, "u7", "V2")[0]; got.Found {
		t.Errorf("a full server says of a first like that is not there: %+v", got)
	}
	write(t, r.client, gen7, 0, like("u7", "V1", 12))
	if got := read(t, r.client, gen7, "u7", "V1")[0]; got.Found {
		t.Errorf("a full server says %+v", got)
	}
	if err := w.WriteUsers(t.Context(), gen7, first, whole); err != nil {
		t.Fatal(err)
	}
	if got := read(t, r.client, gen7, "u7", "V1", "V2"); got[0].Found || got[1].Found {
		t.Errorf("a full server says that what it has no room for is not: %+v", got)
	}
}

// A slot that moves to another node brings its entries along, and is believed
// again once its stamp is brought up to date.
func TestASlotMoves(t *testing.T) {
	cluster := testenv.RedisCluster(t, 0)
	r := rig{client: open(t, cluster.URL())}
	stamped(t, r, gen7)
	write(t, r.client, gen7, 1, like("u7", "V1", 11))
	slot := int(slotOf("u7|0"))
	if err := cluster.MoveSlot(t.Context(), slot, cluster.Nodes[slot/5461%3], cluster.Nodes[(slot/5461+1)%3]); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		if err := r.client.Restamp(t.Context(), gen7); err != nil {
			return err
		}
		got, err := r.client.Relations(t.Context(), gen7, topology.Like, "u7", []string{"V1"})
		if err == nil && got[0].Version != 11 {
			t.Fatalf("read %+v", got)
		}
		return err
	})
	write(t, r.client, gen7, 1, like("u7", "V1", 12))
}

func cli(t *testing.T, server *embedded.RedisServer, args ...string) string {
	t.Helper()
	out, err := server.Command(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
