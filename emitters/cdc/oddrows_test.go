package cdc

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/processors/intake"
	"github.com/tidemark/tidemark/topology"
)

// judge tells what intake makes of the records.
func (r *rig) judge(all []record) (effects []intake.Effects) {
	r.t.Helper()
	topo := testenv.Topology(r.t, nil)
	core, err := intake.NewCore(topo, topology.NewManifest(1, 1, 1, topology.DefaultBucketSpace(), topo.Config.CountPartitions),
		topology.NewReverseGeneration(1, topo.Config.LikerPartitions, topo.Config.ReverseShards))
	if err != nil {
		r.t.Fatal(err)
	}
	for _, rec := range all {
		effects = append(effects, core.Apply(topology.Record{
			Topic: r.cfg.Topic, Key: rec.key, Value: rec.value, Partition: r.cfg.Partition, Offset: rec.offset, Timestamp: time.Now(),
		}))
	}
	return effects
}

// event is the payload of a relation's row, as SQL, with a member replaced.
func event(member, value string) string {
	key := topology.Relation{Kind: topology.Like, User: "u7", Target: "V9001"}.Key()
	event := fmt.Sprintf(`jsonb_build_object('eventId', 'e1', 'aggregateKey', '%s', 'kind', 'like', 'userId', 'u7', 'targetId', 'V9001',
		'relationVersion', 12, 'absoluteState', 'LIKED', 'previousState', 'UNLIKED', 'sourceShard', 2, 'stateChangedAt', '2026-08-19T10:20:30.123456Z')`, key)
	if member == "" {
		return event
	}
	return fmt.Sprintf(`%s || jsonb_build_object('%s', %s)`, event, member, value)
}

