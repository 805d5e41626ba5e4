// Package gaps turns what seals show into named gaps, and heals them.
//
//	intake: a proof does not agree ─▶ Keeper.Suspect ─▶ which of the ids in question are rows of the outbox?
//	                                      │                 none: an aborted transaction, nothing is missing
//	a row was deleted by hand ────────────┤
//	counted rows are gone from the shard ─┤ (failover, restore: events compared, see lost.go)
//	                                      ▼
//	                       control database: gap (shard, seal, exact ids, cause), audit, metric
//	                                      ▼
//	                  Healer.Heal: the rows again, into the change feed, marked
//	                                      ▼
//	                  Healer.Confirm: healed, once intake has read them and the log still had them
//
// # What a healing record is
//
// An envelope like any other of the row, in the shard's partition, with op r
// (a row that was read), source.snapshot heal, the log's end at the time of
// reading as its position, the row's created_at as its commit time, and a
// header tidemark-heal with the gap. Relations are absolute states with a
// version, so it may come late, twice, or for nothing: who has a higher
// version, or this one, is not changed by it (I2, I3).
//
// A row that is no longer in the outbox is rebuilt from the relation's fact as
// it is now: its present state and version, under the row's id. The gap's note
// says so. That makes counts right; the versions in between are gone.
//
// # What a shard has lost
//
// After a failover to a standby that was behind, or a restore, rows that were
// counted are gone, and their ids and seal numbers come a second time. Their
// gap (cause source-went-back) has the ids of both, what is missing and what
// is lost; the lost facts themselves stand beside it in the control database.
// Healing has the shard write each relation anew, in the state that it has now,
// under a version above the lost one: nothing else can put counts right, since
// who has a version takes no lower one (I3).
//
// # Metrics
//
//	tidemark_gaps_open{shard}          gaps that are not healed
//	tidemark_gaps_missing_rows{shard}  rows that they name
//	tidemark_gaps_raised_total         gaps that this process recorded
//	tidemark_gaps_surplus_rows_total   rows that came although the outbox does not count them
package gaps
