package verify

// Class is a sort of difference; the package comment explains each.
type Class string

// The classes.
const (
	Count           Class = "count"
	RelationBelow   Class = "relation-below"
	RelationAbove   Class = "relation-above"
	RelationState   Class = "relation-state"
	LikerBelow      Class = "liker-below"
	LikerAbove      Class = "liker-above"
	LikerState      Class = "liker-state"
	LikerTime       Class = "liker-time"
	Bucket          Class = "bucket"
	Negative        Class = "negative"
	Conflict        Class = "conflict"
	Misplaced       Class = "misplaced"
	DisplayPartials Class = "display-partials"
	Unreadable      Class = "unreadable"
)

// lag tells whether a feed that is behind explains a difference of the class.
func (c Class) lag() bool { return c == RelationBelow || c == LikerBelow }

// findings are differences as compact keys; what they mean in words is looked
// up for the few that are shown.
type findings struct {
	relations map[Class]map[relationKey]struct{}
	buckets   map[Class]map[bucketKey]struct{}
	targets   map[Class]map[targetKey]struct{}
	texts     []string // of class Unreadable, the first maxTexts
	unread    int64
}

// maxTexts bounds what is kept of rows that cannot be read.
const maxTexts = 100

func (f *findings) text(_ Class, text string) {
	if f.unread++; len(f.texts) < maxTexts {
		f.texts = append(f.texts, text)
	}
}

func (f *findings) relation(c Class, k relationKey) { f.relations = note(f.relations, c, k) }
func (f *findings) bucket(c Class, k bucketKey)     { f.buckets = note(f.buckets, c, k) }
func (f *findings) target(c Class, k targetKey)     { f.targets = note(f.targets, c, k) }

func note[K comparable](m map[Class]map[K]struct{}, c Class, k K) map[Class]map[K]struct{} {
	if m == nil {
		m = map[Class]map[K]struct{}{}
	}
	if m[c] == nil {
		m[c] = map[K]struct{}{}
	}
	m[c][k] = struct{}{}
	return m
}
