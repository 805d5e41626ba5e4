// Package relations is the command side: the facts of who relates to what, in
// N PostgreSQL shards by user, and the proof of every change in the outbox.
//
// One transaction decides a command (A2): it finds the operation or binds its
// id, judges the base version, and either changes nothing or gives the
// relation its next version, absolute state and an outbox row of that version.
// Only then the caller gets an answer.
//
//	Set ─▶ queue of the shard ─▶ committer ─▶ one transaction for all that waited
//	                                            locks · load · decide in order · write · commit
//	Sealer ─▶ seal rows (the interval is settled) and proof rows (what it holds)
//
// What holds, and why:
//
//   - A relation has one row, so one fact (I1); ended relations stay as rows.
//   - Transactions that share an operation id or a relation run one after the
//     other: each takes an advisory lock per id and per relation, in one order.
//     The lock is what makes an operation id unique although the command table
//     is partitioned by time and can have no unique key over the id alone. It
//     also serialises first inserts, and unlike SELECT FOR UPDATE it writes
//     nothing. Versions are compared again when rows are written, so that a
//     writer that does not take the locks is noticed, and the commands run
//     again.
//   - A shard serves the writers of one shard map. A command that another map
//     routed is refused inside its transaction, and routed again (fence.go).
//   - An operation id belongs to a user, and is bound to its first kind, target,
//     desired state and base version for as long as its command row is kept;
//     another use is ErrOperationConflict (A3). The same id of another user is
//     another operation, and neither user can tell that there are two. An id
//     that tells its time, and is older than rows are kept, is refused.
//   - A relation in its counted state may be hidden from the count that users
//     see (C5), by the command that begins it or later (Store.SetHiding). Each
//     hiding and showing is a version with an event of its own.
//   - A command may commit though its caller has gone; Operation tells.
//     Repeating a lost attempt is safe because of the operation id (I2).
//
// Metrics, all with label shard:
//
//	tidemark_relations_commands_total{kind,outcome}   commands and hidings answered
//	tidemark_relations_batch_commands                 commands per transaction
//	tidemark_relations_commit_seconds                 one transaction, both round trips
//	tidemark_relations_retries_total{reason}          transactions run again, whole or in parts
//	tidemark_relations_queue_commands                 commands that wait
//	tidemark_relations_seal_lock_wait_seconds         waiting for the outbox lock
//	tidemark_relations_seal_lock_held_seconds         holding it
//	tidemark_relations_seals_total{result}            sealed, skipped (lock timeout)
//	tidemark_relations_seals_unproven                 seals without a proof row yet
//	tidemark_relations_partitions_overdue{table}      older than their retention, and still needed
//	tidemark_relations_partitions_dropped_total{table}
package relations
