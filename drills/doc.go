// Package drills breaks a running tidemark on purpose and proves that no count
// is wrong afterwards.
//
//	traffic ─▶ bucket-changes ─▶ members (projection, display) ─▶ tables
//	               ▲ faults          ▲ kill, pause, full disk       │
//	           faultbroker ◀──── injections ──── schedule           ▼
//	                                                             oracle ◀── facts
//
// A drill is data: a bench with its settings, and lanes of injections that run
// beside each other (catalogue.go). An injection does one sort of harm, waits
// until the system has got over it, and leaves no fault behind. What happens
// when is drawn from a seed. When every injection is done, all is healed, and
// the oracle judges.
//
// Two benches: on one, synthetic changes go straight into the projection, for
// volume; on the other everything runs, PostgreSQL and the API included, and
// commands come over HTTP (system.go).
//
// A drill that cannot fail is a defect: SelfTest switches off each mechanism
// that the counts rely on and demands that a drill notices.
package drills
