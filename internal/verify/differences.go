package verify

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tidemark/tidemark/topology"
)

// Difference is one thing that is not as it must be.
type Difference struct {
	Class  Class  `json:"class"`
	Kind   string `json:"kind,omitempty"`
	Target string `json:"target,omitempty"`
	User   string `json:"user,omitempty"`  // of a relation
	State  string `json:"state,omitempty"` // whose count, or the fact's
	// The sides of a count, or the versions of a relation.
	Sides  *Sides `json:"sides,omitempty"`
	Reason string `json:"reason"`
	// Proven is true when the difference is a fault whatever is under way.
	Proven bool `json:"proven"`
}

// Sides are the four counts of one target and state.
type Sides struct {
	Facts     int64 `json:"facts"`
	Relations int64 `json:"relations"`
	Buckets   int64 `json:"buckets"`
	Displayed int64 `json:"displayed"`
}

func (s Sides) equal() bool { return s == Sides{s.Facts, s.Facts, s.Facts, s.Facts} }

// largest is the largest distance between two sides.
func (s Sides) largest() int64 {
	all := []int64{s.Facts, s.Relations, s.Buckets, s.Displayed}
	return slices.Max(all) - slices.Min(all)
}

// reason says at which steps of the way a count changed.
func (s Sides) reason() string {
	var steps []string
	step := func(name string, from, to int64, whence string) {
		if to != from {
			steps = append(steps, fmt.Sprintf("%s %+d against %s", name, to-from, whence))
		}
	}
	step("projected relations", s.Facts, s.Relations, "facts")
	step("buckets", s.Relations, s.Buckets, "relations")
	step("displayed", s.Buckets, s.Displayed, "buckets")
	return strings.Join(steps, ", ")
}

// Totals sums up one kind's state over all targets.
type Totals struct {
	Kind  string `json:"kind"`
	State string `json:"state"`
	// Hidden is true of those that risk or policy hides, which the state's own
	// total has, too.
	Hidden bool `json:"hidden,omitempty"`
	Sides
}

// result is what a comparison has found.
type result struct {
	totals      []Totals
	targets     int64
	relations   int64
	counts      map[Class]int64 // all differences
	proven      int64
	unproven    int64
	differences []Difference // counts first; at most so many per class
}

// compare finds all differences and describes at most examples per class.
func (c *Comparison) compare(examples int) result {
	tallies := c.tally()
	found := &c.found
	differing := map[targetKey][numbers]bool{}
	for key, t := range tallies {
		c.compareTarget(key, t, found, differing)
	}
	for key, b := range c.buckets {
		compareBucket(key, b, found)
	}
	for key, r := range c.relations {
		compareRelation(key, r, found)
		if c.listings != nil {
			compareListing(key, r, c.listings[key], found)
		}
	}
	out := result{targets: int64(len(tallies)), relations: int64(len(c.relations)), counts: map[Class]int64{}, totals: totals(tallies)}
	c.describeCounts(&out, tallies, differing, examples)
	c.describeTargets(&out, found, examples)
	c.describeBuckets(&out, found, examples)
	c.describeRelations(&out, found, examples)
	if found.unread > 0 {
		var ds []Difference
		for _, text := range found.texts[:min(len(found.texts), examples)] {
			ds = append(ds, Difference{Class: Unreadable, Reason: text, Proven: true})
		}
		out.add(Unreadable, found.unread, found.unread, ds)
	}
	return out
}

func (r *result) add(c Class, all, proven int64, described []Difference) {
	if all == 0 {
		return
	}
	r.counts[c] += all
	r.proven += proven
	r.unproven += all - proven
	r.differences = append(r.differences, described...)
}

// tally sums the sides per target; it also counts the relations of each bucket.
func (c *Comparison) tally() map[targetKey]*[numbers]Sides {
	tallies := map[targetKey]*[numbers]Sides{}
	of := func(key targetKey) *[numbers]Sides {
		t, ok := tallies[key]
		if !ok {
			t = new([numbers]Sides)
			tallies[key] = t
		}
		return t
	}
	for key, b := range c.buckets {
		b.relations = [numbers]int32{}
		c.buckets[key] = b
	}
	for key, r := range c.relations {
		t := of(targetKey{key.target, key.kind})
		for s, n := range each(topology.Counted(r.factState, r.factHiding.by())) {
			t[s].Facts += n
		}
		projected := topology.Counted(r.projectedState, r.projectedHiding.by())
		if projected == (topology.Counts{}) {
			continue
		}
		at := bucketKey{key.target, r.vbucket, key.kind}
		b := c.buckets[at]
		for s, n := range each(projected) {
			t[s].Relations += n
			b.relations[s] += int32(n)
		}
		c.buckets[at] = b
	}
	for key, b := range c.buckets {
		t := of(targetKey{key.target, key.kind})
		for s, n := range each(b.count) {
			t[s].Buckets += n
		}
	}
	for key, d := range c.displays {
		t := of(key)
		for s, n := range each(d.count) {
			t[s].Displayed += n
		}
	}
	return tallies
}

