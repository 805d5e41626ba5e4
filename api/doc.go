// Package api is tidemark over HTTP: commands that set a relation, look-ups of
// operations, batch queries of relations with counts, and a target's count.
//
//	client ──▶ Server ──▶ API.Handler ──▶ commands ──▶ relations.Store
//	                      trace, metrics   queries  ──▶ relations.Store, views.Display
//	                      panics, limits
//	                      identity (Verifier)
//
// RegisterCommands and RegisterQueries add the two halves apart, so that a
// process may serve only one of them. docs/api.md is the reader's manual.
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
package api
