// Package cdc feeds the outbox of one relation shard into one Kafka partition:
// PostgreSQL logical replication (pgoutput) in, Debezium's envelope out. What
// it writes, Debezium's PostgreSQL connector would write too, but for
// source.version, source.name and the processing time.
//
//	outbox ─▶ WAL ─▶ walsender ═▶ reader ─▶ window ─▶ producer ═▶ partition
//	                     ▲                    │ acks ◀───────────────┘
//	                     └── status updates ◀─┘ gap-free prefix
//
// # What it promises
//
//   - Every committed outbox insert becomes a record, in commit order, one
//     transaction after the other; a rolled back one never does.
//   - A position is confirmed to PostgreSQL only when Kafka has acknowledged
//     every record before it (I17): the ends of commits, and of keepalives
//     between transactions, so that an idle shard holds no WAL. The confirmed
//     position never goes back.
//   - After any stop the next session goes on from the confirmed position.
//     Records after it are written twice; the first copies of all records
//     stand in commit order. Consumers absorb the repetition by outbox id or
//     relation version (I3, I9).
//   - Nothing is skipped. What Kafka refuses for good (a record above the
//     topic's max.message.bytes, say) stops the shard, visibly, until someone
//     changes that. What the row holds is not judged here: a null or foreign
//     value goes out as it is and intake sets it aside.
//   - Memory is bounded by MaxInFlightRecords and MaxInFlightBytes, however
//     large a transaction is and however long Kafka is away; the reader then
//     waits and status updates go on, so wal_sender_timeout does not strike.
//
// Updates, deletes and truncates of the outbox cannot be expressed in the
// stream, where a row stands for a fact that happened. The publication leaves
// them out (publish = 'insert'). If it does not, they are counted, and each
// transaction that has some is logged with its position, xid and time.
//
// # The slot
//
// The slot is permanent, uses pgoutput, and is the only memory: no offset is
// kept elsewhere. EnsureSlot makes it when the schema is migrated, after the
// publication and before the first fact. Run makes it only if the partition
// never had a record, or AllowNewSlot says so; else a missing slot is
// ErrSlotVanished: a person makes it anew, and AwaitSlot tells when Run can go
// on. While another process has the slot an emitter stands by and tries once a
// second.
//
// Pause holds an emitter, whatever it does: nothing stays half sent, the acked
// position reaches PostgreSQL, and the slot keeps the WAL behind it until
// Resume.
//
// A server that shuts down waits until its walsenders are confirmed. With
// Kafka away that cannot happen: stop the emitter before PostgreSQL.
//
// # Metrics
//
// Label: shard.
//
//	tidemark_cdc_streaming                   1 while this emitter streams
//	tidemark_cdc_standby                     1 while another emitter has the slot
//	tidemark_cdc_paused                      1 while an operator has paused the feed
//	tidemark_cdc_confirmed_lsn_bytes         position up to which everything is in Kafka
//	tidemark_cdc_server_lsn_bytes            the server's end of WAL
//	tidemark_cdc_lag_bytes                   WAL between the two
//	tidemark_cdc_retained_bytes              WAL that the slot holds on disk
//	tidemark_cdc_oldest_unpublished_seconds  age of the oldest row that may not be in Kafka, at most
//	tidemark_cdc_outbox_bytes                size of the outbox
//	tidemark_cdc_unacked_records             sent to Kafka, not acknowledged
//	tidemark_cdc_unacked_bytes               their bytes
//	tidemark_cdc_emitted_records_total       handed to the producer, repeated ones too
//	tidemark_cdc_acked_records_total         acknowledged by Kafka
//	tidemark_cdc_acked_bytes_total           their bytes, key and value
//	tidemark_cdc_transactions_total          transactions read
//	tidemark_cdc_ignored_changes_total       not passed on: no inserts, or of other tables
//	tidemark_cdc_other_shard_records_total   rows that name another shard
//	tidemark_cdc_restarts_total              sessions that ended with an error
//	tidemark_cdc_blocked_seconds_total       time the reader waited for Kafka
//	tidemark_cdc_publish_seconds             histogram: commit to acknowledgement
package cdc
