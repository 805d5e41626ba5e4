package testenv

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { Main(m) }

func TestPostgresIsEmptyAndLogical(t *testing.T) {
	url := Postgres(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var level string
	var tables int
	if err := conn.QueryRow(t.Context(), "SELECT current_setting('wal_level'), count(*) FROM information_schema.tables WHERE table_schema = 'public'").Scan(&level, &tables); err != nil {
		t.Fatal(err)
	}
	if level != "logical" || tables != 0 {
		t.Errorf("wal_level %s, %d tables; want logical, 0", level, tables)
	}
	if Postgres(t) == url {
		t.Error("two databases have one URL")
	}
	if _, err := conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')"); err != nil {
		t.Fatal(err)
	}
}

func TestKafkaTopics(t *testing.T) {
	topo := Topology(t, func(c *topology.Config) { c.Shards = 2 })
	brokers := Kafka(t)
	CreateTopics(t, brokers, topo)
	CreateTopics(t, brokers, topo)
}

func TestEventually(t *testing.T) {
	calls := 0
	Eventually(t, time.Minute, func() error {
		if calls++; calls < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	if calls != 3 {
		t.Errorf("called %d times", calls)
	}
}
