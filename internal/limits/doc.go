// Package limits bounds what one client may ask for (A8): token buckets by
// account, device and address, of which a request takes one token each or none,
// and a bucket for the effective transitions of each relation.
//
//	request ──▶ Limiter.Take ──▶ Redis: one script over the caller's buckets
//	                    └─ away ─▶ memory of this process, of a fixed size
//
// No bucket alone decides whom a limit hits: accounts can be registered in
// numbers, and behind one address may be a campus. Addresses of gateways, as
// the configuration lists them, have wider buckets.
//
// What holds, as long as one Redis is there: of each bucket never more than its
// burst and its rate since then, for all processes together. It does not hold
// that long when Redis is lost: buckets are full in a new one, and while it is
// away each process counts for itself, from full buckets on, in LocalEntries
// buckets. What Redis evicts is full again, too.
//
// Keys are hashes: no account, device or address stands in Redis, in memory or in
// a log. An IPv6 address counts by its /64, which is what one subscriber has.
//
// Metrics:
//
//	tidemark_limits_refused_total{sort,limit}  sort commands or queries with limit account, device or address; sort transitions with limit relation
//	tidemark_limits_local_total                decisions that were made without Redis though there is one
package limits