func totals(tallies map[targetKey]*[numbers]Sides) []Totals {
	var sums [4][numbers]Sides
	for key, t := range tallies {
		for s := range numbers {
			sum := &sums[key.kind][s]
			sum.Facts += t[s].Facts
			sum.Relations += t[s].Relations
			sum.Buckets += t[s].Buckets
			sum.Displayed += t[s].Displayed
		}
	}
	var out []Totals
	for _, k := range topology.Kinds() {
		for s := range numbers {
			if s == active || s == disliked && k == topology.Like || sums[k][s] != (Sides{}) {
				out = append(out, Totals{k.String(), stateName(k, s), s == riskHidden || s == policyHidden, sums[k][s]})
			}
		}
	}
	return out
}

func stateName(k topology.Kind, s int) string {
	switch s {
	case disliked:
		return topology.Disliked.String()
	case riskHidden:
		return k.Active().String() + " hidden by risk"
	case policyHidden:
		return k.Active().String() + " hidden by policy"
	}
	return k.Active().String()
}

func (c *Comparison) compareTarget(key targetKey, t *[numbers]Sides, found *findings, differing map[targetKey][numbers]bool) {
	for s := range numbers {
		if !t[s].equal() {
			d := differing[key]
			d[s] = true
			differing[key] = d
		}
	}
	d, ok := c.displays[key]
	if ok && d.count != d.parts {
		found.target(DisplayPartials, key)
	}
	if !d.count.Possible() {
		found.target(Negative, key)
	}
}

// compareBucket checks the identity within the table (H1): the bucket's count
// is that of its relations.
func compareBucket(key bucketKey, b bucket, found *findings) {
	for s, n := range each(b.count) {
		if n != int64(b.relations[s]) {
			found.bucket(Bucket, key)
		}
	}
	if !b.count.Possible() {
		found.bucket(Negative, key)
	}
}

func compareRelation(key relationKey, r relation, found *findings) {
	switch {
	case r.projected < r.fact:
		found.relation(RelationBelow, key)
	case r.projected > r.fact:
		found.relation(RelationAbove, key)
	case r.projectedState != r.factState || r.projectedHiding != r.factHiding:
		found.relation(RelationState, key)
	}
}

// count names one of the four-sided comparisons.
type count struct {
	key   targetKey
	state int
}

// describeCounts shows the largest differences first.
func (c *Comparison) describeCounts(out *result, tallies map[targetKey]*[numbers]Sides, differing map[targetKey][numbers]bool, examples int) {
	var all, proven int64
	var shown []count
	before := func(a, b count) bool {
		if d := tallies[a.key][a.state].largest() - tallies[b.key][b.state].largest(); d != 0 {
			return d > 0
		}
		return strings.Compare(c.targetName(a.key), c.targetName(b.key)) < 0 || a.key == b.key && a.state < b.state
	}
	for key, d := range differing {
		for s := range numbers {
			if !d[s] {
				continue
			}
			all++
			shown = keepFirst(shown, count{key, s}, examples, before)
			if sides := tallies[key][s]; sides.Relations != sides.Buckets {
				proven++
			}
		}
	}
	var described []Difference
	for _, a := range shown {
		sides := tallies[a.key][a.state]
		described = append(described, Difference{
			Class: Count, Kind: a.key.kind.String(), Target: c.targets.texts[a.key.target], State: stateName(a.key.kind, a.state),
			Sides: &sides, Reason: sides.reason(), Proven: sides.Relations != sides.Buckets,
		})
	}
	out.add(Count, all, proven, described)
}

// targetName orders targets.
func (c *Comparison) targetName(k targetKey) string {
	return k.kind.String() + ":" + c.targets.texts[k.target]
}

