// Package display keeps what is shown: per target the newest partial count of
// each count partition and their sum, and per count partition how far its
// partial counts have come.
//
//	partial-counts ─▶ Apply ─▶ display table ─▶ views
//	                    └─▶ quarantine
//
// A partial count is absolute and numbered by the changelog of its partition,
// so that the newest of each partition is the whole truth about it: partials
// may come twice, late and in any order, and the counts come out the same.
//
// Apply is a function of the row and the record alone. A snapshot's time is
// the newest of its partials' times, never this processor's.
//
// A count below zero is never shown, and never turned into zero: the partial
// is quarantined as negative_count, what was shown before stays, and its
// bucket is to be rebuilt (I6, C6).
//
// With a Redis, each owner of a partition also brings acked rows there, beside the
// handler (follower): a Redis that is away makes what is in it late, and nothing
// else. The keeper leads generations of these copies through their lives; a new one
// is copied from the table (E4).
//
// Metrics:
//
//	tidemark_display_cache_written_total        values that Redis was told
//	tidemark_display_cache_errors_total         writes that are made again
//	tidemark_display_cache_waiting              changed targets that Redis has not taken yet
//	tidemark_display_cache_overflows_total      times that they were too many to be kept
//	tidemark_display_cache_losses_total         active generations that Redis has lost
//	tidemark_display_updates_total{result}      taken, ignored, quarantined
//	tidemark_display_quarantined_total{reason}  reasons of the contract, in lower case
package display
