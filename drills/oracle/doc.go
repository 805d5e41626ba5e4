// Package oracle decides whether anything went wrong: while a drill runs it
// watches every topic, and when all faults are healed it compares every count
// with the facts. It shares no state with what it judges; the broker's topics
// and offsets are all it sees.
//
// While running, per class of finding:
//
//	early-commit       an offset was committed although an earlier record has
//	                   no effect in the changelog and is not set aside (I17)
//	commit-back        a committed offset went back
//	sequence-conflict  one sequence number with two contents: a partial count,
//	                   a displayed count
//	display-back       the display table took a sequence number that it never
//	                   had, behind a higher one
//	negative           a count below zero (I6)
//	unfenced           two writers went on side by side in one changelog
//
// When quiet:
//
//	stale-last           a table key's newest record is not its winner, and
//	                     compaction would keep the wrong one
//	quarantine-missing   a poisoned record is not set aside, or for another reason
//	quarantine-extra     a sound record is set aside
//	count, bucket, ...   the classes of internal/verify
//
// A lower sequence number behind a higher one is what a paused owner appends
// late. It is counted, not a finding, as long as its content is what that
// number always had: readers keep the highest.
package oracle
