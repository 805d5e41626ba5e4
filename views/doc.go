// Package views is what query services import: current copies of tidemark's
// tables, typed, each answer with what it includes and how old it is.
//
//	d, err := views.NewDisplay(views.DisplayConfig{...})
//	go d.Run(ctx)
//	counts, err := d.Counts(topology.Like, []string{"V9001", "V9002"})
//
// A view that has not read its table to the end answers ErrRecovering, never
// 0 (bug log G19). One that has lost Kafka goes on answering; its answers'
// Staleness grows.
//
// # What a count includes
//
// Count.AsOf names, per source shard, a seal: every change of the shard before
// it is in the count. It is the least seal that any count partition has told
// the target's display partition, whether or not the partition has ever spoken
// of the target: one that has not has nothing to add up to there. A shard
// about which a count partition has said nothing yet is missing, since what is
// not known is not made up.
//
// # The cache
//
// Decoded snapshots are cached. The table's update is visible to reads before
// its key is invalidated, and the cache throws a value away that was loaded
// while its key was invalidated. So whatever order a load and an update take,
// no older value stays: either the load began after the invalidation and read
// the new value, or it is thrown away and done again.
//
// # Redis
//
// Cached answers counts from Redis, where display brings them: for a process without
// a view, or while its view recovers. It says no more than the counts include, and
// does not know which targets have none.
//
// # Lists
//
//	l, err := views.NewLikers(views.LikersConfig{...})
//	page, err := l.Page(ctx, views.LikersQuery{Kind: topology.Like, Target: "V9001", Limit: 20})
//
// Likers keeps no copy: it asks the processes that own the reverse index's
// partitions. A partition that nobody serves makes a page late and then a
// NotReadyError, never a list without it.
//
// Metrics:
//
//	tidemark_view_counts_total                  counts answered
//	tidemark_view_loads_total                   of them read from the table, not the cache
//	tidemark_count_reads_total{result}          counts asked of Cached: view, local, redis, unknown
//	tidemark_count_reads_ahead_total            of them hot ones, read anew before their copy was too old
//	tidemark_view_as_of_seal{shard}             seal that every count includes
//	tidemark_view_as_of_lag_seconds{shard}      age of that seal
//	tidemark_view_likers_page_seconds           time to answer a page of a list
//	tidemark_view_likers_asked_total            questions to owners of partitions
//	tidemark_view_likers_heads_total{result}    pages from heads in Redis, or why not
//	tidemark_view_likers_errors_total{reason}   pages that were not answered
package views
