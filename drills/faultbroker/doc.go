// Package faultbroker is the embedded Kafka broker in a process of its own,
// which breaks on demand: it answers requests with errors, does the work and
// loses the answer, delays either, cuts connections or lets packets vanish.
// The process itself can be stopped, paused, killed and started again on its
// data directory and its port.
//
//	drill ── Client ──HTTP──▶ Serve ── faults ──▶ kfake (answers)
//	                                      └─────▶ links (connections)
//
// Faults hit the clients that are drilled, by the prefix of their client id,
// so that what feeds and watches a drill sees a sound broker.
package faultbroker
