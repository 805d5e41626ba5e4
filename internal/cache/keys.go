package cache

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark/tidemark/topology"
)

// Family is a part of the cache that is lost and rebuilt on its own.
type Family string

// The families.
const (
	Relations Family = "relations" // who relates to what
	Counts    Family = "counts"    // buckets and displayed counts
	Heads     Family = "heads"     // beginnings of long lists
)

// has tells whether keys that begin so are the family's.
func (f Family) has(prefix string) bool {
	_, sort, _ := strings.Cut(prefix, ":")
	switch sort {
	case "relation":
		return f == Relations
	case "count", "count:view", "progress":
		return f == Counts
	}
	return f == Heads && !strings.HasPrefix(prefix, "cache:")
}

// Generation names one life of a family, from its rebuilding to its end.
type Generation struct {
	Family Family
	// ID counts a family's generations, from 1.
	ID uint64
	// Deployment tells deployments that share a Redis apart: only the one whose
	// stamp stands is believed. Letters, digits and dashes.
	Deployment string
	// Buckets that a user's relations are spread over, from 1; of Relations.
	Buckets int
	// Manifest of routes by which every count of the generation was counted; of
	// Counts.
	Manifest uint64
}

// Check says what is wrong with a generation.
func (g Generation) Check() error {
	switch {
	case g.ID == 0:
		return fmt.Errorf("a cache generation without a number")
	case g.Deployment == "" || strings.ContainsAny(g.Deployment, "{}| "):
		return fmt.Errorf("cache generation %d: deployment %q is no name", g.ID, g.Deployment)
	case g.Family == Relations && g.Buckets < 1:
		return fmt.Errorf("cache generation %d: %d relation buckets, not at least 1", g.ID, g.Buckets)
	case g.Family == Counts && g.Manifest == 0:
		return fmt.Errorf("cache generation %d: counts without a manifest", g.ID)
	}
	return nil
}

// Key is a key of the cache, relation keys excepted: nothing outside this
// package can make one.
type Key struct {
	name string
	slot uint16
	gen  Generation
}

// String is the key's name.
func (k Key) String() string { return k.name }

// Generation is the one that the key belongs to.
func (k Key) Generation() Generation { return k.gen }

// newKey is prefix:g<generation>:{tag}.
func (g Generation) newKey(prefix, tag string) Key {
	name := prefix + ":g" + strconv.FormatUint(g.ID, 10) + ":{" + tag + "}"
	return Key{name, slotOf(tag), g}
}

// relationKey holds a user's relations of one bucket.
func (g Generation) relationKey(kind topology.Kind, user string, bucket int) Key {
	return g.newKey(kind.String()+":relation", escape(user)+"|"+strconv.Itoa(bucket))
}

// Bucket is a part of a user's relations of a kind; see Generation.BucketOf.
type Bucket struct {
	Kind   topology.Kind
	User   string
	Number int
}

// parseRelationKey reads whose relations a key holds.
func (g Generation) parseRelationKey(key string) (b Bucket, err error) {
	name, tag, _ := strings.Cut(key, ":{")
	sort, _, _ := strings.Cut(name, ":")
	id, number, ok := strings.Cut(strings.TrimSuffix(tag, "}"), "|")
	if b.Kind, err = topology.ParseKind(sort); err == nil && ok {
		b.User, err = unescape(id)
	}
	if err == nil && ok {
		b.Number, err = strconv.Atoi(number)
	}
	if err != nil || !ok {
		return Bucket{}, fmt.Errorf("key %.60q is none of a user's relations", key)
	}
	return b, nil
}

// BucketOf is the bucket of a user's relation to target.
func (g Generation) BucketOf(target string) int {
	if g.Buckets == 1 {
		return 0
	}
	return int(xxhash.Sum64String(target) % uint64(g.Buckets))
}

// CountKey holds a target's count in one bucket. Target and bucket are in the
// tag together, so that a hot target is spread over slots.
func (g Generation) CountKey(kind topology.Kind, target string, bucket int) Key {
	return g.newKey(kind.String()+":count", escape(target)+"|vb-"+strconv.Itoa(bucket))
}

// DisplayKey holds a target's displayed count.
func (g Generation) DisplayKey(kind topology.Kind, target string) Key {
	return g.newKey(kind.String()+":count:view", escape(target))
}

// progressKey holds how far the counts of a display partition have come.
func (g Generation) progressKey(partition int) Key {
	return g.newKey("count:progress", strconv.Itoa(partition))
}

// parseCountKey reads whose count a key holds; bucket is -1 for the displayed
// one. ok is false for a display partition's progress.
func (g Generation) parseCountKey(key string) (kind topology.Kind, target string, bucket int, ok bool, err error) {
	name, tag, _ := strings.Cut(key, ":g"+strconv.FormatUint(g.ID, 10)+":{")
	sort, rest, _ := strings.Cut(name, ":")
	if rest == "progress" {
		return 0, "", 0, false, nil
	}
	id, isTag := strings.CutSuffix(tag, "}")
	bucket = -1
	if rest == "count" {
		var number string
		if id, number, isTag = strings.Cut(id, "|vb-"); isTag {
			bucket, err = strconv.Atoi(number)
		}
	}
	if err == nil {
		kind, err = topology.ParseKind(sort)
	}
	if err == nil {
		target, err = unescape(id)
	}
	if err != nil || !isTag || rest != "count" && rest != "count:view" {
		return 0, "", 0, false, fmt.Errorf("key %.60q is none of a target's count", key)
	}
	return kind, target, bucket, true, nil
}

// stampKey is the sentinel of a slot.
func (g Generation) stampKey(slot uint16) string {
	return "cache:" + string(g.Family) + ":g" + strconv.FormatUint(g.ID, 10) + ":stamp:{" + tagOfSlot(slot) + "}"
}

// escape is how an id stands in a hash tag: as in Kafka keys, braces too.
func escape(id string) string {
	id = topology.Escape(id)
	if strings.ContainsAny(id, "{}") {
		id = strings.NewReplacer("{", "%7B", "}", "%7D").Replace(id)
	}
	return id
}

func unescape(tag string) (string, error) {
	return topology.Unescape(strings.NewReplacer("%7B", "{", "%7D", "}").Replace(tag))
}
