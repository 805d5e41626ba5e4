// Package overload keeps a process useful when more is asked of it than it can
// do: what it has begun it finishes in time, and what it cannot do in time it
// refuses at once.
//
//	request ──▶ Guard: so many at a time per shard, the rest 503 at once
//	               │ in flight, latency
//	               ▼
//	          Controller, every second: State.Next(pressure) ──▶ Level
//	          (pools, counts, cache press it, too: Signal)
//	               ▲                                              │
//	          an operator's level                                 ▼
//	               limits tightened · reads bounded · queries refused
//
// Levels come and go one at a time, in order, each only after the pressure has
// lasted, so that none flaps (decision 21). Commands and their outbox are kept
// longest.
//
// Metrics:
//
//	tidemark_overload_level                       0 normal to 5 refuse
//	tidemark_overload_pressure{signal}            by what the process is pressed; 1 is as much as it should bear
//	tidemark_overload_in_flight{sort}             commands (of the fullest shard) and queries being served
//	tidemark_overload_refused_total{sort}         commands and queries that were refused at once
package overload
