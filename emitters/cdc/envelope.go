package cdc

import (
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pglogrepl"
)

// postgresEpochUS is 2000-01-01 UTC, the zero of PostgreSQL's clock, in µs
// since 1970.
const postgresEpochUS = 946684800 * 1_000_000

// origin says where a row comes from.
type origin struct {
	previous pglogrepl.LSN // end of the commit before; 0: none yet, written as null
	lsn      pglogrepl.LSN // of the change
	xid      uint32
	commitUS int64 // µs since 1970
	table    *table
}

// encoder writes topology.Envelope as JSON without schemas, byte for byte what
// Kafka Connect's JSON converter writes, and allocates nothing.
type encoder struct {
	head []byte // `"source":{"version":...,"name":"...","ts_ms":`
	db   []byte // `,"snapshot":"false","db":"...","sequence":"[`
}

func newEncoder(version, server, database string) *encoder {
	e := &encoder{}
	e.head = append(e.head, `,"source":{"version":`...)
	e.head = appendString(e.head, []byte(version))
	e.head = append(e.head, `,"connector":"postgresql","name":`...)
	e.head = appendString(e.head, []byte(server))
	e.head = append(e.head, `,"ts_ms":`...)
	e.db = append(e.db, `,"snapshot":"false","db":`...)
	e.db = appendString(e.db, []byte(database))
	e.db = append(e.db, `,"sequence":"[`...)
	return e
}

// Append appends the envelope of an inserted row. now is the time of
// processing. A column that is null is written as null: what it means is the
// reader's to judge.
func (e *encoder) Append(dst []byte, row *[outboxColumns]value, from *origin, now time.Time) ([]byte, error) {
	dst = append(dst, `{"before":null,"after":`...)
	dst, err := appendRow(dst, row)
	if err != nil {
		return dst, err
	}
	dst = e.appendSource(dst, from)
	ns := now.UnixNano()
	dst = append(dst, `,"transaction":null,"op":"c","ts_ms":`...)
	dst = strconv.AppendInt(dst, ns/1_000_000, 10)
	dst = append(dst, `,"ts_us":`...)
	dst = strconv.AppendInt(dst, ns/1000, 10)
	dst = append(dst, `,"ts_ns":`...)
	dst = strconv.AppendInt(dst, ns, 10)
	return append(dst, '}'), nil
}

func appendRow(dst []byte, row *[outboxColumns]value) ([]byte, error) {
	var err error
	for i := range row {
		dst = append(dst, rowFields[i]...)
		v := row[i]
		switch {
		case v.null:
			dst = append(dst, "null"...)
		case i == colID || i == colSourceShard:
			if !integer(v.text) {
				return dst, fmt.Errorf("column %s is not an integer", columnNames[i])
			}
			dst = append(dst, v.text...)
		case i == colCreatedAt:
			if dst, err = appendTimestamp(dst, v.text); err != nil {
				return dst, fmt.Errorf("column %s: %w", columnNames[i], err)
			}
		default:
			dst = appendString(dst, v.text)
		}
	}
	return append(dst, '}'), nil
}

// rowFields are the names of the row's fields with what stands before them.
var rowFields = func() (f [outboxColumns]string) {
	for i, name := range columnNames {
		f[i] = `,"` + name + `":`
	}
	f[0] = "{" + f[0][1:]
	return f
}()

func integer(text []byte) bool {
	if len(text) > 1 && text[0] == '-' {
		text = text[1:]
	}
	return len(text) <= 19 && form(text, "")
}

func (e *encoder) appendSource(dst []byte, from *origin) []byte {
	dst = append(dst, e.head...)
	dst = strconv.AppendInt(dst, from.commitUS/1000, 10)
	dst = append(dst, e.db...)
	if from.previous == 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, `\"`...)
		dst = strconv.AppendUint(dst, uint64(from.previous), 10)
		dst = append(dst, `\"`...)
	}
	dst = append(dst, `,\"`...)
	dst = strconv.AppendUint(dst, uint64(from.lsn), 10)
	dst = append(dst, `\"]","ts_us":`...)
	dst = strconv.AppendInt(dst, from.commitUS, 10)
	dst = append(dst, `,"ts_ns":`...)
	dst = strconv.AppendInt(dst, from.commitUS*1000, 10)
	dst = append(dst, `,"schema":`...)
	dst = append(dst, from.table.schema...)
	dst = append(dst, `,"table":`...)
	dst = append(dst, from.table.name...)
	dst = append(dst, `,"txId":`...)
	dst = strconv.AppendUint(dst, uint64(from.xid), 10)
	dst = append(dst, `,"lsn":`...)
	dst = strconv.AppendUint(dst, uint64(from.lsn), 10)
	return append(dst, `,"xmin":null,"origin":null,"origin_lsn":null}`...)
}
