// Package displaytable is how the display table is read, for the processor
// that writes it and the views that follow it.
package displaytable

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tidemark/tidemark/internal/gokakit"
)

// Schema orders the table's values, tidemark.v1.DisplayRow: a snapshot and a
// progress by their seq. Nothing is derived from them.
type Schema struct{}

var _ gokakit.Schema = Schema{}

// Fields of DisplayRow, and the seq of each body.
const (
	snapshotField    = 1
	progressField    = 2
	snapshotSeqField = 7
	progressSeqField = 2
)

var errMalformed = errors.New("not a row of the display table")

// Version is the seq of a row. It reads no more of the row than it must.
func (Schema) Version(value []byte) (uint64, error) {
	field, kind, n := protowire.ConsumeTag(value)
	if n < 0 || kind != protowire.BytesType || field != snapshotField && field != progressField {
		return 0, errMalformed
	}
	body, m := protowire.ConsumeBytes(value[n:])
	if m < 0 || n+m != len(value) {
		return 0, errMalformed
	}
	want := protowire.Number(snapshotSeqField)
	if field == progressField {
		want = progressSeqField
	}
	seq, err := varint(body, want)
	if err != nil {
		return 0, fmt.Errorf("seq of a display row: %w", err)
	}
	return seq, nil
}

// varint is the last value of a field in a message; 0 when it is absent.
func varint(message []byte, want protowire.Number) (v uint64, _ error) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return 0, errMalformed
		}
		message = message[n:]
		if field == want && kind == protowire.VarintType {
			v, n = protowire.ConsumeVarint(message)
		} else {
			n = protowire.ConsumeFieldValue(field, kind, message)
		}
		if n < 0 {
			return 0, errMalformed
		}
		message = message[n:]
	}
	return v, nil
}

// Derive gives nothing.
func (Schema) Derive(string, []byte, func(gokakit.Derived)) error { return nil }
