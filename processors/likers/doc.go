// Package likers keeps the reverse index: who liked a target, favorited it, or
// follows them, newest first.
//
//	liker-changes ─▶ Apply ─▶ likers table (state, version, currentLikedAt of each relation, for ever)
//	                              │ acked, then on disk in one batch
//	                              ▼
//	                   ordered rows  generation|kind:target|reverse shard / likedAt descending, user
//	                              │
//	                              ▼
//	                            Page
//
// A relation that has ended stays in the table, as a state: no late lower
// version brings the user back (I14). The ordered row of a relation follows
// from its value alone, so a value that replaces another takes exactly that
// one's row away. Where a relation lies is frozen in the reverse generation
// (topology.ReverseGeneration), which every row carries.
//
// Page reads one reverse shard of one target from one snapshot of the
// partition's store, together with the source watermarks that it includes; List
// reads all shards of the target that the partition has. They lag behind the
// acked table by at most about Config.ShowInterval. A new owner answers nothing
// before it shows all that was acked when it took over.
//
// Server answers List for other processes (tidemark.v1.LikersService); the
// group's member data tells them where (Config.Advertise).
//
// With Config.Heads the owner also keeps the newest entries of hot lists in Redis
// (E5): partHeads, one part for each list and partition, from snapshots of the
// index. head is the pure part of it, heat decides what is hot, NewHeadsKeeper
// leads generations.
//
// Metrics: tidemark_likers_quarantined_total{reason},
// tidemark_likers_page_seconds, tidemark_likers_not_ready_total,
// tidemark_likers_heads, tidemark_likers_head_writes_total{result},
// tidemark_likers_head_fills_total, tidemark_likers_head_losses_total.
package likers
