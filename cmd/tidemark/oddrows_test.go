package main

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// oddRow is a row of the outbox that cannot be counted.
type oddRow struct {
	aggregate, key, event string // SQL
	payload, createdAt    string // SQL
	why                   quarantine.Reason
}

// oddEvent is a row of a relation whose event has an odd member; value is SQL.
func oddEvent(member, value string, why quarantine.Reason) oddRow {
	key := topology.Relation{Kind: topology.Like, User: "u7", Target: "V9001"}.Key()
	payload := fmt.Sprintf(`jsonb_build_object('eventId', 'e1', 'aggregateKey', '%s', 'kind', 'like', 'userId', 'u7', 'targetId', 'V9001', 'relationVersion', 12,
		'absoluteState', 'LIKED', 'previousState', 'UNLIKED', 'sourceShard', 0, 'stateChangedAt', '2026-08-19T10:20:30.123456Z') || jsonb_build_object('%s', %s)`, key, member, value)
	return oddRow{"'relation'", "'" + key + "'", "'RelationChanged'", payload, "now()", why}
}

// oddTime is a row of a relation that was written at an odd time, SQL.
func oddTime(at string) oddRow {
	row := oddEvent("eventId", "'e1'", quarantine.InvalidTime)
	row.createdAt = at
	return row
}

// What PostgreSQL can hold and nobody can count, written while everything runs,
// goes through the feed as it is, not as null, and is set aside for its reason;
// the rows between are counted. An unknown kind (D14), odd times and numbers
// (D15), rows that are no events (D25).
func TestD14D15D25OddRowsAreSetAside(t *testing.T) {
	odd := []oddRow{
		oddEvent("kind", `'love'`, quarantine.UnknownKind),
		oddEvent("kind", `null::text`, quarantine.UnknownKind),
		oddEvent("absoluteState", `'LOVED'`, quarantine.UnknownState),

		oddTime(`'infinity'`), oddTime(`'-infinity'`), oddTime(`'0044-03-15 12:00:00+00 BC'`),
		oddTime(`'1969-12-31 23:59:59.999999+00'`), oddTime(`'294276-12-31 23:59:59+00'`),
		oddEvent("stateChangedAt", `'infinity'::timestamptz`, quarantine.InvalidTime),
		oddEvent("stateChangedAt", `'0044-03-15 BC'::timestamptz`, quarantine.InvalidTime),
		oddEvent("relationVersion", `'NaN'::numeric`, quarantine.InvalidVersion),
		oddEvent("relationVersion", `1e400::numeric`, quarantine.InvalidVersion),
		oddEvent("relationVersion", `-1`, quarantine.InvalidVersion),
		oddEvent("relationVersion", `1.5`, quarantine.InvalidVersion),
		oddEvent("relationVersion", `null::int`, quarantine.InvalidVersion),

		{"'heartbeat'", "'h'", "'Heartbeat'", "'{}'", "now()", 0},
		{"'relation'", "''", "''", "'[]'", "now()", 0},
		{"'relation'", "'like:u7:V9001'", "'RelationChanged'", "'null'", "now()", 0},
		{"''", "'x'", "''", `'{"op": "u"}'`, "now()", 0},
	}
	r := newFeedRig(t, nil)
	r.exec(`CREATE TABLE outbox_early PARTITION OF outbox FOR VALUES FROM (MINVALUE) TO ('2020-01-01')`)
	r.exec(`CREATE TABLE outbox_late PARTITION OF outbox FOR VALUES FROM ('2100-01-01') TO (MAXVALUE)`)
	r.run("intake").await(t, readyLine)
	r.run("cdc").await(t, readyLine)
	want, good := map[int64]oddRow{}, []int64{}
	for _, o := range odd {
		var id int64
		err := r.db.QueryRow(t.Context(), fmt.Sprintf(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
			VALUES (%s, %s, %s, %s, 0, %s) RETURNING id`, o.aggregate, o.key, o.event, o.payload, o.createdAt)).Scan(&id)
		if err != nil {
			t.Fatalf("%+v: %v", o, err)
		}
		want[id] = o
		r.exec(`SELECT pg_logical_emit_message(true, 'heartbeat', ''), pg_logical_emit_message(false, 'heartbeat', '')`)
		good = append(good, r.commit(1)...)
	}
	eventually(t, func() error {
		came := r.passedOn()
		for _, id := range good {
			if !came[id] {
				return fmt.Errorf("row %d was not passed on", id)
			}
		}
		return nil
	})
	r.read(topology.Quarantine, func(rec *kgo.Record) {
		var q tidemarkv1.Quarantined
		var env topology.Envelope
		if err := q.UnmarshalVT(rec.Value); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(q.Value, &env); err != nil || env.After == nil {
			t.Fatalf("%s: %v", q.Value, err)
		}
		o, ok := want[env.After.ID]
		if !ok || o.why != 0 && q.Reason != o.why {
			t.Errorf("row %d, %s at %s: %s %s", env.After.ID, env.After.Payload, env.After.CreatedAt, q.Reason, q.Detail)
		}
		delete(want, env.After.ID)
	})
	for id, o := range want {
		t.Errorf("row %d was not set aside: %+v", id, o)
	}
}
