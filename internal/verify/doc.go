// Package verify compares what stands in five places and says whether the
// counts and the lists are right:
//
//	facts        the relation shards                  → counts per target
//	relations    the projection table's relations     → counts per target
//	buckets      the projection table's bucket counts → sums per target
//	displayed    the display table's snapshots        → counts per target
//	lists        the likers table's relations         → who is in a list, since when
//
// Target by target and kind by kind the first four must be equal, for the counted
// state, for those of it that risk hides and that policy hides (C5), and for
// DISLIKED; and relation by relation the projection must have
// its fact's version, state and hiding, and the reverse index these and, of a relation
// that is in a list, its time. Some differences prove a fault whenever they
// are seen, since one record carries both sides or since a projection cannot
// be ahead of its facts; the others do only when the feed was quiet, and are
// "unknown" otherwise:
//
//	class             what it is                                       proof
//	count             the four counts of a target differ               when quiet; at once when the table's own two sides differ
//	relation-below    a relation's projected version is below its fact when quiet
//	relation-above    ... is above its fact, or there is no fact       at once
//	relation-state    ... is the fact's, with another state or hiding  at once
//	liker-below       the reverse index lacks a relation, or its version when quiet
//	liker-above       ... has a version above its fact's, or no fact   at once
//	liker-state       ... has the fact's version with another state    at once
//	liker-time        ... has another liked-at time than the fact      at once
//	bucket            a bucket's count is not that of its relations    at once
//	negative          a count is below zero, or hides more than there  at once
//	                  is (C6, C5)
//	conflict          one version or sequence number, two contents     at once
//	misplaced         a key in a bucket or partition not its own (I11) at once
//	display-partials  a displayed count is not the sum of its parts    at once
//	unreadable        a row of a table that is none                    at once
//
// For "at once" to hold, Run fixes how far it reads the tables before it reads
// the facts.
//
// Of several records of one key the one with the highest version stands, not
// the last: what a paused owner appends late never replaces it. Of a bucket,
// the highest route epoch and sequence number; of a display row, the highest
// sequence number.
//
// Memory: ids are held once, relations and buckets by exact keys of a few
// bytes: about 250 bytes per relation when every bucket has one relation and
// ids are short, so that ten million relations need under 3 GB; about 130 more
// when lists are compared.
// Config.MaxRelations bounds it.
package verify
