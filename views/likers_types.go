package views

import (
	"errors"
	"fmt"
	"time"

	"github.com/tidemark/tidemark/topology"
)

// MaxLikersPage is the most entries of a page of a list.
const MaxLikersPage = 1000

// LikersQuery asks for a page of who is in the counted state to a target.
type LikersQuery struct {
	Kind   topology.Kind
	Target string
	Limit  int // 1..MaxLikersPage
	// Generation under which Frontier was made; 0 while Frontier is empty.
	Generation uint32
	// Frontier of the page before; empty: the newest entries.
	Frontier Frontier
}

// Frontier is a place in a list: how far each of the target's reverse shards
// has been told, in order of shards. A shard that is missing is untold. It
// means something in the generation of its page only.
type Frontier []ShardPosition

// ShardPosition stands behind the last entry of a reverse shard that was told.
type ShardPosition struct {
	Shard     uint32 `json:"s"`
	LikedAtUs int64  `json:"t"`
	User      string `json:"u"`
}

// Liker is an entry of a list.
type Liker struct {
	User string
	// LikedAt has microseconds: UnixMicro is what the order goes by.
	LikedAt time.Time
	Version uint64 // of the relation
}

// LikersPage is a part of a list.
type LikersPage struct {
	// Entries are newest first; of one time, by user.
	Entries []Liker
	// Frontier stands behind the last of Entries.
	Frontier Frontier
	// Generation of the reverse index that Frontier is bound to.
	Generation uint32
	// Done says that nothing stood behind Frontier when the page was read.
	Done bool
	// AsOf has, per source shard, the newest seal up to which every change is
	// in the page's lists. A shard of which some partition knows none is
	// missing.
	AsOf []ShardAsOf
	// Staleness is the age of the oldest seal in AsOf, or UnknownStaleness
	// while a shard is missing.
	Staleness time.Duration
	// Standby says that a partition's owner did not answer, and a process that
	// keeps the partition warm did: what an owner has told since AsOf may be
	// missing.
	Standby bool
}

// Errors of Likers.Page, beside NotReadyError and what ctx ended with.
var (
	// ErrGenerationGone says that the frontier was made in a reverse generation
	// that is not served: the list must be read from its beginning.
	ErrGenerationGone = errors.New("the list's generation is gone")
	// ErrLikersQuery says that no list has such a page.
	ErrLikersQuery = errors.New("no such page of a list")
)

// NotReadyError says that some partition of the list is not served now: it is
// being taken over, read from its log, or out of reach. It is never an empty
// or partial list.
type NotReadyError struct {
	Partition  int
	RetryAfter time.Duration
	Err        error // why
}

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("partition %d of the reverse index is not served now, ask again in %v: %v", e.Partition, e.RetryAfter, e.Err)
}

func (e *NotReadyError) Unwrap() error { return e.Err }
