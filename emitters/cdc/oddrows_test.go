package cdc

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tidemark/tidemark/internal/testenv"
	"github.com/tidemark/tidemark/topology"
)

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

// TestD13LargeValueSurvivesAnUpdateOfAnother: an update that leaves a value
// out of line sends a placeholder for it. No update is passed on, so the value
// is in the stream once, whole.
func TestD13LargeValueSurvivesAnUpdateOfAnother(t *testing.T) {
	r := newRig(t)
	r.exec(`ALTER PUBLICATION tidemark_outbox SET (publish = 'insert, update')`)
	r.ensureSlot()
	e := r.start()
	r.exec(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard)
		SELECT 'relation', 'k', 'RelationChanged', jsonb_build_object('note', string_agg(md5(g::text), '')), 2 FROM generate_series(1, 3000) g`)
	r.exec(`UPDATE outbox SET type = 'Changed'`)
	r.insert(1)
	var want string
	var inline bool
	err := r.db.QueryRow(t.Context(), `SELECT payload::text, pg_column_size(payload) < 2048 OR pg_relation_size(c.reltoastrelid) = 0 FROM outbox, pg_class c
		WHERE c.relname = 'outbox_now' AND type = 'Changed'`).Scan(&want, &inline)
	if err != nil || inline || len(want) < 64<<10 {
		t.Fatalf("%d bytes, in line: %v, %v", len(want), inline, err)
	}
	all := r.awaitRows(2)
	if a := all[0].After; a.Payload != want || a.Type != topology.TypeRelationChanged {
		t.Errorf("%d bytes of type %s, want %d", len(a.Payload), a.Type, len(want))
	}
	if s := e.Status(); len(all) != 2 || s.Ignored != 1 {
		t.Errorf("%d records, %d changes ignored", len(all), s.Ignored)
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
