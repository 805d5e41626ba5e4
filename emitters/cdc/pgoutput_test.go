package cdc

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pglogrepl"
	"pgregory.net/rapid"
)

// message builders, as the server writes them.

func insertMessage(relation uint32, values ...string) []byte {
	b := binary.BigEndian.AppendUint32([]byte{msgInsert}, relation)
	b = append(b, 'N')
	b = binary.BigEndian.AppendUint16(b, uint16(len(values)))
	for _, v := range values {
		if v == "\x00null" {
			b = append(b, 'n')
			continue
		}
		b = binary.BigEndian.AppendUint32(append(b, 't'), uint32(len(v)))
		b = append(b, v...)
	}
	return b
}

func relationMessage(m relationMsg) []byte {
	b := binary.BigEndian.AppendUint32([]byte{msgRelation}, m.id)
	b = append(append(b, m.namespace...), 0)
	b = append(append(b, m.name...), 0, 'd')
	b = binary.BigEndian.AppendUint16(b, uint16(len(m.columns)))
	for _, c := range m.columns {
		b = append(append(append(b, 0), c.name...), 0)
		b = binary.BigEndian.AppendUint32(b, c.oid)
		b = binary.BigEndian.AppendUint32(b, 0xffffffff)
	}
	return b
}

func numbers(kind byte, parts ...any) []byte {
	b := []byte{kind}
	for _, p := range parts {
		switch v := p.(type) {
		case byte:
			b = append(b, v)
		case uint32:
			b = binary.BigEndian.AppendUint32(b, v)
		case uint64:
			b = binary.BigEndian.AppendUint64(b, v)
		}
	}
	return b
}

func TestParseBeginAndCommit(t *testing.T) {
	b, err := parseBegin(numbers(msgBegin, uint64(500), uint64(77), uint32(9))[1:])
	if err != nil || b != (begin{finalLSN: 500, commitUS: 77, xid: 9}) {
		t.Errorf("begin %+v, %v", b, err)
	}
	c, err := parseCommit(numbers(msgCommit, byte(0), uint64(500), uint64(520), uint64(77))[1:])
	if err != nil || c != (commit{lsn: 500, endLSN: 520, commitUS: 77}) {
		t.Errorf("commit %+v, %v", c, err)
	}
}

func TestParseTruncate(t *testing.T) {
	ids, err := parseTruncate(numbers(msgTruncate, uint32(2), byte(1), uint32(7), uint32(8))[1:])
	if err != nil || len(ids) != 2 || ids[0] != 7 || ids[1] != 8 {
		t.Errorf("truncate %v, %v", ids, err)
	}
	if _, err := parseTruncate(numbers(msgTruncate, uint32(1<<31), byte(1), uint32(7))[1:]); !errors.Is(err, errShort) {
		t.Errorf("a count beyond the message gave %v", err)
	}
}

// Every message cut anywhere, or with a byte too many, is refused.
func TestCutMessagesAreRefused(t *testing.T) {
	parse := map[byte]func([]byte) error{
		msgBegin:    func(b []byte) error { _, err := parseBegin(b); return err },
		msgCommit:   func(b []byte) error { _, err := parseCommit(b); return err },
		msgRelation: func(b []byte) error { _, err := parseRelation(b); return err },
		msgInsert:   func(b []byte) error { _, _, err := parseInsert(b, nil); return err },
		msgTruncate: func(b []byte) error { _, err := parseTruncate(b); return err },
	}
	for _, m := range [][]byte{
		numbers(msgBegin, uint64(500), uint64(77), uint32(9)),
		numbers(msgCommit, byte(0), uint64(500), uint64(520), uint64(77)),
		numbers(msgTruncate, uint32(2), byte(1), uint32(7), uint32(8)),
		relationMessage(relationMsg{id: 3, namespace: "public", name: "赞", columns: []column{{"id", oidInt8}, {"payload", oidJSONB}}}),
		insertMessage(3, "1", "\x00null", "赞", ""),
	} {
		check := parse[m[0]]
		if err := check(m[1:]); err != nil {
			t.Errorf("%q: %v", m[0], err)
		}
		for cut := 1; cut < len(m); cut++ {
			if check(m[1:cut]) == nil {
				t.Errorf("%q cut after %d of %d bytes was accepted", m[0], cut, len(m))
			}
		}
		if check(append(append([]byte{}, m[1:]...), 0)) == nil {
			t.Errorf("%q with a byte too many was accepted", m[0])
		}
	}
}

