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
// Metrics:
//
//	tidemark_display_updates_total{result}      taken, ignored, quarantined
//	tidemark_display_quarantined_total{reason}  reasons of the contract, in lower case
package display
