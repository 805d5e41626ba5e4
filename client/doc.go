// Package client sets relations over tidemark's HTTP API for an app: a click
// is taken at once, shown at once, and reaches the server whatever the network
// and the app's process do meanwhile.
//
//	Set ─▶ queue of the relation ─▶ journal ─▶ Set returns; View shows the new state
//	       intent, one in flight        │
//	                                    └─▶ one goroutine per unsettled relation
//	                                        PUT, the same operation id until decided ─▶ settled by version
//
// What holds:
//
//   - A relation has at most one command in flight. While it is, further calls
//     of Set change only what shall be in the end: of ten clicks the last one
//     counts, and no more than two commands are sent.
//   - A command is in the journal, on disk, before it is sent the first time,
//     and keeps its operation id, state and base version through every retry
//     and restart: it is decided once however often it arrives (I2).
//   - An answer changes the confirmed state only with a version that is not
//     lower than the one known, so that answers and queries that overtake each
//     other never bring an older state back (A3).
//   - What nobody can decide within Config.Lifetime is given up with
//     ErrExpired. It is shorter than the server remembers operations, so that
//     no retry is decided a second time as a new command.
//   - The order of clicks is that of one Client. Among devices the server's
//     versions are the order: a command that another device overtook is
//     refused as stale, and Config.Conflict says what becomes of it.
//
// Two processes cannot have one journal. Without a journal everything holds as
// long as the process lives.
package client
