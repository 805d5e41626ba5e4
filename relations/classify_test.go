package relations

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/internal/embedded"
	"github.com/tidemark/tidemark/topology"
)

func TestClassify(t *testing.T) {
	conn := dial(t, migrated(t, 1)[0])
	pg := func(code, constraint string) error {
		return fmt.Errorf("writing: %w", &pgconn.PgError{Code: code, ConstraintName: constraint})
	}
	for _, tc := range []struct {
		err    error
		want   verdict
		reason string
	}{
		{pg("40001", ""), again, "serialization"},
		{pg("40P01", ""), again, "deadlock"},
		{pg("55P03", ""), again, "timeout"},
		{pg("57014", ""), again, "timeout"},
		{pg("57P01", ""), reconnect, "connection"},
		{pg("53300", ""), reconnect, "connection"},
		{pg("25006", ""), reconnect, "connection"},
		{pg("42P01", ""), reconnect, "connection"},
		{pg("08006", ""), reconnect, "connection"},
		{pg("58030", ""), reconnect, "connection"},
		{pg("53200", ""), tooLarge, "too_large"},
		{pg("23514", ""), noPartition, "no_partition"},
		{pg("23514", "relation_state_check"), permanent, "refused"},
		{pg("23505", "relation_pkey"), again, "serialization"},
		{pg("23505", "command_pkey"), permanent, "refused"},
		{pg("22P02", ""), permanent, "refused"},
		{errors.New("cannot encode"), permanent, "refused"},
	} {
		got := classify(tc.err, conn)
		if got != tc.want || reason(tc.err, got) != tc.reason {
			t.Errorf("%v: verdict %d, reason %s", tc.err, got, reason(tc.err, got))
		}
	}
	if got := classify(errors.New("reset by peer"), nil); got != reconnect {
		t.Errorf("while connecting: verdict %d", got)
	}
	_ = conn.Close(context.Background())
	if got := classify(errors.New("reset by peer"), conn); got != reconnect {
		t.Errorf("on a lost connection: verdict %d", got)
	}
}

// TestStatementsGoByKeyThoughPlannedOnEmptyTables guards against plans that
// read whole tables: a plan is kept by its connection while tables grow.
func TestStatementsGoByKeyThoughPlannedOnEmptyTables(t *testing.T) {
	url := migrated(t, 1)[0]
	config, err := parseURL(0, url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := connect(context.Background(), config, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer discard(conn)
	if _, err := conn.Exec(context.Background(), "SET plan_cache_mode = force_generic_plan"); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ sql, args string }{
		"operations": {operationsSQL, "'{}','{}'"},
		"facts":      {factsSQL, "'{}','{}','{}'"},
		"update":     {updateFactsSQL, "'{}','{}','{}','{}','{}','{}','{}',now(),0,'{}','{}','{}'"},
		"hidings":    {hidingsSQL, "'{}','{}','{}','{}'"},
	} {
		if _, err := conn.Prepare(context.Background(), name, tc.sql); err != nil {
			t.Fatal(err)
		}
		rows, err := conn.Query(context.Background(), "EXPLAIN EXECUTE "+name+"("+tc.args+")", pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "Index Cond") {
			t.Errorf("%s reads tables whole:\n%s", name, plan)
		}
	}
}

func TestABatchThatNeedsTooManyLocksIsDecidedInParts(t *testing.T) {
	dir, err := os.MkdirTemp("", "tidemark-locks-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // the server may run as another user
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{DataDir: dir, Settings: map[string]string{
		"max_locks_per_transaction": "10", "max_connections": "25", "max_wal_senders": "1", "max_replication_slots": "1",
		"fsync": "off",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	if err := server.CreateDatabase(ctx, "shard0"); err != nil {
		t.Fatal(err)
	}
	url := server.URL("shard0")
	if err := Migrate(ctx, url, 0); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	s := openAt(t, []string{url}, func(c *Config) { c.BatchLimit, c.Committers, c.Registerer = 4096, 1, reg })
	var group errgroup.Group
	for i := range 3000 {
		group.Go(func() error {
			_, err := s.Set(ctx, command(fmt.Sprint(i), relation(topology.Like, fmt.Sprintf("u%d", i), "v"), topology.Liked))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if counter(t, reg, "tidemark_relations_commands_total", "applied") != 3000 {
		t.Error("not every command was applied")
	}
	if counter(t, reg, "tidemark_relations_retries_total", "too_large") == 0 {
		t.Error("no batch was too large: the test tests nothing")
	}
	checkHistory(t, s, []string{url})
}
