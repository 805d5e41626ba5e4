package topology

import (
	"fmt"
	"strings"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Reading is what a reader of a stream can rely on, beside the topic and the
// schema. The pages of docs and the AsyncAPI document say it from here; the
// texts are Markdown.
type Reading struct {
	WrittenBy  string
	Keys       []KeyForm
	Order      string // of a partition's records
	Duplicates string // what tells copies apart
	Stands     string // of a table: which of a key's records counts
	Headers    []Header
}

// KeyForm is one form that a stream's keys have.
type KeyForm struct {
	Of      string // whose key it is
	Pattern string // regular expression that Go and ECMAScript read alike, unanchored
	Example string
}

// Header is a record header that some records of a stream have.
type Header struct{ Name, Meaning string }

// replayed marks a record that was set aside and sent again.
var replayed = Header{"tidemark-replay", "the record was set aside and is sent again; its id in `tidemark quarantine list`"}

// Parts of key patterns; see key.go.
const (
	patternID  = `(?:[^%:|~\x00-\x1f\x7f]|%[0-9A-F]{2})+`
	patternHex = `[0-9a-f]{4}`
)

func patternKinds() string {
	var names []string
	for _, k := range Kinds() {
		names = append(names, k.String())
	}
	return "(?:" + strings.Join(names, "|") + ")"
}

func patternRelation() string { return patternKinds() + ":" + patternID + ":" + patternID }

func patternOnPartition(rest string) string { return patternHex + `\|` + rest }

// The keys' examples are those of one relation, counted in bucket 03d1 on
// partition 1, and of shard 3.
var exampleRelation = Relation{Kind: Like, User: "u7", Target: "V9001"}

func countedKeys() []KeyForm {
	return []KeyForm{
		{"a relation", patternOnPartition(patternOnPartition(patternRelation())), CountedKey(1, 0x3d1, exampleRelation)},
		{"a shard's watermark", patternOnPartition("~watermark:" + patternHex), WatermarkKey(1, 3)},
	}
}

func likerKeys() []KeyForm {
	at := &tidemarkv1.ReversePlacement{Generation: 1, ReverseShard: 12, Partition: 3}
	return []KeyForm{
		{"a relation", strings.Repeat(patternHex+`\|`, 3) + patternRelation(), LikerKey(at, exampleRelation.Key())},
		{"a shard's watermark", patternOnPartition("~watermark:" + patternHex), WatermarkKey(3, 3)},
	}
}

func countKeys() []KeyForm {
	return []KeyForm{
		{"a target", patternKinds() + ":" + patternID, TargetKey(Like, "V9001")},
		{"progress, by display and count partition", patternOnPartition("~progress:" + patternHex), ProgressKey(0, 5)},
	}
}

// Reading says how the stream is read. A stream without one is a mistake of
// this package, which a test finds.
func (s Stream) Reading() Reading {
	switch s.Name {
	case CDC:
		return Reading{
			WrittenBy: "the emitter of `emitters/cdc`, or Debezium in its place; `tidemark gaps heal` and `tidemark quarantine replay` write single records again",
			Keys: []KeyForm{
				{"a relation", patternRelation(), exampleRelation.Key()},
				{"a seal", "seal:[0-9]+", "seal:12"},
				{"a seal's proof", "proof:[0-9]+", "proof:12"},
			},
			Order:      "commit order of the shard, a transaction's rows together. Healed and replayed records stand out of that order",
			Duplicates: "by `after.id`, the outbox id, per shard. A restart repeats a stretch from the confirmed position on; the first copies stand in commit order",
			Headers: []Header{
				{"tidemark-heal", "the record heals a named gap; `shard:seal` of the gap"},
				replayed,
			},
		}
	case PrivacyEvents:
		return Reading{
			WrittenBy: "the services that own accounts, videos and blocks; `tidemark privacy publish`",
			Keys: []KeyForm{
				{"an account", "account:" + patternID, AccountKey("u7")},
				{"a video", "video:" + patternID, VideoKey("V9001")},
				{"a block, by blocker and blocked", "block:" + patternID + ":" + patternID, BlockKey("u7", "u8")},
			},
			Order:      "none is needed: what is not above the stored version changes nothing",
			Duplicates: "by `version` per subject",
			Headers:    []Header{replayed},
		}
	case IntakeTable:
		return Reading{
			WrittenBy: "intake",
			Keys: []KeyForm{
				{"a shard's ledger", patternOnPartition("~ledger"), LedgerKey(3)},
				{"a part of a suspicion", patternOnPartition("~suspicion:[0-9a-f]{16}:" + patternHex), SuspicionKey(3, 12, 0)},
			},
			Order:      "per key rising, but for what a paused owner of the partition adds late",
			Duplicates: "rows may come again when a new owner takes over",
			Stands:     "of a ledger the highest `revision`; of a suspicion the one that is `recorded`, if there is one",
		}
	case Facts:
		return Reading{
			WrittenBy:  "intake",
			Keys:       []KeyForm{{"a relation", patternOnPartition(patternRelation()), OnPartition(3, exampleRelation.Key())}},
			Order:      "commit order of the source shard, but for copies and for what a gap had lost, which comes when it is healed",
			Duplicates: "by `relation_version` per relation: what is not higher than the version a reader has is old news, whatever else it says. After a restart of intake a stretch comes again byte for byte, after one of cdc with another `cdc_offset`",
		}
	case BucketChanges:
		return Reading{
			WrittenBy:  "intake",
			Keys:       countedKeys(),
			Order:      "per relation in version order (first copies), since a relation stays in one bucket; per shard, a watermark stands behind every change that came before its seal",
			Duplicates: "by `relation_version` per relation, and by `seal` per shard. Copies of a paused intake may come late",
			Headers:    []Header{replayed},
		}
	case ProjectionTable:
		return Reading{
			WrittenBy:  "the projection",
			Keys:       append(countedKeys(), KeyForm{"the partition's checkpoint", patternOnPartition("~checkpoint"), CheckpointKey(1)}),
			Order:      "per key rising, but for what a paused owner of the partition adds late and for repairs, which write an older record again byte for byte",
			Duplicates: "by what stands",
			Stands:     "of a relation the highest `version`; of a watermark the highest `seal`; of a checkpoint the highest `changelog_offset`. A bucket's counts are those with the highest `bucket.seq` over all records of its target and virtual bucket, whichever relation they are of",
		}
	case LikerChanges:
		return Reading{
			WrittenBy:  "intake",
			Keys:       likerKeys(),
			Order:      "per relation in version order (first copies), since a relation stays in one reverse shard of a generation; per shard, a watermark stands behind every change that came before its seal",
			Duplicates: "by `relation_version` per relation, and by `seal` per shard. Copies of a paused intake may come late",
			Headers:    []Header{replayed},
		}
	case LikersTable:
		return Reading{
			WrittenBy:  "likers",
			Keys:       append(likerKeys(), KeyForm{"the partition's owner, where heads of hot lists are kept", patternOnPartition("~claim"), ClaimKey(3)}),
			Order:      "per key rising, but for what a paused owner of the partition adds late and for repairs, which write an older record again byte for byte",
			Duplicates: "by what stands",
			Stands:     "of a relation the highest `version`; of a watermark the highest `seal`; of the owner the highest `number`. A relation that ended keeps its row, with `current_liked_at_us` 0",
		}
	case PartialCounts:
		return Reading{
			WrittenBy:  "the projection's flusher, at most every `refresh_interval` per target",
			Keys:       countKeys(),
			Order:      "per count partition, progress stands behind every partial count that it includes, on each display partition",
			Duplicates: "by `partition` and `seq`: of each count partition the highest `seq` stands, within the highest `generation`; equal seqs have equal counts. A target's count is the sum over its count partitions, never the last record",
			Headers:    []Header{replayed},
		}
	case DisplayTable:
		return Reading{
			WrittenBy:  "display",
			Keys:       countKeys(),
			Order:      "per key rising, but for what a paused owner of the partition adds late and for repairs. Per count partition, progress stands behind the snapshots that include it",
			Duplicates: "by what stands",
			Stands:     "the highest `seq` of the row's body, `snapshot.seq` or `progress.seq`",
		}
	case CacheTasks:
		return Reading{
			WrittenBy: "the keeper of cachefloor while it rebuilds a generation, and query processes that did not find a relation in the cache",
			Keys: []KeyForm{
				{"a relation", patternOnPartition(patternRelation()), OnPartition(3, exampleRelation.Key())},
				{"a user's relations of a kind", patternOnPartition(patternKinds() + ":" + patternID), OnPartition(3, RelationsKey(Like, exampleRelation.User))},
				{"a generation's begin or end", patternOnPartition("~generation:[0-9a-f]{16}"), CacheGenerationKey(3, 7)},
			},
			Order:      "a generation's begin stands before the relations that its rebuilding hands over",
			Duplicates: "harmless: a relation by `generation` and `version`, a generation by its number; a user's are brought to the cache once more",
		}
	case CacheFloorTable:
		return Reading{
			WrittenBy: "cachefloor",
			Keys: []KeyForm{
				{"a relation in a generation", patternOnPartition(patternOnPartition(patternRelation())), FloorKey(3, 7, exampleRelation.Key())},
				{"the generations that the partition writes", patternOnPartition("~live"), LiveKey(3)},
				{"the partition's owner", patternOnPartition("~claim"), ClaimKey(3)},
			},
			Order:      "per key rising, but for what a paused owner of the partition adds late and for repairs, which write an older record again byte for byte",
			Duplicates: "by what stands",
			Stands:     "of a relation the highest `generation`, and of that the highest `version`; of the live generations the highest `revision`; of the owner the highest `number`",
		}
	case Quarantine:
		return Reading{
			WrittenBy:  "intake, projection, likers, display, cachefloor and privacy",
			Keys:       []KeyForm{{"the original record, cut to 4 KiB, with a `~` in front if it names a partition", "", QuarantineKey(OnPartition(3, exampleRelation.Key()))}},
			Order:      "none over origins",
			Duplicates: "by `topic`, `partition` and `offset`: a second look at the same record writes the same bytes",
		}
	}
	return Reading{}
}

// Kept says how long the stream's records stay.
func (s Stream) Kept() string {
	if s.Table {
		return "compacted: of each key at least the newest record, for ever"
	}
	return "for the setting `retention`, 7 days by default; not compacted"
}

// Protobuf tells whether Value is the name of a protobuf message.
func (s Stream) Protobuf() bool { return strings.HasPrefix(s.Value, "tidemark.v1.") }

// Guide says in Markdown who writes and reads the stream and what a reader can
// rely on.
func (s Stream) Guide() string {
	r := s.Reading()
	var b strings.Builder
	line := func(head, text string) {
		if text != "" {
			fmt.Fprintf(&b, "- **%s**: %s.\n", head, text)
		}
	}
	line("Written by", r.WrittenBy)
	line("Read by", s.For)
	var keys []string
	for _, k := range r.Keys {
		keys = append(keys, fmt.Sprintf("`%s` (%s)", k.Example, k.Of))
	}
	line("Key", strings.Join(keys, ", "))
	line("Partition", s.PlacedBy)
	line("Kept", s.Kept())
	line("Order", r.Order)
	line("Duplicates", r.Duplicates)
	line("What stands", r.Stands)
	var headers []string
	for _, h := range r.Headers {
		headers = append(headers, fmt.Sprintf("`%s` (%s)", h.Name, h.Meaning))
	}
	line("Headers", strings.Join(headers, ", "))
	if s.Protobuf() {
		line("Value", "protobuf `"+s.Value+"`")
	} else {
		line("Value", s.Value)
	}
	return b.String()
}
