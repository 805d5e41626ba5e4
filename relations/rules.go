package relations

import (
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/tidemark/tidemark/topology"
)

// ErrOperationExpired says that an operation id tells a time (UUID version 7)
// before that for which operations are kept, and is not known: whether it was
// ever decided cannot be told, so it is not decided now.
var ErrOperationExpired = errors.New("the operation is older than operations are kept: use a new id")

// expired tells whether an id that is not known may be one that was forgotten:
// it says that it was made before the oldest operation that is sure to be kept.
// An id that tells no time is never expired; one that comes back after it was
// forgotten is a new command.
func expired(operationID string, kept time.Duration, now time.Time) bool {
	id, err := uuid.Parse(operationID)
	if err != nil || len(operationID) != 36 || id.Version() != 7 {
		return false
	}
	ms := int64(id[0])<<40 | int64(id[1])<<32 | int64(id[2])<<24 | int64(id[3])<<16 | int64(id[4])<<8 | int64(id[5])
	return time.UnixMilli(ms).Before(now.Add(-kept))
}

// An operationKey is what an operation id is unique within: its user.
type operationKey struct{ user, id string }

func (c Command) operation() operationKey { return operationKey{c.Relation.User, c.OperationID} }

// rules are a store's for every command.
type rules struct {
	staleBase StaleBasePolicy
	byKind    map[topology.Kind]StaleBasePolicy // instead of staleBase
	// kept is how long operations are sure to be remembered.
	kept time.Duration
}

func (r rules) policy(k topology.Kind) StaleBasePolicy {
	if p, ok := r.byKind[k]; ok {
		return p
	}
	return r.staleBase
}
