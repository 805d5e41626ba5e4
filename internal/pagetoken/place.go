package pagetoken

import "encoding/binary"

// appendPlace writes a place. Neighbours are near: shards and times are written
// as the distance from the one before, and an id that comes again as 0.
func appendPlace(b []byte, p Place) []byte {
	b = binary.AppendUvarint(b, uint64(p.Generation))
	b = binary.AppendUvarint(b, uint64(len(p.Positions)))
	var before Position
	for i, at := range p.Positions {
		b = binary.AppendUvarint(b, uint64(at.Shard-before.Shard))
		b = binary.AppendVarint(b, at.AtUs-before.AtUs)
		if i > 0 && at.ID == before.ID {
			b = append(b, 0)
		} else {
			b = binary.AppendUvarint(b, uint64(len(at.ID))+1)
			b = append(b, at.ID...)
		}
		before = at
	}
	return b
}

// reader reads a body that was signed; bad says that it is none all the same.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	r.skip(n)
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	r.skip(n)
	return v
}

func (r *reader) skip(n int) {
	if n <= 0 || n > len(r.b) {
		r.bad, r.b = true, nil
		return
	}
	r.b = r.b[n:]
}

// text reads what has its length, and one more, before it; 0 is before again.
func (r *reader) text(before string) string {
	n := r.uvarint()
	if n == 0 {
		return before
	}
	if n--; n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) place() Place {
	p := Place{Generation: uint32(r.uvarint())}
	n := r.uvarint()
	if n > uint64(len(r.b)) { // a position has three bytes or more
		r.bad = true
		return p
	}
	var at Position
	for range n {
		at.Shard += uint32(r.uvarint())
		at.AtUs += r.varint()
		at.ID = r.text(at.ID)
		if r.bad {
			break
		}
		p.Positions = append(p.Positions, at)
	}
	return p
}
