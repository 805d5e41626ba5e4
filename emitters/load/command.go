package load

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/tidemark/tidemark/topology"
)

// command is one intention of a user: a relation shall be in a state.
type command struct {
	number   int64 // from 1
	relation topology.Relation
	desired  topology.State
	stale    bool     // send an old base version
	resend   *command // not nil: repeat this one, which is of the same relation

	// due is when the user would have sent it; zero when flat out: then it is
	// when it is first sent.
	due time.Time

	// What was sent, for retries and resends. Owned by whoever has the
	// relation's turn.
	sent operation
}

// operation is what travels: the same id always with the same body.
type operation struct {
	id       string
	desired  topology.State
	base     uint64
	sequence int64
}

// source gives commands in the order in which users send them.
type source interface {
	// next gives a command and its time from the start, -1 for "at once", or
	// io.EOF.
	next() (*command, time.Duration, error)
}

// operationIDs makes ids that differ between runs, commands and reissues.
type operationIDs struct{ run [32]byte }

func newOperationIDs(runID string) operationIDs {
	if runID == "" {
		runID = uuid.NewString()
	}
	return operationIDs{sha256.Sum256([]byte("tidemark load\n" + runID))}
}

func (o operationIDs) id(number int64, reissue int) string {
	var b [48]byte
	copy(b[:], o.run[:])
	binary.BigEndian.PutUint64(b[32:], uint64(number))
	binary.BigEndian.PutUint64(b[40:], uint64(reissue))
	sum := sha256.Sum256(b[:])
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8, custom
	id[8] = id[8]&0x3f | 0x80
	return id.String()
}

// body is the request's JSON.
func (o operation) body(user string) []byte {
	b := make([]byte, 0, 112)
	b = append(b, `{"desiredState":"`...)
	b = append(b, o.desired.String()...)
	b = append(b, `","baseVersion":`...)
	b = strconv.AppendUint(b, o.base, 10)
	b = append(b, `,"deviceId":"`...)
	b = append(b, deviceOf(user)...)
	b = append(b, `","clientSequence":`...)
	b = strconv.AppendInt(b, o.sequence, 10)
	return append(b, '}')
}

// deviceOf gives every user one device.
func deviceOf(user string) string {
	return fmt.Sprintf("load-%08x", crc32.ChecksumIEEE([]byte(user)))
}
