// Package evidence has the words in which a shard's outbox answers those who
// check its change feed: which rows there are, which were deleted by hand, and
// what stands between the outbox and the feed.
package evidence

import (
	"time"

	"github.com/tidemark/tidemark/topology"
)

// Seal is the interval that a seal settled: the ids FromID..ToID-1. ToID is the
// id of the seal's own row.
type Seal struct {
	Seal     uint64
	FromID   int64
	ToID     int64
	SealedAt time.Time
}

// Deleted is a row that someone deleted from the outbox by hand.
type Deleted struct {
	ID            int64
	AggregateType string
	AggregateID   string // the relation's key
	DeletedAt     time.Time
	DeletedBy     string // database role
}

// Fact is a relation as it is now.
type Fact struct {
	Relation       topology.Relation
	State          topology.State
	Version        uint64
	StateChangedAt time.Time
	Hiding         topology.Hiding
}

// Feed is what stands between a shard's outbox and its change feed.
type Feed struct {
	// Database is the name of the shard's database.
	Database string
	// LSN is the end of the write-ahead log.
	LSN uint64
	// SlotExists, its confirmed position (0 for none) and the number of
	// transactions that it has decoded since it was created (-1: unknown).
	SlotExists   bool
	Confirmed    uint64
	Transactions int64
	// Publication changes whenever someone alters the publication; "" when
	// there is none.
	Publication string
}
