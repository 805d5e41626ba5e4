package cdc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/jackc/pglogrepl"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
)

func testTable(t testing.TB, schema, name string) *table {
	t.Helper()
	m := relationMsg{id: 1, namespace: schema, name: name}
	for i, c := range columnNames {
		m.columns = append(m.columns, column{name: c, oid: columnTypes[i][0]})
	}
	tab, err := newTable(m, schema, name)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func textRow(values ...string) (row [outboxColumns]value) {
	for i, v := range values {
		row[i] = value{text: []byte(v)}
	}
	return row
}

// standard is v as encoding/json writes it, with Jackson's escapes.
func standard(t interface{ Fatal(...any) }, v any) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return jackson(t, strings.TrimSuffix(b.String(), "\n"))
}

// jackson changes what encoding/json escapes to what Jackson does.
func jackson(t interface{ Fatal(...any) }, text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		r, size := utf8.DecodeRuneInString(text[i:])
		switch {
		case strings.HasPrefix(text[i:], `\u`):
			n, err := strconv.ParseUint(text[i+2:i+6], 16, 16)
			if err != nil {
				t.Fatal(err)
			}
			if size = 6; n < 0x20 {
				fmt.Fprintf(&b, `\u%04X`, n)
			} else {
				b.WriteRune(rune(n))
			}
		case r == '\\':
			size = 2
			b.WriteString(text[i : i+2])
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04X\u%04X`, high, low)
		default:
			b.WriteRune(r)
		}
		i += size
	}
	return b.String()
}

func TestEnvelopeGolden(t *testing.T) {
	enc := newEncoder("tidemark-1", "tidemark", "shard0")
	commit := time.Date(2026, 8, 19, 10, 20, 30, 123456000, time.UTC)
	from := origin{previous: 23024128, lsn: 23024200, xid: 771, commitUS: commit.UnixMicro(), table: testTable(t, "public", "outbox")}
	row := textRow("42", "relation", "like:u7:V9001", "RelationChanged", `{"kind": "like", "userId": "é\n赞"}`, "0", "2026-08-19 10:20:30.1234+00")
	got, err := enc.Append(nil, &row, &from, time.Unix(1787134831, 987654321))
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"before":null,"after":{"id":42,"aggregatetype":"relation","aggregateid":"like:u7:V9001","type":"RelationChanged",` +
		`"payload":"{\"kind\": \"like\", \"userId\": \"é\\n赞\"}","source_shard":0,"created_at":"2026-08-19T10:20:30.123400Z"},` +
		`"source":{"version":"tidemark-1","connector":"postgresql","name":"tidemark","ts_ms":1787134830123,"snapshot":"false","db":"shard0",` +
		`"sequence":"[\"23024128\",\"23024200\"]","ts_us":1787134830123456,"ts_ns":1787134830123456000,"schema":"public","table":"outbox",` +
		`"txId":771,"lsn":23024200,"xmin":null,"origin":null,"origin_lsn":null},"transaction":null,"op":"c","ts_ms":1787134831987,"ts_us":1787134831987654,"ts_ns":1787134831987654321}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	from.previous = 0
	if got, _ = enc.Append(nil, &row, &from, time.Unix(0, 0)); !bytes.Contains(got, []byte(`"sequence":"[null,\"23024200\"]"`)) {
		t.Errorf("first sequence of a fresh slot: %s", got)
	}
}

// anyText mixes what JSON escapes, multi-byte text and invalid UTF-8.
func anyText() *rapid.Generator[string] {
	odd := rapid.SampledFrom([]string{"\x00", "\b", "\f", "\n", "\r", "\t", "\x1f", "\x7f", `"`, `\`, "<", "&", "\u2028", "\u2029", "赞", "😀", "\xff", "\xe8\xb5", "é", "\ufffd", "plain text"})
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.OneOf(odd, rapid.String()), 0, 8).Draw(t, "parts"), "")
	})
}

