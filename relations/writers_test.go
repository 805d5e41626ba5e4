package relations

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// A server that waits for a standby has flushed a commit, and sends it to the
// change feed, long before a query sees it.
func TestCommitsThatNobodySeesYetAreWaitedFor(t *testing.T) {
	urls := migrated(t, 1)
	s, o := openAt(t, urls, nil), openOutbox(t, urls)
	conn := dial(t, urls[0])
	standby := func(change string) {
		t.Helper()
		for _, q := range []string{"ALTER SYSTEM " + change, "SELECT pg_reload_conf()"} {
			if _, err := conn.Exec(context.Background(), q); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := conn.Exec(t.Context(), "SET synchronous_commit = local"); err != nil {
		t.Fatal(err)
	}
	standby("SET synchronous_standby_names = 'nobody'")
	defer standby("RESET synchronous_standby_names")
	committed := make(chan error, 1)
	go func() {
		_, err := s.Set(context.Background(), command("op", relation(topology.Like, "u", "V"), topology.Liked))
		committed <- err
	}()
	for flushed := 0; flushed == 0; {
		if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND datname = current_database()").Scan(&flushed); err != nil {
			t.Fatal(err)
		}
	}
	if found, err := o.RelationIDs(t.Context(), 0, everyID); err != nil || len(found) > 0 {
		t.Fatalf("rows %v, %v", found, err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := o.AwaitWriters(short, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("nobody was waited for: %v", err)
	}
	facts := 0
	count := func(Fact) error { facts++; return nil }
	shortly, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Facts(shortly, 0, count); err == nil {
		t.Fatalf("%d facts were read, and nobody was waited for", facts)
	}
	waited := make(chan error, 1)
	go func() { waited <- o.AwaitWriters(t.Context(), 0) }()
	standby("RESET synchronous_standby_names")
	if err := <-waited; err != nil {
		t.Fatal(err)
	}
	if err := s.Facts(t.Context(), 0, count); err != nil || facts != 1 {
		t.Fatalf("%d facts, %v", facts, err)
	}
	if found, err := o.RelationIDs(t.Context(), 0, everyID); err != nil || found.Count() != 1 {
		t.Fatalf("rows %v, %v", found, err)
	}
	if err := <-committed; err != nil {
		t.Fatal(err)
	}
	if err := o.AwaitWriters(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
}