// firstOf gives the first keys by name.
func firstOf[K comparable](keys map[K]struct{}, most int, name func(K) string) []K {
	var first []K
	for k := range keys {
		first = keepFirst(first, k, most, func(a, b K) bool { return name(a) < name(b) })
	}
	return first
}

// keepFirst puts k into its place of the first keys, at most so many.
func keepFirst[K any](first []K, k K, most int, before func(a, b K) bool) []K {
	if len(first) == most && (most == 0 || !before(k, first[most-1])) {
		return first
	}
	at, _ := slices.BinarySearchFunc(first, k, func(a, b K) int {
		if before(a, b) {
			return -1
		}
		return 1
	})
	first = slices.Insert(first, at, k)
	return first[:min(len(first), most)]
}

func (c *Comparison) describeTargets(out *result, found *findings, examples int) {
	for _, class := range slices.Sorted(maps.Keys(found.targets)) {
		keys := found.targets[class]
		var described []Difference
		for _, k := range firstOf(keys, examples, c.targetName) {
			d := c.displays[k]
			described = append(described, Difference{
				Class: class, Kind: k.kind.String(), Target: c.targets.texts[k.target], Proven: true,
				Reason: fmt.Sprintf("display table, seq %d: %v; the parts sum up to %v", d.seq, d.count, d.parts),
			})
		}
		out.add(class, int64(len(keys)), int64(len(keys)), described)
	}
}

func (c *Comparison) describeBuckets(out *result, found *findings, examples int) {
	name := func(k bucketKey) string {
		return fmt.Sprintf("%s:%04x", c.targetName(targetKey{k.target, k.kind}), k.vbucket)
	}
	for _, class := range slices.Sorted(maps.Keys(found.buckets)) {
		keys := found.buckets[class]
		var described []Difference
		for _, k := range firstOf(keys, examples, name) {
			b := c.buckets[k]
			described = append(described, Difference{
				Class: class, Kind: k.kind.String(), Target: c.targets.texts[k.target], Proven: true,
				Reason: fmt.Sprintf("virtual bucket %d, seq %d: %v; its relations are %v", k.vbucket, b.seq, b.count, relationCounts(b)),
			})
		}
		out.add(class, int64(len(keys)), int64(len(keys)), described)
	}
}

func (c *Comparison) describeRelations(out *result, found *findings, examples int) {
	for _, class := range slices.Sorted(maps.Keys(found.relations)) {
		keys := found.relations[class]
		var described []Difference
		for _, k := range firstOf(keys, examples, func(k relationKey) string { return c.named(k).Key() }) {
			r := c.relations[k]
			described = append(described, Difference{
				Class: class, Kind: k.kind.String(), Target: c.targets.texts[k.target], User: c.users.texts[k.user],
				State: stateText(r.factState), Reason: c.relationReason(class, k), Proven: !class.lag(),
			})
		}
		all, proven := int64(len(keys)), int64(len(keys))
		if class.lag() {
			proven = 0
		}
		out.add(class, all, proven, described)
	}
}

func relationCounts(b bucket) topology.Counts {
	n := b.relations
	return topology.Counts{Raw: int64(n[active]), Disliked: int64(n[disliked]), RiskHidden: int64(n[riskHidden]), PolicyHidden: int64(n[policyHidden])}
}

func (c *Comparison) named(k relationKey) topology.Relation {
	return topology.Relation{Kind: k.kind, User: c.users.texts[k.user], Target: c.targets.texts[k.target]}
}

func stateText(s topology.State) string {
	if s == 0 {
		return "none"
	}
	return s.String()
}

func (c *Comparison) relationReason(class Class, k relationKey) string {
	r := c.relations[k]
	sides := fmt.Sprintf("the fact is version %d %s%s, the projection version %d %s%s",
		r.fact, stateText(r.factState), r.factHiding, r.projected, stateText(r.projectedState), r.projectedHiding)
	if r.factHiding.by() == r.projectedHiding.by() && r.factHiding != r.projectedHiding {
		sides += ", for another reason"
	}
	if c.listings != nil {
		sides += ", " + c.listings[k].String()
	}
	switch class {
	case Conflict:
		return "stands twice, with two contents for one version or as two facts: " + sides
	case Misplaced:
		return fmt.Sprintf("found in virtual bucket %d, or in a reverse shard or partition, that is not its own: %s", r.vbucket, sides)
	}
	return sides
}
