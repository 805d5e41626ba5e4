// Package load sends a realistic stream of commands to tidemark's HTTP API and
// measures the answers. It is an open loop: every command has a time at which
// a user would have sent it, and its latency counts from that time, whatever
// the server did to the commands before it (no coordinated omission).
//
//	generator (LIKES-1) ─┐                    ┌─▶ worker ─▶ HTTP
//	                     ├─▶ pace ─▶ relations ┼─▶ worker ─▶ HTTP ─▶ outcomes, latency
//	replay (CSV, JSONL) ─┘  due times  order   └─▶ worker ─▶ HTTP
//
// The client side of each relation behaves as the product's own clients do:
// one command undecided at a time, the version of the last answer as the next
// base version, the same operation id and the same body for every retry. A
// command that is refused because the relation has moved on without this
// client is sent again, once the client knows the relation, as a new operation.
//
// Memory is bounded: by Config.Pending commands that are due and undecided,
// Config.Relations remembered relations, and one line of a replayed file. When
// the server is slower than the rate, the schedule falls behind and the report
// says by how much; no command is dropped to keep up.
package load
