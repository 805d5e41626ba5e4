// Package projection counts: it keeps, per relation, the version and state
// that it has counted, and per virtual bucket the counts after each event, and
// emits each target's absolute partial count.
//
//	bucket-changes ─▶ Apply ─▶ projection table (relation + its bucket, one record)
//	                               │ acked
//	                               ▼
//	                            flusher ─▶ partial-counts, checkpoint
//
// The changelog record is the unit of truth: it holds the relation, the bucket
// after the event and the receipt, so the three change together or not at all
// (C2). Apply is a function of the table and the record alone.
//
// Metrics: tidemark_projection_quarantined_total{reason},
// tidemark_projection_partials_total, tidemark_projection_dirty_targets.
package projection
