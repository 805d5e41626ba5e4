package cdc

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidemark/tidemark/internal/testenv"
)

// TestRowsArriveInCommitOrder: two transactions that overlap arrive whole, in
// the order of their commits, whatever the order of their rows.
func TestRowsArriveInCommitOrder(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	e := r.start()
	other := r.connect(r.direct)
	tx, err := other.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const insert = `INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard) VALUES ('relation', $1, 'RelationChanged', '{}', 2) RETURNING id`
	var want []int64
	var id int64
	for range 3 {
		if err := tx.QueryRow(t.Context(), insert, "late").Scan(&id); err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
		r.insert(2)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.insert(1)
	all := r.awaitRows(10)
	checkOrder(t, all)
	if len(all) != 10 {
		t.Errorf("%d records for 10 rows", len(all))
	}
	for i, rec := range all[6:9] {
		if rec.key != "late" || rec.After.ID != want[i] {
			t.Errorf("offset %d is row %d of %s, want row %d of the transaction that committed late", rec.offset, rec.After.ID, rec.key, want[i])
		}
	}
	testenv.Eventually(t, patience, func() error {
		if s := e.Status(); s.Emitted != 10 || s.Acked != 10 || s.UnackedRecords != 0 || s.UnackedBytes != 0 || !s.Connected || e.Ready() != nil {
			return fmt.Errorf("status %+v", s)
		}
		return nil
	})
}

// TestEnvelopeOfRealRows checks every field against the database's own view.
func TestEnvelopeOfRealRows(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	r.start()
	long := strings.Repeat(`赞"\ `, 64<<10/6)
	before := time.Now()
	var xid int64
	err := r.db.QueryRow(t.Context(), `
		WITH i AS (INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at) VALUES
			('relation', 'like:u7:V9001', 'RelationChanged', '{"quote": "\"", "text": "赞 é 😀\n\u2028"}', 2, '2026-08-19 12:20:30.123456+02'),
			('relation', E'tab\tand\\ ', 'RelationChanged', jsonb_build_object('long', $1::text), 2, '2026-08-19 10:20:30.5+00'),
			('seal', 'seal:1', 'Sealed', '{"seal": 1, "sealedAt": "2026-08-19T10:20:30Z"}', 2, '0044-03-15 12:00:00+00 BC'),
			('proof', NULL, '', 'null', 2147483647, '-infinity') RETURNING 1)
		SELECT (txid_current() & 4294967295)::bigint FROM i LIMIT 1`, long).Scan(&xid)
	if err != nil {
		t.Fatal(err)
	}
	all := r.awaitRows(4)
	rows, err := r.db.Query(t.Context(), `SELECT id, aggregatetype, coalesce(aggregateid, ''), type, payload::text, source_shard FROM outbox ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	created := []string{"2026-08-19T10:20:30.123456Z", "2026-08-19T10:20:30.500000Z", "-0043-03-15T12:00:00.000000Z", "-infinity"}
	for i, rec := range all {
		if !rows.Next() {
			t.Fatal(rows.Err())
		}
		want := *rec.After
		if err := rows.Scan(&want.ID, &want.AggregateType, &want.AggregateID, &want.Type, &want.Payload, &want.SourceShard); err != nil {
			t.Fatal(err)
		}
		want.CreatedAt = created[i]
		if *rec.After != want {
			t.Errorf("row is\n%.300v\nwant\n%.300v", *rec.After, want)
		}
		if rec.key != want.AggregateID {
			t.Errorf("key %q, want %q", rec.key, want.AggregateID)
		}
		s := rec.Source
		if s.Connector != "postgresql" || s.Name != "tidemark" || s.Version != Version || s.Snapshot != "false" || s.Schema != "public" || s.Table != "outbox" || s.Xmin != nil {
			t.Errorf("source %+v", s)
		}
		if !strings.Contains(r.cfg.URL, s.DB) || s.TxID != xid || s.LSN == 0 {
			t.Errorf("db %s, txId %d (want %d), lsn %d", s.DB, s.TxID, xid, s.LSN)
		}
		if s.Sequence != fmt.Sprintf(`[null,"%d"]`, s.LSN) {
			t.Errorf("sequence of a fresh slot's first transaction is %s", s.Sequence)
		}
		committed := time.UnixMicro(s.TsUs)
		if committed.Before(before.Add(-time.Second)) || committed.After(time.Now().Add(time.Second)) || s.TsMs != s.TsUs/1000 || s.TsNs != s.TsUs*1000 {
			t.Errorf("source times %d, %d, %d", s.TsMs, s.TsUs, s.TsNs)
		}
		if rec.Op != "c" || rec.Before != nil || rec.Transaction != nil || rec.TsNs < s.TsNs-int64(time.Second) || rec.TsUs != rec.TsNs/1000 || rec.TsMs != rec.TsNs/1_000_000 {
			t.Errorf("envelope %s", rec.value)
		}
		if i < 3 && standard(t, rec.Envelope) != string(rec.value) {
			t.Errorf("written\n%.500s\nnot as encoding/json does\n%.500s", rec.value, standard(t, rec.Envelope))
		}
	}
	rows.Close()
	r.insert(1)
	last := r.awaitRows(5)[4]
	if previous, _ := last.position(t); previous == 0 {
		t.Errorf("second transaction's sequence is %s", last.Source.Sequence)
	}
}

// TestRolledBackRowsNeverArrive covers whole transactions and savepoints.
func TestRolledBackRowsNeverArrive(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	e := r.start()
	r.exec("BEGIN")
	r.insert(100)
	r.exec("ROLLBACK")
	r.exec("BEGIN")
	r.insert(1)
	r.exec("SAVEPOINT s")
	r.insert(100)
	r.exec("ROLLBACK TO s")
	r.insert(1)
	r.exec("COMMIT")
	r.insert(1)
	checkOrder(t, r.awaitRows(3))
	if got := e.Status().Emitted; got != 3 {
		t.Errorf("%d records emitted, want 3", got)
	}
}

// TestD03LogicalMessagesInside: messages inside a transaction do not disturb
// its rows.
func TestD03LogicalMessagesInside(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	run := r.start(killable)
	for i := range 6 {
		r.exec("BEGIN")
		r.exec("SELECT pg_logical_emit_message(true, 'heartbeat', 'x')")
		r.insert(1)
		r.exec("SELECT pg_logical_emit_message(false, 'heartbeat', 'x'), pg_logical_emit_message(true, 'heartbeat', 'x')")
		r.insert(1)
		r.exec("COMMIT")
		if i%2 == 1 {
			run.stop()
			run = r.start(killable)
		}
	}
	checkOrder(t, r.awaitRows(12))
}

// TestD16AttachedPartition: a partition attached live, with its columns in
// another order and one more besides, feeds the same stream.
func TestD16AttachedPartition(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	r.start()
	r.insert(1)
	r.awaitRows(1)
	r.exec(`CREATE TABLE outbox_next (payload jsonb NOT NULL, gone text, created_at timestamptz NOT NULL, type text NOT NULL, source_shard int NOT NULL,
		aggregateid text, id bigint NOT NULL, aggregatetype text NOT NULL);
		ALTER TABLE outbox_next DROP COLUMN gone;
		ALTER TABLE outbox ATTACH PARTITION outbox_next FOR VALUES FROM ('2100-01-01') TO ('2200-01-01')`)
	r.exec(`INSERT INTO outbox (aggregatetype, aggregateid, type, payload, source_shard, created_at)
		VALUES ('relation', 'like:u:v', 'RelationChanged', '{"n": 7}', 2, '2150-01-01T00:00:00.000000Z')`)
	r.exec(`ALTER TABLE outbox ADD COLUMN note text`)
	r.insert(1)
	all := r.awaitRows(3)
	if a := all[1].After; a.AggregateID != "like:u:v" || a.Payload != `{"n": 7}` || a.CreatedAt != "2150-01-01T00:00:00.000000Z" || all[1].Source.Table != "outbox" {
		t.Errorf("row %+v of table %s", a, all[1].Source.Table)
	}
	r.exec(`ALTER TABLE outbox DETACH PARTITION outbox_next`)
	r.insert(1)
	checkOrder(t, r.awaitRows(4))
}

// TestD25OtherChangesAreToldNotSent: updates, deletes and truncates of outbox
// rows, and rows of other tables, are counted; those of the outbox are logged
// with their position.
func TestD25OtherChangesAreToldNotSent(t *testing.T) {
	r := newRig(t)
	r.exec(`ALTER PUBLICATION tidemark_outbox SET (publish = 'insert, update, delete, truncate')`)
	r.exec(`ALTER PUBLICATION tidemark_outbox ADD TABLE other`)
	r.ensureSlot()
	e := r.start()
	r.insert(3)
	r.exec(`INSERT INTO other SELECT 1, 'x' FROM generate_series(1, 5)`)
	r.exec("BEGIN")
	r.exec(`UPDATE outbox SET type = 'Forged' WHERE id = 1`)
	r.exec(`DELETE FROM outbox WHERE id = 2`)
	r.exec(`TRUNCATE outbox, other`)
	r.exec("COMMIT")
	r.insert(1)
	all := r.awaitRows(4)
	if len(all) != 4 || e.Status().Ignored != 9 {
		t.Errorf("%d records, %d changes ignored; want 4 and 9", len(all), e.Status().Ignored)
	}
	for _, text := range []string{"updates=1 deletes=1 truncates=1 first_lsn=", "xid=" + txID(r, all), "also publishes updates"} {
		if err := r.log.has(text); err != nil {
			t.Error(err)
		}
	}
}

// txID is the transaction between the first insert and the last, two before.
func txID(r *rig, all []record) string {
	return strconv.FormatInt(all[3].Source.TxID-1, 10)
}

// TestRowOfAnotherShard goes out as it is and is counted.
func TestRowOfAnotherShard(t *testing.T) {
	r := newRig(t)
	r.ensureSlot()
	e := r.start(func(c *Config) { c.Shard = 1 })
	r.insert(2)
	r.awaitRows(2)
	if got := e.Status().OtherShard; got != 2 {
		t.Errorf("%d rows of another shard, want 2", got)
	}
	if err := r.log.has("names another shard"); err != nil {
		t.Error(err)
	}
}
