// Package api is tidemark over HTTP: commands that set a relation, look-ups of
// operations, batch queries of relations with counts, a target's count, and lists:
// what a user is in a state to, and who is in one to a target.
//
//	client ──▶ Server ──▶ API.Handler ──▶ commands ──▶ relations.Store
//	                      trace, metrics   queries  ──▶ relations.Store, views.Display
//	                      panics, limits          lists     ──▶ relations.Store, views.Likers, privacy.Store
//	                      identity (Verifier)
//
// RegisterCommands, RegisterQueries and RegisterLists add the parts apart, so
// that a process may serve only some of them. docs/api.md is the reader's
// manual.
//
// huma describes, this package decodes. Schemas, parameters and answers of
// every operation are declared to huma, which makes the OpenAPI document from
// the Go types; the requests themselves are read by the strict reader of
// json.go and checked by hand. huma's own decoding echoes values into errors,
// answers 500 to a broken chunked body, lets duplicate names through and costs
// a reflection walk per request. A differential test keeps the two in step.
//
// What a client can rely on:
//   - The user is the token's subject and nothing else (A7).
//   - state and relationVersion of a command's answer are the relation's
//     current ones, also when an old operation is retried; what that operation
//     did stands apart in operationResult (A3, I2).
//   - A count is never answered from a view that is still recovering: 503, and
//     never 0 (bug log G19).
//   - A list tells every entry that stays, and that may be shown, once, in pages
//     of any size. A part that is not ready makes it late (503), never shorter;
//     while it cannot be decided what may be shown nothing is (F3, J1).
//   - A target that is not there for the user takes no new relation, in words that
//     do not tell why (I7); the count of one that is gone is withdrawn, with its
//     reason, and comes back as it is counted when the target does (J3).
//   - Every refusal is application/problem+json (RFC 9457) with a stable type
//     and, where a field is at fault, its place. Nothing that a client can send
//     is answered 500.
//
// Metrics:
//
//	tidemark_api_request_duration_seconds{route,class}  histogram; route is the pattern, class 2xx..5xx
//	tidemark_api_requests_in_flight                     gauge
//	tidemark_api_panics_total                           handlers that panicked and were answered 500
//	tidemark_api_token_key_refreshes_total{result}      fetches of the JWKS, result ok or error
//	tidemark_api_token_keys_age_seconds                 age of the JWKS in use
//	tidemark_api_signatures_total{class,result}         signed requests, and those that lack a signature: ok, or why not
//	tidemark_cache_reads_total{result}                  relations asked for: hit, miss, late or bypass
//	tidemark_cache_fallback_refused_total               queries refused because too many waited for their shard
package api