func TestInsertRefusesUnknownValues(t *testing.T) {
	toast := append(binary.BigEndian.AppendUint32(nil, 1), 'N', 0, 1, 'u')
	if _, _, err := parseInsert(toast, nil); err == nil || !strings.Contains(err.Error(), "TOAST") {
		t.Errorf("unchanged TOAST in an insert gave %v", err)
	}
	binaryValue := append(binary.BigEndian.AppendUint32(nil, 1), 'N', 0, 1, 'b', 0, 0, 0, 0)
	if _, _, err := parseInsert(binaryValue, nil); err == nil {
		t.Error("a binary value was accepted")
	}
	wide := append(binary.BigEndian.AppendUint32(nil, 1), 'N', 0xff, 0xff)
	if _, _, err := parseInsert(wide, nil); err == nil || !strings.Contains(err.Error(), "1600") {
		t.Errorf("65535 columns gave %v", err)
	}
}

// TestInsertRoundTrip: what the server writes is what is read, and pglogrepl
// reads the same.
func TestInsertRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(rapid.OneOf(rapid.Just("\x00null"), anyText()), 1, 20).Draw(t, "values")
		relation := rapid.Uint32().Draw(t, "relation")
		message := insertMessage(relation, want...)
		id, row, err := parseInsert(message[1:], make([]value, 3))
		if err != nil || id != relation || len(row) != len(want) {
			t.Fatalf("relation %d, %d values, %v", id, len(row), err)
		}
		reference, err := pglogrepl.Parse(message)
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range row {
			if v.null != (want[i] == "\x00null") || !v.null && string(v.text) != want[i] {
				t.Fatalf("value %d is %q, want %q", i, v.text, want[i])
			}
			if other := reference.(*pglogrepl.InsertMessage).Tuple.Columns[i]; string(other.Data) != string(v.text) {
				t.Fatalf("pglogrepl reads %q, not %q", other.Data, v.text)
			}
		}
	})
}

func FuzzInsert(f *testing.F) {
	f.Add(insertMessage(1, "42", "\x00null", "赞", samplePayload)[1:])
	f.Fuzz(func(t *testing.T, body []byte) {
		_, row, err := parseInsert(body, nil)
		size := 0
		for _, v := range row {
			size += len(v.text)
		}
		if err == nil && size > len(body) {
			t.Errorf("%d bytes of values from %d bytes", size, len(body))
		}
	})
}

func FuzzMessages(f *testing.F) {
	f.Add(relationMessage(relationMsg{id: 3, namespace: "public", name: "outbox", columns: []column{{"id", oidInt8}}}))
	f.Add(numbers(msgTruncate, uint32(2), byte(1), uint32(7), uint32(8)))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = parseBegin(b)
		_, _ = parseCommit(b)
		_, _ = parseTruncate(b)
		_, _ = parseRelationID(b)
		_, _, _ = parseFrame(b)
		if m, err := parseRelation(b); err == nil {
			_, _ = newTable(m, "public", "outbox")
		}
	})
}

func TestColumnsAreFoundByName(t *testing.T) {
	m := relationMsg{id: 1, namespace: "public", name: "outbox", columns: []column{
		{"extra", 999}, {"created_at", oidTimestamptz}, {"payload", oidJSONB}, {"type", oidText}, {"source_shard", oidInt4},
		{"aggregateid", oidVarchar}, {"aggregatetype", oidText}, {"id", oidInt8},
	}}
	tab, err := newTable(m, "public", "outbox")
	if err != nil {
		t.Fatal(err)
	}
	row := []value{{text: []byte("x")}, {text: []byte("created_at")}, {text: []byte("payload")}, {text: []byte("type")}, {text: []byte("source_shard")},
		{text: []byte("aggregateid")}, {text: []byte("aggregatetype")}, {text: []byte("id")}}
	var picked [outboxColumns]value
	if err := tab.pick(row, &picked); err != nil {
		t.Fatal(err)
	}
	for i, v := range picked {
		if string(v.text) != columnNames[i] {
			t.Errorf("column %s got %s", columnNames[i], v.text)
		}
	}
	if err := tab.pick(row[:3], &picked); err == nil {
		t.Error("a row with too few columns was accepted")
	}
}

func TestOutboxShapeIsRefusedByName(t *testing.T) {
	m := relationMsg{namespace: "public", name: "outbox", columns: []column{
		{"id", oidText}, {"aggregatetype", oidText}, {"aggregateid", oidText}, {"type", oidText}, {"source_shard", oidInt4}, {"created_at", oidTimestamptz},
	}}
	_, err := newTable(m, "public", "outbox")
	if !errors.Is(err, ErrOutboxShape) || !strings.Contains(err.Error(), "column id has type") || !strings.Contains(err.Error(), "column payload is missing") {
		t.Errorf("error %v", err)
	}
	if tab, err := newTable(m, "public", "other"); err != nil || tab.outbox {
		t.Errorf("another table gave %+v, %v", tab, err)
	}
}
