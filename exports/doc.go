// Package exports writes who was in the counted state to a target at one
// barrier: one row for each relation that was active there, no other, once.
// docs/operating.md tells how to run and resume one, docs/privacy.md what it may
// show.
//
//	Open  the owners of the reverse index get to know the barrier's id
//	Take  the barrier, a seal of every shard with that id
//	Walk  the owners tell the list as it was when the barrier passed them
//	        │ newest first, without accounts that the rules of one revision hide
//	        ▼
//	      part-000001, part-000002, ... ; each whole, on disk, and in the journal
//	Prove the change feed was whole up to the barrier: every proof agrees, no gap
//	        ▼
//	      manifest.json, last; the journal goes
//
// A directory without a manifest is no export. One that was interrupted has a
// journal: the same call goes on behind the last whole part, at the same
// barrier, if the owners still know it. If they do not, it says so, and begins
// anew at another one.
//
// The checksum is of the rows, not of the files: the same list in another format
// has the same one.
package exports
