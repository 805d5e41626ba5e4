package topology

import (
	"errors"
	"fmt"
	"strings"
)

// Keys are readable in any Kafka tool:
//
//	relation          like:u7:V9001
//	target            like:V9001
//	on a partition    003f|like:u7:V9001        (partition 63)
//	counted relation  003f|01a2|like:u7:V9001   (partition 63, virtual bucket 418)
//	reverse index     0003|0001|000c|like:u7:V9001  (partition 3, generation 1, reverse shard 12)
//	about a partition 003f|~watermark:0002
//	version floor     0003|0001|like:u7:V9001   (partition 3, an odd cache generation)
//
// Ids are percent-escaped (%, :, |, ~, control characters), so the separators
// are unambiguous and no relation key begins with ~.

const hexDigits = "0123456789abcdef"

func mustEscape(c byte) bool {
	return c == '%' || c == ':' || c == '|' || c == '~' || c < 0x20 || c == 0x7f
}

func appendEscaped(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; mustEscape(c) {
			b = append(b, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
		} else {
			b = append(b, c)
		}
	}
	return b
}

// Escape is how an id stands in keys.
func Escape(id string) string {
	for i := range len(id) {
		if mustEscape(id[i]) {
			return string(appendEscaped(nil, id))
		}
	}
	return id
}

// Unescape reads an escaped id; only the canonical form is accepted.
func Unescape(s string) (string, error) { return unescape(s) }

func unescape(s string) (string, error) {
	if strings.IndexByte(s, '%') < 0 {
		for i := range len(s) {
			if mustEscape(s[i]) {
				return "", errors.New("a reserved character is not escaped")
			}
		}
		return s, nil
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			if mustEscape(s[i]) {
				return "", errors.New("a reserved character is not escaped")
			}
			b = append(b, s[i])
			continue
		}
		if i+2 >= len(s) {
			return "", errors.New("an escape is cut short")
		}
		hi := strings.IndexByte("0123456789ABCDEF", s[i+1])
		lo := strings.IndexByte("0123456789ABCDEF", s[i+2])
		if hi < 0 || lo < 0 || !mustEscape(byte(hi<<4|lo)) {
			return "", errors.New("an escape is not canonical")
		}
		b = append(b, byte(hi<<4|lo))
		i += 2
	}
	return string(b), nil
}

// AppendKey appends the relation's key, kind:user:target.
func (r Relation) AppendKey(b []byte) []byte {
	b = append(b, r.Kind.String()...)
	b = appendEscaped(append(b, ':'), r.User)
	return appendEscaped(append(b, ':'), r.Target)
}

// RelationsKey names a user's relations of a kind, kind:user. With a colon behind
// it, it is what the keys of all of them begin with.
func RelationsKey(k Kind, user string) string {
	return TargetKey(k, user) // of another name space, in the same form
}

// Key is the relation's key, also called aggregate key.
func (r Relation) Key() string { return string(r.AppendKey(nil)) }

// ParseRelationKey reads a relation key; only the canonical form is accepted,
// so that equal relations have equal keys.
func ParseRelationKey(key string) (Relation, error) {
	parts := strings.Split(key, ":")
	if len(parts) != 3 {
		return Relation{}, fmt.Errorf("relation key has %d parts, not 3", len(parts))
	}
	k, err := ParseKind(parts[0])
	if err != nil {
		return Relation{}, err
	}
	user, err := unescape(parts[1])
	if err != nil {
		return Relation{}, fmt.Errorf("user part: %w", err)
	}
	target, err := unescape(parts[2])
	if err != nil {
		return Relation{}, fmt.Errorf("target part: %w", err)
	}
	r := Relation{Kind: k, User: user, Target: target}
	return r, r.Check()
}

// TargetKey is the key of a target's count, kind:target.
func TargetKey(k Kind, target string) string {
	return string(appendEscaped(append([]byte(k.String()), ':'), target))
}

// ParseTargetKey reads kind:target.
func ParseTargetKey(key string) (Kind, string, error) {
	kind, rest, ok := strings.Cut(key, ":")
	if !ok {
		return 0, "", errors.New("target key has no colon")
	}
	k, err := ParseKind(kind)
	if err != nil {
		return 0, "", err
	}
	target, err := unescape(rest)
	if err != nil {
		return 0, "", err
	}
	return k, target, CheckID(target)
}

// MaxPartitions is the highest partition count that a key can name.
const MaxPartitions = 1 << 16

func appendHex4(b []byte, n int) []byte {
	return append(b, hexDigits[n>>12&15], hexDigits[n>>8&15], hexDigits[n>>4&15], hexDigits[n&15])
}

