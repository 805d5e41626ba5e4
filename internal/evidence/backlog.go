package evidence

import "time"

// Backlog is what a shard's outbox has beyond a position of its change feed. A
// row does not say where in the log it stands, a seal does; so rows behind the
// newest seal that the position covers count as not published although some of
// them may be: ages and numbers are upper bounds, by at most a seal interval
// while seals are made.
type Backlog struct {
	// Covered is the newest seal at or below the position; 0: none is kept.
	Covered uint64
	// FromID: every row that has a lower id is published, or a named gap.
	FromID int64
	// Behind is the age of the oldest seal beyond the position, so that the
	// feed is late by this much at least; 0: there is none.
	Behind time.Duration
	// Rows tells whether there are rows from FromID on; Oldest is the age of
	// the first of them.
	Rows   bool
	Oldest time.Duration
	// Bytes is the size of the outbox: partitions, indexes and TOAST.
	Bytes int64
}

// OutboxPart is a time partition of the outbox.
type OutboxPart struct {
	Name  string
	Bytes int64 // with its indexes and TOAST
	Rows  int64 // as the planner estimates; -1: never analyzed
}
