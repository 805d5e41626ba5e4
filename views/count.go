package views

import (
	"time"

	"github.com/tidemark/tidemark/topology"
)

// Count is a target's published count.
type Count struct {
	Kind   topology.Kind
	Target string
	// Counts are raw and what is hidden of it; users are shown Counts.Display().
	Counts topology.Counts
	// Found is false when nobody has ever had a relation to the target, as far
	// as AsOf tells; the counts are 0 then, and the other fields empty.
	Found       bool
	GeneratedAt time.Time // when the newest of its partial counts was summed
	CommittedAt time.Time // commit of the newest change inside; zero if unknown
	Generation  uint64    // of the projection
	ManifestID  uint64    // of the routes by which it was counted
	Partials    int       // number of count partitions that have spoken of the target
	Seq         uint64    // of the snapshot; rises by 1 with each partial count
	// AsOf is in order of shards; a shard of which nothing is known is missing.
	// It is shared and must not be changed.
	AsOf []ShardAsOf
	// Staleness is the age of the oldest seal in AsOf, or UnknownStaleness
	// while a shard is missing.
	Staleness time.Duration
}

// UnknownStaleness says that some shard's part in a count is not known.
const UnknownStaleness time.Duration = -1

// ShardAsOf says that a shard's changes up to a seal are included.
type ShardAsOf struct {
	Shard             int
	Seal              uint64 // dense, per shard, from 1
	PreviousCommitLSN uint64 // source position of the seal
	LSN               uint64
	SealedAt          time.Time
}

// Progress says what every count of the table includes.
type Progress struct {
	// AsOf is the least of each shard over all count and display partitions.
	AsOf []ShardAsOf
	// Complete is true when no shard is missing in AsOf.
	Complete bool
	// Unheard is the number of pairs of a count partition and a display
	// partition between which no progress has been told yet.
	Unheard int
}

// Update is a change of a target's count.
type Update struct {
	Kind        topology.Kind
	Target      string
	Counts      topology.Counts
	Seq         uint64
	GeneratedAt time.Time
	CommittedAt time.Time // commit of the newest change inside; zero if unknown
}