// Hex4 is a number below MaxPartitions as keys write it.
func Hex4(n int) string { return string(appendHex4(nil, n)) }

func parseHex4(s string) (int, bool) {
	if len(s) < 4 {
		return 0, false
	}
	n := 0
	for i := range 4 {
		d := strings.IndexByte(hexDigits, s[i])
		if d < 0 {
			return 0, false
		}
		n = n<<4 | d
	}
	return n, true
}

// OnPartition gives key a prefix that puts it on a chosen partition.
func OnPartition(partition int, key string) string {
	var b [4]byte
	return string(appendHex4(b[:0], partition)) + "|" + key // one allocation
}

// CutPartition splits a key made by OnPartition.
func CutPartition(key string) (partition int, rest string, ok bool) {
	p, ok := parseHex4(key)
	if !ok || len(key) < 5 || key[4] != '|' {
		return 0, key, false
	}
	return p, key[5:], true
}

// CountedKey is the key of a relation in bucket-changes and in the projection
// table: partition | virtual bucket | relation.
func CountedKey(partition, vbucket int, r Relation) string {
	b := append(appendHex4(make([]byte, 0, 32+len(r.User)+len(r.Target)), partition), '|')
	b = append(appendHex4(b, vbucket), '|')
	return string(r.AppendKey(b))
}

// CountedKeyOf is CountedKey by the relation's key.
func CountedKeyOf(partition, vbucket int, relationKey string) string {
	var buf [9]byte
	b := append(appendHex4(buf[:0], partition), '|')
	return string(appendHex4(b, vbucket)) + "|" + relationKey // one allocation
}

// ParseCountedKey reads a CountedKey.
func ParseCountedKey(key string) (partition, vbucket int, r Relation, err error) {
	partition, rest, ok := CutPartition(key)
	if !ok {
		return 0, 0, r, errors.New("counted key names no partition")
	}
	vbucket, rest, ok = CutPartition(rest)
	if !ok {
		return 0, 0, r, errors.New("counted key names no virtual bucket")
	}
	r, err = ParseRelationKey(rest)
	return partition, vbucket, r, err
}

// WatermarkKey is the key of shard's watermark on a partition.
func WatermarkKey(partition, shard int) string {
	return OnPartition(partition, "~watermark:"+string(appendHex4(nil, shard)))
}

// ParseWatermarkKey reads a WatermarkKey; ok is false for any other key.
func ParseWatermarkKey(key string) (partition, shard int, ok bool) {
	return parseAbout(key, "~watermark:")
}

// CheckpointKey is the key of a count partition's partial-count checkpoint.
func CheckpointKey(partition int) string { return OnPartition(partition, "~checkpoint") }

// ProgressKey is the key of a count partition's progress on a display
// partition.
func ProgressKey(displayPartition, countPartition int) string {
	return OnPartition(displayPartition, "~progress:"+string(appendHex4(nil, countPartition)))
}

// ParseProgressKey reads a ProgressKey; ok is false for any other key.
func ParseProgressKey(key string) (displayPartition, countPartition int, ok bool) {
	return parseAbout(key, "~progress:")
}

// FloorKey is the key of a relation's version floor in a cache generation. The
// generation after the next takes the same key over: only the active one and the
// one that is being rebuilt are ever written.
func FloorKey(partition int, generation uint64, relationKey string) string {
	return CountedKeyOf(partition, int(generation%2), relationKey)
}

// LiveKey is the key of the cache generations that a partition writes.
func LiveKey(partition int) string { return OnPartition(partition, "~live") }

// ClaimKey is the key of what says who took a partition over last.
func ClaimKey(partition int) string { return OnPartition(partition, "~claim") }

// CacheGenerationKey is the key of a cache generation's begin or end.
func CacheGenerationKey(partition int, generation uint64) string {
	return OnPartition(partition, fmt.Sprintf("~generation:%016x", generation))
}

// LedgerKey is the key of what intake remembers of a shard; its partition is
// the shard's.
func LedgerKey(shard int) string { return OnPartition(shard, "~ledger") }

// SuspicionKey is the key of a part of what a seal's proof raised.
func SuspicionKey(shard int, seal uint64, part int) string {
	return OnPartition(shard, fmt.Sprintf("~suspicion:%016x:%04x", seal, part))
}

func parseAbout(key, name string) (partition, number int, ok bool) {
	partition, rest, ok := CutPartition(key)
	if !ok || !strings.HasPrefix(rest, name) || len(rest) != len(name)+4 {
		return 0, 0, false
	}
	number, ok = parseHex4(rest[len(name):])
	return partition, number, ok
}
