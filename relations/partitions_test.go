package relations

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/tidemark/tidemark/topology"
)

func TestWantedPartitions(t *testing.T) {
	wednesday := time.Date(2026, 8, 19, 23, 59, 59, 0, time.FixedZone("", -3600)) // Thursday 00:59:59 UTC
	for _, tc := range []struct {
		table timeTable
		want  string
	}{
		{timeTable{"outbox", day, 2 * day}, "outbox_20260819 outbox_20260820 outbox_20260821 outbox_20260822"},
		{timeTable{"command", 7 * day, 8 * day}, "command_20260810 command_20260817 command_20260824"},
	} {
		var got []string
		for _, at := range tc.table.wanted(wednesday) {
			got = append(got, tc.table.partition(at))
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%v, want %s", got, tc.want)
		}
	}
	for _, table := range timeTables {
		if table.ahead < 2*minAhead {
			t.Errorf("table %s is made %v ahead, readiness asks for %v", table.name, table.ahead, minAhead)
		}
	}
}

func TestPartitionsAreMadeByManyAtOnceAndCoverEveryMoment(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	now := time.Now().Add(60 * day)
	var group errgroup.Group
	for range 8 {
		group.Go(func() error { return s.EnsurePartitions(context.Background(), now) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, urls[0])
	for _, table := range timeTables {
		for at := now; at.Before(now.Add(table.ahead)); at = at.Add(11 * time.Hour) {
			_, err := conn.Exec(context.Background(), fmt.Sprintf(`
				BEGIN; %s; ROLLBACK`, insertAt(table.name, at)))
			if err != nil {
				t.Errorf("table %s at %v: %v", table.name, at, err)
			}
		}
	}
}

func insertAt(table string, at time.Time) string {
	when := "'" + at.UTC().Format(time.RFC3339) + "'"
	if table == "outbox" {
		return "INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at) VALUES ('t', 't', 't', '{}', 0, " + when + ")"
	}
	return "INSERT INTO command VALUES ('o', 'u', 1, 't', 1, NULL, 1, 1, 1, " + when + ")"
}

func TestPartitionsAreMadeBesideAnOpenWriter(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, nil)
	tx, err := dial(t, urls[0]).Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(context.Background(), insertAt("outbox", time.Now())); err != nil {
		t.Fatal(err)
	}
	if err := s.EnsurePartitions(context.Background(), time.Now().Add(90*day)); err != nil {
		t.Errorf("making partitions waits for a writer: %v", err)
	}
	if err := tx.Commit(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestAMissingPartitionIsNamedByPingAndMadeByTheNextCommand(t *testing.T) {
	urls := migrated(t, 1)
	s := openAt(t, urls, func(c *Config) { c.Committers = 1 })
	mustSet(t, s, command("a", v9001, topology.Liked))
	if err := s.Ping(context.Background(), 0); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, urls[0])
	for _, table := range timeTables {
		have, err := attached(context.Background(), conn, table)
		if err != nil {
			t.Fatal(err)
		}
		for name := range have {
			if _, err := conn.Exec(context.Background(), "DROP TABLE "+name); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := s.Ping(context.Background(), 0)
	if err == nil || !strings.Contains(err.Error(), "table outbox has no partition outbox_") || !strings.Contains(err.Error(), "table command has no partition command_") {
		t.Errorf("ping without partitions: %v", err)
	}
	mustSet(t, s, command("b", v9001, topology.Unliked))
	if err := s.Ping(context.Background(), 0); err != nil {
		t.Errorf("ping after the command made them: %v", err)
	}
}

func TestMigrateIsRepeatableByManyAndMarksTheShard(t *testing.T) {
	url := migrated(t, 1)[0]
	var group errgroup.Group
	for range 6 {
		group.Go(func() error { return Migrate(context.Background(), url, 0) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	err := Migrate(context.Background(), url, 2)
	if err == nil || !strings.Contains(err.Error(), "relation shard 2: the database says that it is shard 0") {
		t.Errorf("another shard's database: %v", err)
	}
	list, err := MigrationStatus(context.Background(), url)
	if err != nil || len(list) == 0 {
		t.Fatalf("%v %v", list, err)
	}
	for _, m := range list {
		if !m.Applied {
			t.Errorf("migration %s is not applied", m.Name)
		}
	}
}

func TestPublicationSendsInsertsOfTheParent(t *testing.T) {
	url := migrated(t, 1)[0]
	var ins, upd, del, trunc, root bool
	err := dial(t, url).QueryRow(context.Background(), `
		SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot FROM pg_publication WHERE pubname = $1`, Publication).
		Scan(&ins, &upd, &del, &trunc, &root)
	if err != nil || !ins || upd || del || trunc || !root {
		t.Errorf("insert %v, update %v, delete %v, truncate %v, via root %v (%v)", ins, upd, del, trunc, root, err)
	}
	var columns string
	err = dial(t, url).QueryRow(context.Background(), `
		SELECT string_agg(attname || ' ' || format_type(atttypid, atttypmod), ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = 'outbox'::regclass AND attnum > 0`).Scan(&columns)
	const want = "id bigint, aggregatetype text, aggregateid text, type text, payload jsonb, source_shard integer, created_at timestamp with time zone"
	if err != nil || columns != want {
		t.Errorf("outbox has %s (%v), the feed expects %s", columns, err, want)
	}
}
