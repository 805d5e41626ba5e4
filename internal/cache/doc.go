// Package cache is tidemark's use of Redis: the layout of its keys, and a
// client that never believes a server whose memory may have gone back.
//
//	like:relation:g<generation>:{user|bucket}   hash: target => state|version|generation
//	like:count:g<generation>:{target|vb-N}      a bucket's count
//	like:count:view:g<generation>:{target}      a displayed count
//	count:progress:g<generation>:{partition}    how far a display partition's counts have come
//	like:head:g<generation>:{target|rR|pP}      sorted set: a partition's part of a list's newest entries
//	cache:relations:g<generation>:stamp:{slot}  the generation's sentinel
//
// (favorite and follow instead of like likewise). Ids are escaped as in Kafka
// keys, braces too, so that the hash tag is what stands between the first
// braces, and nothing of a generation or of a target alone decides a slot.
//
// Redis accelerates and never decides (I8): what is not there, what is late and
// what cannot be told is read from where it is committed. Four things keep a
// wrong entry from being believed:
//
//   - Every entry belongs to a generation (a row of the control database), by
//     its key and in its value.
//   - A generation is stamped into every slot when it is begun, with the
//     identity of the deployment and of the server's history: its replication
//     id, which changes at a restart and when a replica is promoted. A write is
//     one script that first compares the stamp, and a read is followed by the
//     stamp in the same pipeline. A flushed server has no stamp; one that came
//     back from a snapshot, or a replica that took over without the last writes,
//     has another history than the stamp says: both answer ErrStamp and nothing
//     else, until a new generation is stamped. A slot that moves between nodes
//     of a cluster brings its stamp along and is stamped anew by Restamp.
//   - Of two owners of a partition, a paused one and its successor, the earlier
//     one is refused wherever the later one has written (Owner): the stamp of a
//     slot also holds who wrote there last.
//   - Relation keys are written by RelationWriter alone, and the linter lets
//     only processors/cachefloor make one; counts by CountWriter and
//     processors/display. Outside this package nobody can name
//     a relation key (Key), and go-redis is imported nowhere else.
//
// To add a sort of entry: a Family if it is rebuilt on its own, a constructor of
// its Key in keys.go, a Script for its writes (Client.Run), a Read for its reads
// (Client.Read).
package cache
