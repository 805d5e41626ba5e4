package exports

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strings"
	"time"
)

// Row is a relation that was in the counted state at the barrier.
type Row struct {
	User    string
	LikedAt time.Time // of microseconds: when the user entered the counted state
	Version uint64    // of the relation
}

// compareRows orders an export: newest first, of one time by user.
func compareRows(a, b Row) int {
	return cmp.Or(b.LikedAt.Compare(a.LikedAt), strings.Compare(a.User, b.User))
}

// digest is the checksum of rows in their order: SHA-256 over, for each row, the
// user's length in bytes (4 bytes, big-endian), the user, liked-at in
// microseconds since 1970 and the version (8 bytes each, big-endian).
type digest struct {
	hash hash.Hash
	rows int64
	buf  bytes.Buffer
}

func newDigest() *digest { return &digest{hash: sha256.New()} }

func (d *digest) add(r Row) {
	b := d.buf.AvailableBuffer()
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.User)))
	b = append(b, r.User...)
	b = binary.BigEndian.AppendUint64(b, uint64(r.LikedAt.UnixMicro()))
	b = binary.BigEndian.AppendUint64(b, r.Version)
	d.hash.Write(b)
	d.rows++
}

func (d *digest) sum() string { return sumText(d.hash) }

func sumText(h hash.Hash) string { return "sha256:" + hex.EncodeToString(h.Sum(nil)) }