// TestEnvelopeEqualsEncodingJSON: the hand-written appender is byte-equal to
// encoding/json of topology.Envelope, but for the characters that Jackson
// escapes otherwise.
func TestEnvelopeEqualsEncodingJSON(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := anyText()
		schema, name := text.Draw(rt, "schema"), text.Draw(rt, "table")
		version, server, db := text.Draw(rt, "version"), text.Draw(rt, "server"), text.Draw(rt, "db")
		commitUS := rapid.Int64Range(-1e15, 4e15).Draw(rt, "commit")
		from := origin{
			previous: pglogrepl.LSN(rapid.Uint64Range(0, 1<<62).Draw(rt, "previous")),
			lsn:      pglogrepl.LSN(rapid.Uint64Range(1, 1<<62).Draw(rt, "lsn")),
			xid:      rapid.Uint32().Draw(rt, "xid"), commitUS: commitUS, table: testTable(t, schema, name),
		}
		now := time.Unix(0, rapid.Int64Range(0, 1<<62).Draw(rt, "now"))
		created := time.UnixMicro(rapid.Int64Range(-62e15, 253402300799e6).Draw(rt, "created")).UTC()
		after := topology.OutboxRow{
			ID: rapid.Int64().Draw(rt, "id"), AggregateType: text.Draw(rt, "aggregate type"), AggregateID: text.Draw(rt, "aggregate id"),
			Type: text.Draw(rt, "type"), Payload: text.Draw(rt, "payload"), SourceShard: rapid.Int32().Draw(rt, "shard"),
			CreatedAt: created.Format("2006-01-02T15:04:05.000000Z07:00"),
		}
		sequence := fmt.Sprintf(`["%d","%d"]`, from.previous, from.lsn)
		if from.previous == 0 {
			sequence = fmt.Sprintf(`[null,"%d"]`, from.lsn)
		}
		floor := func(ns int64, by int64) int64 { return ns / by } // as the appender: toward zero
		want := standard(t, topology.Envelope{
			After: &after, Op: "c", TsMs: floor(now.UnixNano(), 1e6), TsUs: floor(now.UnixNano(), 1e3), TsNs: now.UnixNano(),
			Source: topology.Source{
				Version: version, Connector: "postgresql", Name: server, TsMs: floor(commitUS, 1000), Snapshot: "false", DB: db,
				Sequence: sequence, TsUs: commitUS, TsNs: commitUS * 1000, Schema: schema, Table: name, TxID: int64(from.xid), LSN: int64(from.lsn),
			},
		})
		row := textRow(strconv.FormatInt(after.ID, 10), after.AggregateType, after.AggregateID, after.Type, after.Payload,
			strconv.Itoa(int(after.SourceShard)), postgresText(created))
		got, err := newEncoder(version, server, db).Append(nil, &row, &from, now)
		if err != nil {
			rt.Fatal(err)
		}
		if string(got) != want {
			rt.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}

// postgresText is how PostgreSQL prints a time, DateStyle ISO at UTC.
func postgresText(t time.Time) string {
	return t.Format("2006-01-02 15:04:05.999999") + "+00"
}

func TestNullColumnsAreNull(t *testing.T) {
	row := textRow("1", "relation", "", "", "", "0", "2026-08-19 10:20:30+00")
	row[colAggregateID] = value{null: true}
	row[colPayload] = value{null: true}
	from := origin{lsn: 1, table: testTable(t, "public", "outbox")}
	got, err := newEncoder("v", "s", "d").Append(nil, &row, &from, time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(got, []byte(`"aggregateid":null,"type":"","payload":null,"source_shard":0`)) || !json.Valid(got) {
		t.Errorf("got %s", got)
	}
}

func TestEncoderRefusesWhatTheTypesForbid(t *testing.T) {
	good := []string{"1", "a", "b", "c", "{}", "0", "2026-08-19 10:20:30+00"}
	for _, c := range []struct {
		column int
		text   string
	}{
		{colID, ""}, {colID, "-"}, {colID, "1.5"}, {colID, "1e3"}, {colID, "99999999999999999999"},
		{colSourceShard, "x"}, {colSourceShard, "0}"},
		{colCreatedAt, ""}, {colCreatedAt, "2026-08-19T10:20:30Z"}, {colCreatedAt, "2026-08-19 10:20:30+02"},
		{colCreatedAt, `2026-08-19 10:20:3"+00`}, {colCreatedAt, "2026-08-19 10:20:30.1234567+00"}, {colCreatedAt, "2026-08-19 10:20:30.1.2+00"}, {colCreatedAt, "Wed Aug 19 10:20:30 2026 UTC"},
	} {
		values := append([]string{}, good...)
		values[c.column] = c.text
		row := textRow(values...)
		from := origin{table: testTable(t, "public", "outbox")}
		got, err := newEncoder("v", "s", "d").Append(nil, &row, &from, time.Unix(0, 0))
		if err == nil {
			t.Errorf("%s %q became %s", columnNames[c.column], c.text, got)
		} else if !strings.Contains(err.Error(), columnNames[c.column]) {
			t.Errorf("%s %q: error %q does not name the column", columnNames[c.column], c.text, err)
		}
	}
}

func TestTimestamps(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"2026-08-19 10:20:30.123456+00", "2026-08-19T10:20:30.123456Z"},
		{"2026-08-19 10:20:30.5+00", "2026-08-19T10:20:30.500000Z"},
		{"2026-08-19 10:20:00+00", "2026-08-19T10:20:00.000000Z"},
		{"0001-01-01 00:00:00+00", "0001-01-01T00:00:00.000000Z"},
		{"12026-08-19 10:20:30+00", "+12026-08-19T10:20:30.000000Z"},
		{"0001-12-31 23:59:59+00 BC", "0000-12-31T23:59:59.000000Z"},
		{"0044-03-15 12:00:00+00 BC", "-0043-03-15T12:00:00.000000Z"},
		{"infinity", "infinity"},
		{"-infinity", "-infinity"},
	} {
		got, err := appendTimestamp(nil, []byte(c.in))
		if err != nil || string(got) != `"`+c.want+`"` {
			t.Errorf("%s became %s, %v; want %s", c.in, got, err, c.want)
		}
	}
}

