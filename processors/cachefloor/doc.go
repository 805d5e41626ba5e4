// Package cachefloor keeps the relation cache in Redis, from a durable version
// floor that stands before it: what Redis has forgotten, this has not (E2).
//
//	facts ─────────┐
//	cache-tasks ─▶ Apply ─▶ cachefloor table: what each live generation holds of a relation at least
//	                            │ acked
//	                            ▼
//	                          Redis: one script, which takes the named generation and no lower version
//	                            │ written
//	                            ▼
//	                     the input's offset is committed
//
// Redis is written from a row of the table only, after the row's changelog
// record is acked, and before the input's offset is committed: whatever is
// killed in between is done again, and nothing that comes late, twice or out of
// order brings a lower version back, also not into an empty Redis (I3, I8). A
// reader that did not find a relation hands in what it read from the source; the
// floor judges it like any other record, so that the old version of a slow reader
// comes to nothing.
//
// A reader that found no relation hands in the user. What the floor of an active
// generation has of him is all that he has, so Redis is told it together with the
// mark that nothing is missing (completion).
//
// The floor is kept per generation of the cache: a new one begins empty, since it
// must take what the old one has, and two rows of a relation suffice, because
// only the active generation and the one being rebuilt are ever written
// (topology.FloorKey).
//
// The keeper (keeper.go and internal/cachekeeper; one process at a time) leads generations through their
// lives, which stand in the control database: it begins one when there is none or
// when Redis has lost the active one, stamps it into Redis, has every partition
// write it, reads every relation from the shards and hands it over, waits until
// all of it and of the facts up to then is in Redis, compares, and activates it by
// CAS.
//
// While Redis does not answer, nothing is committed and the group's lag grows:
// the facts wait in Kafka, and readers read the source.
//
// Metrics: tidemark_cachefloor_quarantined_total{reason},
// tidemark_cachefloor_written_total, tidemark_cachefloor_completed_total,
// tidemark_cachefloor_dropped_total,
// tidemark_cachefloor_write_errors_total, tidemark_cachefloor_write_seconds,
// tidemark_cachefloor_rebuilt_relations_total, tidemark_cachefloor_losses_total,
// tidemark_cache_hints_total{result} (in query processes).
package cachefloor
