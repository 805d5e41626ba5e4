package relations

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// migrated makes n shard databases.
func migrated(t testing.TB, n int) []string {
	t.Helper()
	urls := make([]string, n)
	for shard := range urls {
		urls[shard] = testenv.Postgres(t)
		if err := Migrate(context.Background(), urls[shard], shard); err != nil {
			t.Fatal(err)
		}
	}
	return urls
}

// open makes a store of n new shards.
func open(t testing.TB, n int, change func(*Config)) *Store {
	t.Helper()
	return openAt(t, migrated(t, n), change)
}

func openAt(t testing.TB, urls []string, change func(*Config)) *Store {
	t.Helper()
	c := Config{URLs: urls, Map: topology.NewShardMap(1, len(urls)), CommandTimeout: 30 * time.Second}
	if change != nil {
		change(&c)
	}
	s, err := Open(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// dial opens a connection of the test's own.
func dial(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func relation(kind topology.Kind, user, target string) topology.Relation {
	return topology.Relation{Kind: kind, User: user, Target: target}
}

func command(id string, r topology.Relation, desired topology.State) Command {
	return Command{OperationID: id, Relation: r, Desired: desired}
}

func hiddenCommand(id string, r topology.Relation, h topology.Hiding) Command {
	return Command{OperationID: id, Relation: r, Desired: r.Kind.Active(), Hiding: h}
}

func based(c Command, version uint64) Command {
	c.BaseVersion = &version
	return c
}

func mustSet(t testing.TB, s *Store, c Command) Result {
	t.Helper()
	r, err := s.Set(context.Background(), c)
	if err != nil {
		t.Fatalf("operation %s: %v", c.OperationID, err)
	}
	return r
}

func wantResult(t testing.TB, r Result, outcome Outcome, state topology.State, version uint64) {
	t.Helper()
	if r.Operation.Outcome != outcome || r.Operation.State != state || r.Operation.Version != version {
		t.Errorf("operation result is %s %s v%d, want %s %s v%d",
			r.Operation.Outcome, r.Operation.State, r.Operation.Version, outcome, state, version)
	}
}

func wantFact(t testing.TB, f Fact, state topology.State, version uint64) {
	t.Helper()
	if f.State != state || f.Version != version {
		t.Errorf("relation is %s v%d, want %s v%d", f.State, f.Version, state, version)
	}
}

// An outboxRow is a row of table outbox with its event.
type outboxRow struct {
	id      int64
	key     string
	event   topology.Event
	created time.Time
}

// outbox reads a shard's relation rows in id order and checks that each is a
// strict topology.Event under its own key.
func outbox(t testing.TB, url string) []outboxRow {
	t.Helper()
	rows, err := dial(t, url).Query(context.Background(), `
		SELECT id, aggregateid, type, payload::text, source_shard, created_at
		FROM outbox WHERE aggregatetype = 'relation' ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var out []outboxRow
	for rows.Next() {
		var r outboxRow
		var kind, payload string
		var shard int
		if err := rows.Scan(&r.id, &r.key, &kind, &payload, &shard, &r.created); err != nil {
			t.Fatal(err)
		}
		dec := json.NewDecoder(strings.NewReader(payload))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&r.event); err != nil {
			t.Fatalf("outbox row %d: %v", r.id, err)
		}
		if kind != topology.TypeRelationChanged || r.event.AggregateKey != r.key || r.event.SourceShard != shard {
			t.Fatalf("outbox row %d: type %s, key %s, shard %d, event %+v", r.id, kind, r.key, shard, r.event)
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// facts reads a shard's relations.
func facts(t testing.TB, s *Store, shard int) map[topology.Relation]Fact {
	t.Helper()
	out := map[topology.Relation]Fact{}
	err := s.Facts(context.Background(), shard, func(f Fact) error {
		if _, ok := out[f.Relation]; ok {
			return fmt.Errorf("relation %s has two facts (I1)", f.Relation.Key())
		}
		out[f.Relation] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// checkHistory checks what every test must leave behind: the outbox has each
// version of each relation once, in order, each a real transition with a later
// time, or another hiding of the same state with the same time, and the last of
// them is the fact.
func checkHistory(t testing.TB, s *Store, urls []string) {
	t.Helper()
	for shard, url := range urls {
		last := map[topology.Relation]Fact{}
		for _, row := range outbox(t, url) {
			r, err := topology.ParseRelationKey(row.key)
			if err != nil {
				t.Fatal(err)
			}
			prev, ok := last[r]
			if !ok {
				prev = initialFact(r)
			}
			e := row.event
			state, err := topology.ParseState(r.Kind, e.AbsoluteState)
			if err != nil {
				t.Fatal(err)
			}
			by, err := topology.ParseHidden(e.Hidden)
			hiding := topology.Hiding{By: by, Reason: e.HiddenReason}
			if err = errors.Join(err, hiding.Check()); err != nil {
				t.Fatalf("%s v%d: %v", row.key, e.RelationVersion, err)
			}
			switch {
			case e.RelationVersion != prev.Version+1:
				t.Fatalf("%s: version %d follows %d", row.key, e.RelationVersion, prev.Version)
			case e.PreviousState != prev.State.String() || state == prev.State && hiding == prev.Hiding:
				t.Fatalf("%s v%d: %s after %s, event says after %s", row.key, e.RelationVersion, state, prev.State, e.PreviousState)
			case hiding != (topology.Hiding{}) && state != r.Kind.Active():
				t.Fatalf("%s v%d: %s is hidden", row.key, e.RelationVersion, state)
			case state == prev.State && !e.StateChangedAt.Equal(prev.StateChangedAt):
				t.Fatalf("A6: %s v%d is another hiding and changed at %v, v%d at %v", row.key, e.RelationVersion, e.StateChangedAt, prev.Version, prev.StateChangedAt)
			case state != prev.State && !e.StateChangedAt.After(prev.StateChangedAt):
				t.Fatalf("A6: %s v%d changed at %v, v%d at %v", row.key, e.RelationVersion, e.StateChangedAt, prev.Version, prev.StateChangedAt)
			}
			last[r] = Fact{Relation: r, State: state, Version: e.RelationVersion, StateChangedAt: e.StateChangedAt, Hiding: hiding}
		}
		have := facts(t, s, shard)
		if len(have) != len(last) {
			t.Errorf("shard %d has %d facts, its outbox %d relations", shard, len(have), len(last))
		}
		for r, f := range have {
			if f != last[r] {
				t.Errorf("shard %d: fact %+v, last event %+v", shard, f, last[r])
			}
		}
	}
}
