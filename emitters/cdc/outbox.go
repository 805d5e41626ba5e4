package cdc

import (
	"fmt"
	"slices"
	"strings"
)

// The outbox's columns, in the order of topology.OutboxRow.
const (
	colID = iota
	colAggregateType
	colAggregateID
	colType
	colPayload
	colSourceShard
	colCreatedAt
	outboxColumns
)

var columnNames = [outboxColumns]string{
	"id", "aggregatetype", "aggregateid", "type", "payload", "source_shard", "created_at",
}

// Type oids of pg_type.
const (
	oidInt8        = 20
	oidInt2        = 21
	oidInt4        = 23
	oidText        = 25
	oidJSON        = 114
	oidVarchar     = 1043
	oidTimestamptz = 1184
	oidJSONB       = 3802
)

// columnTypes are the types whose text form the encoder knows.
var columnTypes = [outboxColumns][]uint32{
	colID:            {oidInt8, oidInt4},
	colAggregateType: {oidText, oidVarchar},
	colAggregateID:   {oidText, oidVarchar},
	colType:          {oidText, oidVarchar},
	colPayload:       {oidJSONB, oidJSON, oidText},
	colSourceShard:   {oidInt4, oidInt2, oidInt8},
	colCreatedAt:     {oidTimestamptz},
}

// table is what the reader knows about a relation of the stream. Only outbox
// tables have columns.
type table struct {
	outbox bool
	schema []byte // JSON text, quoted
	name   []byte // JSON text, quoted
	count  int    // columns of a row as the server sends it
	index  [outboxColumns]int
}

// newTable finds the outbox's columns by their names; their order in the table
// is the database's own matter. Further columns are ignored.
func newTable(m relationMsg, schema, name string) (*table, error) {
	t := &table{
		outbox: m.namespace == schema && m.name == name,
		schema: appendString(nil, []byte(m.namespace)),
		name:   appendString(nil, []byte(m.name)),
		count:  len(m.columns),
	}
	if !t.outbox {
		return t, nil
	}
	var wrong []string
	for i, want := range columnNames {
		t.index[i] = -1
		for j, c := range m.columns {
			if c.name != want {
				continue
			}
			t.index[i] = j
			if !slices.Contains(columnTypes[i], c.oid) {
				wrong = append(wrong, fmt.Sprintf("column %s has type oid %d, not one of %v", want, c.oid, columnTypes[i]))
			}
		}
		if t.index[i] < 0 {
			wrong = append(wrong, fmt.Sprintf("column %s is missing", want))
		}
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("%w: %s.%s: %s", ErrOutboxShape, m.namespace, m.name, strings.Join(wrong, "; "))
	}
	return t, nil
}

// pick puts the outbox's columns of a row into topology.OutboxRow's order.
func (t *table) pick(row []value, into *[outboxColumns]value) error {
	if len(row) != t.count {
		return fmt.Errorf("a row has %d columns, its table %d", len(row), t.count)
	}
	for i, j := range t.index {
		into[i] = row[j]
	}
	return nil
}
