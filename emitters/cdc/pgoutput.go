package cdc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
)

// Message types of pgoutput, protocol version 1.
const (
	msgBegin    = 'B'
	msgCommit   = 'C'
	msgRelation = 'R'
	msgInsert   = 'I'
	msgUpdate   = 'U'
	msgDelete   = 'D'
	msgTruncate = 'T'
	msgType     = 'Y'
	msgOrigin   = 'O'
	msgMessage  = 'M'
)

// maxColumns is PostgreSQL's own limit of columns in a table.
const maxColumns = 1600

var errShort = errors.New("the message is cut short")

// begin opens a transaction. PostgreSQL sends a transaction when it has
// committed, so its commit is known here already.
type begin struct {
	finalLSN pglogrepl.LSN // of the commit record
	commitUS int64         // commit time, µs since 2000-01-01 UTC
	xid      uint32
}

// commit ends a transaction. endLSN is the first byte after the commit record:
// the position to confirm.
type commit struct {
	lsn, endLSN pglogrepl.LSN
	commitUS    int64
}

// column of a relation as the server describes it.
type column struct {
	name string
	oid  uint32 // of its type
}

// relationMsg describes a table; the server sends it before the table's first
// change and again after the table was altered.
type relationMsg struct {
	id        uint32
	namespace string
	name      string
	columns   []column
}

// value of a column in a row: the text form of its type. It points into the
// message and is valid until the next one is received.
type value struct {
	null bool
	text []byte
}

// cursor reads a message's fields; after the first read past the end every
// read gives zero and short is true.
type cursor struct {
	b     []byte
	short bool
}

func (c *cursor) take(n int) []byte {
	if n < 0 || n > len(c.b) {
		c.short, c.b = true, nil
		return nil
	}
	b := c.b[:n]
	c.b = c.b[n:]
	return b
}

func (c *cursor) u8() byte {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) lsn() pglogrepl.LSN { return pglogrepl.LSN(c.u64()) }

func (c *cursor) cstring() string {
	i := bytes.IndexByte(c.b, 0)
	if i < 0 {
		c.short, c.b = true, nil
		return ""
	}
	s := string(c.b[:i])
	c.b = c.b[i+1:]
	return s
}

// end checks that the message was read to its end and no further.
func (c *cursor) end() error {
	switch {
	case c.short:
		return errShort
	case len(c.b) > 0:
		return fmt.Errorf("the message has %d bytes too many", len(c.b))
	}
	return nil
}

func parseBegin(body []byte) (begin, error) {
	c := cursor{b: body}
	m := begin{finalLSN: c.lsn(), commitUS: int64(c.u64()), xid: c.u32()}
	return m, c.end()
}

func parseCommit(body []byte) (commit, error) {
	c := cursor{b: body}
	c.u8() // flags, unused by the server
	m := commit{lsn: c.lsn(), endLSN: c.lsn(), commitUS: int64(c.u64())}
	return m, c.end()
}

func parseRelation(body []byte) (relationMsg, error) {
	c := cursor{b: body}
	m := relationMsg{id: c.u32(), namespace: c.cstring(), name: c.cstring()}
	c.u8() // replica identity
	n := int(c.u16())
	if n > maxColumns {
		return m, fmt.Errorf("the table has %d columns, more than %d", n, maxColumns)
	}
	for range n {
		c.u8() // part of the replica identity
		col := column{name: c.cstring(), oid: c.u32()}
		c.u32() // type modifier
		if c.short {
			break
		}
		m.columns = append(m.columns, col)
	}
	return m, c.end()
}

// parseInsert reads an inserted row. The values go into row, which is reused
// when it is large enough: steady state allocates nothing.
func parseInsert(body []byte, row []value) (relation uint32, _ []value, err error) {
	c := cursor{b: body}
	relation = c.u32()
	if kind := c.u8(); kind != 'N' && !c.short {
		return relation, row[:0], fmt.Errorf("the inserted row is of kind %q, not N", kind)
	}
	row, err = c.tuple(row[:0])
	if err != nil {
		return relation, row[:0], err
	}
	return relation, row, c.end()
}

func (c *cursor) tuple(row []value) ([]value, error) {
	n := int(c.u16())
	if n > maxColumns {
		return row, fmt.Errorf("the row has %d columns, more than %d", n, maxColumns)
	}
	for i := range n {
		switch kind := c.u8(); kind {
		case 'n':
			row = append(row, value{null: true})
		case 't':
			row = append(row, value{text: c.take(int(int32(c.u32())))})
		case 'u':
			return row, fmt.Errorf("column %d is an unchanged TOAST value, which an insert cannot have", i+1)
		default:
			if c.short {
				return row, errShort
			}
			return row, fmt.Errorf("column %d has value kind %q, not n or t", i+1, kind)
		}
		if c.short {
			return row, errShort
		}
	}
	return row, nil
}

// parseRelationID reads the relation that an update or delete is about.
func parseRelationID(body []byte) (uint32, error) {
	c := cursor{b: body}
	id := c.u32()
	if c.short {
		return 0, errShort
	}
	return id, nil
}

// parseTruncate reads which relations were truncated.
func parseTruncate(body []byte) ([]uint32, error) {
	c := cursor{b: body}
	n := int(c.u32())
	c.u8() // options
	if n > len(c.b)/4 {
		return nil, errShort
	}
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = c.u32()
	}
	return ids, c.end()
}
