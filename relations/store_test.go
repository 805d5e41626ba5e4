package relations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/topology"
)

func TestStatesInOrderWithDefaults(t *testing.T) {
	s := open(t, 2, nil)
	mustSet(t, s, command("a", relation(topology.Like, "u7", "v1"), topology.Liked))
	mustSet(t, s, command("b", relation(topology.Like, "u7", "v2"), topology.Disliked))
	mustSet(t, s, command("c", relation(topology.Favorite, "u7", "v3"), topology.Favorited))
	got, err := s.States(context.Background(), "u7", topology.Like, []string{"v3", "v2", "v1", "v2"})
	if err != nil {
		t.Fatal(err)
	}
	wantFact(t, got[0], topology.Unliked, 0)
	wantFact(t, got[1], topology.Disliked, 1)
	wantFact(t, got[2], topology.Liked, 1)
	wantFact(t, got[3], topology.Disliked, 1)
	if got[0].Relation != relation(topology.Like, "u7", "v3") || !got[0].StateChangedAt.IsZero() || got[2].StateChangedAt.IsZero() {
		t.Errorf("%+v", got)
	}
	if got, err := s.States(context.Background(), "u7", topology.Follow, nil); err != nil || len(got) != 0 {
		t.Errorf("no targets: %v %v", got, err)
	}
	for name, targets := range map[string][]string{"too many": make([]string, MaxTargets+1), "empty": {"a", ""}} {
		if _, err := s.States(context.Background(), "u7", topology.Like, targets); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFactsAreOneSnapshot(t *testing.T) {
	s := open(t, 1, nil)
	for i := range 20 {
		mustSet(t, s, command(fmt.Sprint(i), relation(topology.Like, fmt.Sprintf("u%d", i), "v"), topology.Liked))
	}
	seen := 0
	err := s.Facts(context.Background(), 0, func(f Fact) error {
		if seen == 0 {
			mustSet(t, s, command("later", relation(topology.Like, "later", "v"), topology.Liked))
			for i := range 20 {
				mustSet(t, s, command(fmt.Sprintf("off%d", i), relation(topology.Like, fmt.Sprintf("u%d", i), "v"), topology.Unliked))
			}
		}
		seen++
		if f.State != topology.Liked || f.Relation.User == "later" {
			return fmt.Errorf("saw %+v from after the snapshot", f)
		}
		return nil
	})
	if err != nil || seen != 20 {
		t.Errorf("saw %d facts: %v", seen, err)
	}
	stop := errors.New("enough")
	if err := s.Facts(context.Background(), 0, func(Fact) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	if n := len(facts(t, s, 0)); n != 21 {
		t.Errorf("%d facts afterwards", n)
	}
	for _, shard := range []int{-1, 1} {
		if err := s.Facts(context.Background(), shard, nil); !errors.Is(err, ErrInvalid) {
			t.Errorf("shard %d: %v", shard, err)
		}
		if err := s.Ping(context.Background(), shard); !errors.Is(err, ErrInvalid) {
			t.Errorf("shard %d: %v", shard, err)
		}
	}
}

func TestOpenRefusesBadConfigurationByField(t *testing.T) {
	good := Config{URLs: []string{"postgres://localhost/x"}, Map: topology.NewShardMap(1, 1)}
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no urls":     {func(c *Config) { c.URLs = nil }, "no PostgreSQL URLs"},
		"bad url":     {func(c *Config) { c.URLs = []string{"postgres://u:secret@%zz"} }, "relation shard 0: reading its PostgreSQL URL"},
		"small map":   {func(c *Config) { c.Map = topology.NewShardMap(1, 4) }, "shard map 1"},
		"policy":      {func(c *Config) { c.StaleBase = "maybe" }, `stale base policy "maybe"`},
		"batch limit": {func(c *Config) { c.BatchLimit = -1 }, "batch limit is -1"},
		"committers":  {func(c *Config) { c.Committers = 1000 }, "committers is 1000"},
		"queue limit": {func(c *Config) { c.QueueLimit = 1 << 30 }, "queue limit"},
		"read conns":  {func(c *Config) { c.ReadConns = -3 }, "read connections is -3"},
		"timeout":     {func(c *Config) { c.CommandTimeout = 1 }, "command timeout"},
	} {
		c := good
		tc.change(&c)
		_, err := Open(context.Background(), c)
		if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSwappedURLsAreRefusedBeforeAnythingIsWritten(t *testing.T) {
	urls := migrated(t, 2)
	s := openAt(t, []string{urls[1], urls[0]}, func(c *Config) { c.CommandTimeout = 300 * time.Millisecond })
	_, err := s.Set(context.Background(), command("a", v9001, topology.Liked))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "check the order of the PostgreSQL URLs") {
		t.Errorf("%v", err)
	}
	if err := s.Ping(context.Background(), 0); err == nil || !strings.Contains(err.Error(), "says that it is shard 1") {
		t.Errorf("%v", err)
	}
	for _, url := range urls {
		if n := len(outbox(t, url)); n != 0 {
			t.Errorf("%d events were written to the wrong shard", n)
		}
	}
}

func TestAStoreWaitsForItsSchema(t *testing.T) {
	url := migrated(t, 1)[0]
	if _, err := dial(t, url).Exec(context.Background(), "ALTER TABLE shard RENAME TO shard_later"); err != nil {
		t.Fatal(err)
	}
	s := openAt(t, []string{url}, func(c *Config) { c.CommandTimeout = 300 * time.Millisecond })
	_, err := s.Set(context.Background(), command("a", v9001, topology.Liked))
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "tidemark schema migrate") {
		t.Errorf("without a schema: %v", err)
	}
	if _, err := dial(t, url).Exec(context.Background(), "ALTER TABLE shard_later RENAME TO shard"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		if _, err = s.Set(ctx, command("b", v9001, topology.Liked)); !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		t.Errorf("with a schema: %v", err)
	}
}

func TestCloseAnswersWhatWaitsAndRefusesTheRest(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, func(c *Config) { c.Committers = 1 })
	release := hold(t, urls[0], v9001)
	var group errgroup.Group
	for i := range 5 {
		group.Go(func() error {
			_, err := s.Set(context.Background(), command(fmt.Sprint(i), v9001, topology.Liked))
			return err
		})
	}
	lockAwaited(t, urls[0])
	closed := make(chan struct{})
	go func() { s.Close(); close(closed) }()
	<-s.closing
	if _, err := s.Set(context.Background(), command("late", v9001, topology.Unliked)); !errors.Is(err, ErrClosed) {
		t.Errorf("while closing: %v", err)
	}
	release()
	if err := group.Wait(); err != nil && !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	<-closed
	s.Close()
	if _, err := s.States(context.Background(), "u", topology.Like, []string{"v"}); !errors.Is(err, ErrClosed) {
		t.Errorf("reading after the close: %v", err)
	}
	if _, err := s.Set(context.Background(), command("later", v9001, topology.Unliked)); !errors.Is(err, ErrClosed) {
		t.Errorf("writing after the close: %v", err)
	}
}

func TestCloseIsQuickThoughPostgresIsAway(t *testing.T) {
	_, away := newLink(t, "postgres://x@127.0.0.1:1/x")
	s := openAt(t, []string{away}, nil)
	failed := make(chan error, 1)
	go func() {
		_, err := s.Set(context.Background(), command("a", v9001, topology.Liked))
		failed <- err
	}()
	begun := time.Now()
	s.Close()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("closing took %v", took)
	}
	if err := <-failed; !errors.Is(err, ErrClosed) {
		t.Errorf("the waiting command got %v", err)
	}
}

func TestMetricsAreRegisteredPerShardOnce(t *testing.T) {
	urls := migrated(t, 2)
	reg := prometheus.NewRegistry()
	s := openAt(t, urls, func(c *Config) { c.Registerer = reg })
	mustSet(t, s, command("a", v9001, topology.Liked))
	mustSet(t, s, command("a", v9001, topology.Liked))
	_, _ = s.Set(context.Background(), command("a", v9001, topology.Unliked))
	for _, label := range []string{"applied", "replayed", "conflict"} {
		if n := counter(t, reg, "tidemark_relations_commands_total", label); n != 1 {
			t.Errorf("%v commands were %s", n, label)
		}
	}
	_, err := Open(context.Background(), Config{URLs: urls, Map: topology.NewShardMap(1, 2), Registerer: reg})
	if err == nil || !strings.Contains(err.Error(), "registering metrics") {
		t.Errorf("the same registry twice: %v", err)
	}
}
