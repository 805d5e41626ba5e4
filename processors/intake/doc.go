// Package intake turns the change feed into what the rest reads. A record of
// cdc, one partition per source shard in commit order, becomes
//
//	a relation's transition ─▶ facts (same order per shard), bucket-changes (where it is
//	                           counted) and liker-changes (where the reverse index keeps it)
//	a seal                  ─▶ a watermark to every partition of bucket-changes and liker-changes
//	a seal's proof          ─▶ compared with what came; what is missing is named
//	anything else           ─▶ quarantine, with reason and origin (B5)
//
// Core.Apply is what becomes of a record, a function of the record alone; the
// ledger says, per shard, whether everything came; Intake runs both. The
// envelope is Debezium's, JSON without schemas. A scanner reads its usual shape
// at several times the speed of encoding/json, which reads every other shape
// to the same result.
//
// Metrics:
//
//	tidemark_intake_records_total{result}        change, seal, proof, quarantined
//	tidemark_intake_quarantined_total{reason}    reasons of the contract, in lower case
//	tidemark_intake_slow_decodes_total           records of an unusual shape, several times as dear
//	tidemark_intake_suspicions_total             proofs that did not agree with what came
//	tidemark_intake_verified_seal{shard}         newest seal that was compared with its proof
//	tidemark_intake_watermark_seal{shard}        newest seal that went on
//	tidemark_intake_watermark_lag_seconds{shard} age of that seal
//
// A process that no longer reads a shard keeps its last watermark: across
// processes, the highest seal and the smallest lag of a shard are the true
// ones.
package intake
