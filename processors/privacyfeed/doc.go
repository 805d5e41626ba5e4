// Package privacyfeed brings the events of stream privacy-events to where the
// privacy rules are asked:
//
//	privacy-events ──decode──▶ Apply: the control database (package privacy), versions guard
//	                  └─▶ quarantine, with reason and origin (B5)
//
// An offset is committed only when the database has the event, or stream
// quarantine the record. What is seen again after a crash, twice, or late is
// not above the stored version and changes nothing, so owners of a partition
// may overlap, and the order of events does not matter.
//
// While the database is away the group stands, with its reason in readiness,
// and nothing is lost for as long as the topic keeps it. Lists are not shown
// then either (package privacy).
//
// Metrics, beside those of internal/gokakit for group privacy, whose
// tidemark_processor_input_lag_records says how much is not applied yet:
//
//	tidemark_privacy_events_total{result}        applied, passed (old or a duplicate), quarantined
//	tidemark_privacy_quarantined_total{reason}   set aside
//	tidemark_privacy_apply_lag_seconds           age of the newest event when it was applied
package privacyfeed