// insertEvent commits a row of the usual relation with a payload and a time,
// both SQL.
func (r *rig) insertEvent(payload, createdAt string) {
	r.t.Helper()
	key := topology.Relation{Kind: topology.Like, User: "u7", Target: "V9001"}.Key()
	r.exec(fmt.Sprintf(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
		VALUES ('relation', '%s', 'RelationChanged', %s, 2, %s)`, key, payload, createdAt))
}

// odd is a row that cannot be counted.
type odd struct {
	payload, createdAt string // SQL
	why                quarantine.Reason
}

// setAside commits the odd rows with a good one behind each, live, and checks
// that each is set aside for its reason and that the others are counted.
func (r *rig) setAside(rows []odd) {
	r.t.Helper()
	for _, o := range rows {
		r.insertEvent(o.payload, o.createdAt)
		r.insertEvent(event("", ""), "now()")
	}
	all := r.awaitRows(2 * len(rows))
	checkOrder(r.t, all)
	for i, e := range r.judge(all) {
		o := rows[i/2]
		if i%2 == 0 && (e.Outcome != intake.Quarantined || e.Reason != o.why) {
			r.t.Errorf("%s at %s: %s %s, want quarantined %s", o.payload, o.createdAt, e.Outcome, e.Reason, o.why)
		}
		if i%2 == 1 && e.Outcome != intake.Changed {
			r.t.Errorf("the good row behind %s: %s %s", o.payload, e.Outcome, e.Reason)
		}
	}
}

// TestD14UnknownKindIsSetAside: a kind that readers do not know, written while
// the feed runs, goes out as it is, not as null, and is set aside for what it
// is.
func TestD14UnknownKindIsSetAside(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	r.start()
	r.setAside([]odd{
		{event("kind", `'love'`), "now()", quarantine.UnknownKind},
		{event("kind", `null::text`), "now()", quarantine.UnknownKind},
		{event("absoluteState", `'LOVED'`), "now()", quarantine.UnknownState},
	})
	if all := r.records(); !strings.Contains(all[0].After.Payload, `"kind": "love"`) {
		t.Errorf("payload %s", all[0].After.Payload)
	}
}

// TestD14EnumColumnIsRefused: no column of the outbox is an enum. One that
// becomes one stops the shard by name; a table of the same name in another
// schema, with an enum of the same name, is none of the feed's.
func TestD14EnumColumnIsRefused(t *testing.T) {
	r := newRig(t)
	r.exec(`CREATE SCHEMA b; CREATE TYPE event AS ENUM ('RelationChanged'); CREATE TYPE b.event AS ENUM ('other');
		CREATE TABLE b.outbox (LIKE outbox); ALTER TABLE b.outbox ALTER COLUMN type TYPE b.event USING 'other', ALTER COLUMN id SET DEFAULT 1;
		ALTER PUBLICATION tidemark_outbox ADD TABLE b.outbox`)
	r.ensureSlot()
	e := r.start()
	r.exec(`ALTER TYPE b.event ADD VALUE 'live'`)
	r.exec(`INSERT INTO b.outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at) VALUES ('relation', 'k', 'live', '{}', 2, now())`)
	r.insert(2)
	r.awaitRows(2)
	if got := e.Status().Ignored; got != 1 {
		t.Errorf("%d changes of other tables, want 1", got)
	}
	r.exec(`ALTER TABLE outbox ALTER COLUMN type TYPE event USING type::event`)
	r.exec(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard) VALUES ('relation', 'k', 'RelationChanged', '{}', 2)`)
	bound := r.serverLSN()
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Restarts < 2 || !strings.Contains(s.LastError, "column type has type oid") {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
	if got := r.confirmed(); got >= bound || e.Ready() == nil {
		t.Errorf("confirmed %s, the row ends at %s; ready says %v", got, bound, e.Ready())
	}
}

// TestD15OddTimesAndNumbersAreSetAside: what PostgreSQL can hold and a count
// cannot.
func TestD15OddTimesAndNumbersAreSetAside(t *testing.T) {
	r := newRig(t)
	r.exec(`CREATE TABLE outbox_later PARTITION OF outbox FOR VALUES FROM ('2100-01-01') TO (MAXVALUE)`)
	r.ensureSlot()
	r.start()
	r.setAside([]odd{
		{event("", ""), `'infinity'`, quarantine.InvalidTime},
		{event("", ""), `'-infinity'`, quarantine.InvalidTime},
		{event("", ""), `'0044-03-15 12:00:00+00 BC'`, quarantine.InvalidTime},
		{event("", ""), `'1969-12-31 23:59:59.999999+00'`, quarantine.InvalidTime},
		{event("", ""), `'294276-12-31 23:59:59+00'`, quarantine.InvalidTime},
		{event("stateChangedAt", `'infinity'::timestamptz`), "now()", quarantine.InvalidTime},
		{event("stateChangedAt", `'0044-03-15 BC'::timestamptz`), "now()", quarantine.InvalidTime},
		{event("relationVersion", `'NaN'::numeric`), "now()", quarantine.InvalidVersion},
		{event("relationVersion", `'Infinity'::numeric`), "now()", quarantine.InvalidVersion},
		{event("relationVersion", `1e400::numeric`), "now()", quarantine.InvalidVersion},
		{event("relationVersion", `-1`), "now()", quarantine.InvalidVersion},
		{event("relationVersion", `1.5`), "now()", quarantine.InvalidVersion},
		{event("relationVersion", `null::int`), "now()", quarantine.InvalidVersion},
	})
}

// TestD25RowsThatAreNoEvents: heartbeats, null payloads and null keys in the
// outbox disturb neither the feed nor intake.
func TestD25RowsThatAreNoEvents(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	e := r.start()
	for _, row := range []string{
		`('heartbeat', 'h', 'Heartbeat', '{}', 2)`, `('relation', NULL, 'RelationChanged', 'null', 2)`, `('relation', '', '', '[]', 2)`,
		`('relation', 'like:u7:V9001', 'RelationChanged', '""', 2)`, `('', 'x', '', '{"op": "u"}', 2)`,
	} {
		r.exec(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard) VALUES ` + row)
	}
	r.exec(`SELECT pg_logical_emit_message(false, 'heartbeat', ''), pg_logical_emit_message(true, 'heartbeat', '')`)
	r.insertEvent(event("", ""), "now()")
	all := r.awaitRows(6)
	checkOrder(t, all)
	for i, x := range r.judge(all) {
		if want := map[bool]intake.Outcome{true: intake.Changed, false: intake.Quarantined}[i == 5]; x.Outcome != want {
			t.Errorf("row %d: %s %s, want %s", i, x.Outcome, x.Reason, want)
		}
	}
	if s := e.Status(); s.Restarts != 0 || len(all) != 6 {
		t.Errorf("%d records, status %+v", len(all), s)
	}
}

// TestD13LargeValueSurvivesAnUpdateOfAnother: an update that leaves a value
// out of line sends a placeholder for it. No update is passed on, so the value
// is in the stream once, whole.
func TestD13LargeValueSurvivesAnUpdateOfAnother(t *testing.T) {
	r := newRig(t)
	r.exec(`ALTER PUBLICATION tidemark_outbox SET (publish = 'insert, update')`)
	r.ensureSlot()
	e := r.start()
	r.insertEvent(event("note", `(SELECT string_agg(md5(g::text), '') FROM generate_series(1, 1950) g)`), "now()")
	r.exec(`UPDATE outbox SET type = 'Changed'`)
	r.insertEvent(event("", ""), "now()")
	var want string
	var inline bool
	err := r.db.QueryRow(t.Context(), `SELECT payload::text, pg_column_size(payload) < 2048 OR pg_relation_size(c.reltoastrelid) = 0 FROM outbox, pg_class c
		WHERE c.relname = 'outbox_now' AND type = 'Changed'`).Scan(&want, &inline)
	if err != nil || inline || len(want) < 60<<10 {
		t.Fatalf("%d bytes, in line: %v, %v", len(want), inline, err)
	}
	all := r.awaitRows(2)
	if a := all[0].After; a.Payload != want || a.Type != topology.TypeRelationChanged {
		t.Errorf("%d bytes of type %s, want %d", len(a.Payload), a.Type, len(want))
	}
	if s := e.Status(); len(all) != 2 || s.Ignored != 1 {
		t.Errorf("%d records, %d changes ignored", len(all), s.Ignored)
	}
	for _, x := range r.judge(all) {
		if x.Outcome != intake.Changed {
			t.Errorf("%s %s", x.Outcome, x.Reason)
		}
	}
}

// TestD24NamesBeyondASCII: of schema, table, further columns and tables, and
// in keys.
func TestD24NamesBeyondASCII(t *testing.T) {
	r := newRig(t)
	r.exec(`CREATE SCHEMA "计数"; ALTER TABLE outbox SET SCHEMA "计数"; ALTER TABLE "计数".outbox RENAME TO "赞 ""😀"; ALTER TABLE "计数"."赞 ""😀" ADD COLUMN "用户" text DEFAULT '甲';
		CREATE TABLE "赞" ("值" text); ALTER PUBLICATION tidemark_outbox ADD TABLE "赞"`)
	r.cfg.Schema, r.cfg.Table, r.cfg.ServerName = "计数", `赞 "😀`, "潮"
	r.ensureSlot()
	e := r.start()
	r.exec(`INSERT INTO "赞" VALUES ('x')`)
	r.exec(`INSERT INTO "计数"."赞 ""😀" (aggregatetype, aggregateid, type, payload, source_shard) VALUES ('relation', 'like:用户:视频😀', 'RelationChanged', '{"赞": "😀"}', 2)`)
	rec := r.awaitRows(1)[0]
	if s := rec.Source; s.Schema != r.cfg.Schema || s.Table != r.cfg.Table || s.Name != r.cfg.ServerName {
		t.Errorf("source %+v", s)
	}
	if a := rec.After; rec.key != "like:用户:视频😀" || a.AggregateID != rec.key || a.Payload != `{"赞": "😀"}` {
		t.Errorf("key %q, row %+v", rec.key, a)
	}
	if s := e.Status(); s.Ignored != 1 || s.Restarts != 0 {
		t.Errorf("status %+v", s)
	}
	for _, c := range []func(*Config){func(c *Config) { c.Slot = "赞" }, func(c *Config) { c.Publication = "赞" }} {
		cfg := r.cfg
		c(&cfg)
		if _, err := New(cfg); err == nil {
			t.Error("a name that PostgreSQL would not take was accepted")
		}
	}
	if err := EnsureSlot(t.Context(), r.direct, "赞"); err == nil || errors.Is(err, ErrSlotUnusable) {
		t.Errorf("EnsureSlot returned %v", err)
	}
}
