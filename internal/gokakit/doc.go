// Package gokakit runs Goka processors and views whose tables cannot drift
// from their log. It is the only place that builds goka or sarama objects.
//
// Stock Goka marks the highest acked offset instead of the gap-free prefix,
// writes its local store before its changelog, and cannot write two keys in
// one step. Here:
//
//  1. One changelog record is one atomic change: a value and the rows that
//     Schema.Derive reads from it (C2).
//  2. A write is readable at once and enters Pebble only when its changelog
//     record is acked, in emission order (store.go): the local store is never
//     ahead of the log.
//  3. Emissions of a partition resolve in order; after one failure everything
//     behind it fails and the processor is rebuilt (lane.go, producer.go).
//  4. A record's commit waits for its own and all earlier emissions, so that
//     committed offsets are a gap-free prefix (I17; attempt.go, lane.go).
//  5. A changelog offset that is not the last one plus 1 proves another
//     writer: the processor stops and is rebuilt (store.ack).
//  6. While the log is read, a lower version never replaces a higher one (I3);
//     keys whose newest record is such a lower one are marked, and written
//     again when the partition is owned, by its owner alone (store_replay.go,
//     partition.own).
//  7. Tables know no tombstones: ending a relation's life is a state.
//  8. A key is written, and read from a log, only on the partition that it
//     belongs to (G13 of the bug log).
//  9. What fails ends the attempt with a reason that Ready tells, and the
//     processor is built anew with backoff: a handler's error or panic, a
//     session of the consumer group, a full or damaged disk (attempt.go,
//     group.go, sinkfs.go). A local store that does not fit its log is read
//     anew (G14..G16). A stop takes less than 5 s even when Kafka is silent
//     (lifeline.go).
//
// Each point has a test that also runs with the mechanism switched off
// (Weakness) and must then fail: TestMechanisms, TestStore..., TestLane...,
// TestBudget..., TestStopIsBounded, TestViewWhileRecovering.
//
// A handler must be a function of the table and the record alone: no clock, no
// randomness, no outside look-up. Two owners that read the same prefix then
// write the same records, and what a paused owner appends late is a duplicate.
//
// Life of a partition:
//
//	opened ─▶ log read to its end ─▶ owned: repaired, Owner.Run ─▶ lost: drained, closed
//	             (replay)      └───▶ standby: goes on reading  ──▶ closed
//
// Metrics, labelled by group: tidemark_processor_records_total,
// tidemark_processor_changelog_acked_total, tidemark_processor_rebuilds_total,
// tidemark_processor_fenced_total, tidemark_processor_repairs_total,
// tidemark_processor_generations_total,
// tidemark_processor_inflight_records, tidemark_processor_inflight_bytes,
// tidemark_processor_input_lag_records (also by partition),
// tidemark_store_flush_seconds.
package gokakit
