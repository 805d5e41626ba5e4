// Package intake turns the change feed into what the rest reads. A record of
// cdc, one partition per source shard in commit order, becomes
//
//	a relation's transition ─▶ facts (same order per shard) and bucket-changes (where it is counted)
//	a seal                  ─▶ a watermark to every partition of bucket-changes
//	a seal's proof          ─▶ checked; the place where gaps will be named
//	anything else           ─▶ quarantine, with reason and origin (B5)
//
// Core.Apply is the whole decision and a function of the record alone; Intake
// runs it. The envelope is Debezium's, JSON without schemas. A scanner reads
// its usual shape at several times the speed of encoding/json, which reads
// every other shape to the same result.
//
// Metrics:
//
//	tidemark_intake_records_total{result}        change, seal, proof, quarantined
//	tidemark_intake_quarantined_total{reason}    reasons of the contract, in lower case
//	tidemark_intake_slow_decodes_total           records of an unusual shape, several times as dear
//	tidemark_intake_watermark_seal{shard}        newest seal that went on
//	tidemark_intake_watermark_lag_seconds{shard} age of that seal
//
// A process that no longer reads a shard keeps its last watermark: across
// processes, the highest seal and the smallest lag of a shard are the true
// ones.
package intake