func FuzzTimestamp(f *testing.F) {
	f.Add([]byte("2026-08-19 10:20:30.123456+00"))
	f.Add([]byte("0044-03-15 12:00:00+00 BC"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, err := appendTimestamp(nil, text); err == nil && !json.Valid(got) {
			t.Errorf("%q became %s", text, got)
		}
	})
}

func FuzzString(f *testing.F) {
	f.Add([]byte("a\"\\\x00\u2028\xff赞😀"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if got, want := string(appendString(nil, text)), standard(t, string(text)); got != want {
			t.Errorf("%q became %s, want %s", text, got, want)
		}
	})
}

// TestNoAllocationsPerRecord: decoding a row and encoding its envelope
// allocate nothing.
func TestNoAllocationsPerRecord(t *testing.T) {
	body := insertMessage(1, "42", "relation", "like:u7:V9001", "RelationChanged", samplePayload, "0", "2026-08-19 10:20:30.123456+00")
	enc := newEncoder("tidemark-1", "tidemark", "shard0")
	from := origin{previous: 23024128, lsn: 23024200, xid: 771, commitUS: 1787134830123456, table: testTable(t, "public", "outbox")}
	row := make([]value, 0, outboxColumns)
	var picked [outboxColumns]value
	buffer := make([]byte, 0, 4096)
	now := time.Now()
	allocs := testing.AllocsPerRun(1000, func() {
		var err error
		if _, row, err = parseInsert(body[1:], row); err != nil {
			t.Fatal(err)
		}
		if err := from.table.pick(row, &picked); err != nil {
			t.Fatal(err)
		}
		if buffer, err = enc.Append(buffer[:0], &picked, &from, now); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations per record, want 0", allocs)
	}
}

const samplePayload = `{"kind": "like", "userId": "u7", "eventId": "0198c1a2-7f3e-7d31-9c7e-0b1f2a3c4d5e", "targetId": "V9001", "sourceShard": 0, "aggregateKey": "like:u7:V9001", "absoluteState": "LIKED", "previousState": "UNLIKED", "stateChangedAt": "2026-08-19T10:20:30.123456Z", "relationVersion": 1}`

func BenchmarkEncode(b *testing.B) {
	body := insertMessage(1, "42", "relation", "like:u7:V9001", "RelationChanged", samplePayload, "0", "2026-08-19 10:20:30.123456+00")
	enc := newEncoder("tidemark-1", "tidemark", "shard0")
	from := origin{previous: 23024128, lsn: 23024200, xid: 771, commitUS: 1787134830123456, table: testTable(b, "public", "outbox")}
	var row []value
	var picked [outboxColumns]value
	var buffer []byte
	b.ReportAllocs()
	for b.Loop() {
		_, row, _ = parseInsert(body[1:], row)
		_ = from.table.pick(row, &picked)
		buffer, _ = enc.Append(buffer[:0], &picked, &from, time.Unix(1, 0))
	}
	b.SetBytes(int64(len(buffer)))
}
