// Package control is the control database: the shard map, the bucket spaces,
// projection generations, route manifests and the pointers to what is active.
// Together with the relation shards it is the only thing that cannot be
// rebuilt.
//
// Bootstrap fills an empty database once. After that the stored contracts
// decide, not the code's defaults: code that would place a user or a relation
// elsewhere, and configuration that names fewer shards or partitions than the
// contracts use, are refused by name (I15, D1). Contracts and sealed manifests
// are immutable in the database itself, by triggers.
package control
