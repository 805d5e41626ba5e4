package verify

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Fact is a relation as its shard has it.
type Fact struct {
	Relation topology.Relation
	State    topology.State
	Version  uint64
	// ChangedAtUs is the time of its last transition, in microseconds; needed
	// when lists are compared.
	ChangedAtUs int64
	Hiding      topology.Hiding
}

// Comparison takes the sides, in any order, and finds the differences.
// It is not safe for concurrent use.
type Comparison struct {
	contract  *topology.HashContract // of the bucket space; nil: buckets are not checked
	most      int
	users     ids
	targets   ids
	relations map[relationKey]relation
	reverse   *topology.ReverseGeneration // nil: lists are not compared
	listings  map[relationKey]listing
	buckets   map[bucketKey]bucket
	displays  map[targetKey]display
	found     findings
	rows      Rows
}

// Rows counts what was read.
type Rows struct {
	Facts      int64 `json:"facts"`
	Projection int64 `json:"projectionRecords"`
	Display    int64 `json:"displayRecords"`
	Likers     int64 `json:"likerRecords"`
}

// ErrTooMany says that the comparison would need more memory than allowed.
var ErrTooMany = errors.New("there are more relations than this comparison may hold")

// NewComparison makes an empty comparison of at most maxRelations relations.
// With a contract, every relation must lie in its bucket.
func NewComparison(contract *topology.HashContract, maxRelations int) *Comparison {
	return &Comparison{
		contract: contract, most: maxRelations,
		users: newIDs(), targets: newIDs(),
		relations: map[relationKey]relation{},
		buckets:   map[bucketKey]bucket{},
		displays:  map[targetKey]display{},
	}
}

// ids numbers texts, each held once.
type ids struct {
	numbers map[string]uint32
	texts   []string
}

func newIDs() ids { return ids{numbers: map[string]uint32{}} }

func (i *ids) number(text string) uint32 {
	n, ok := i.numbers[text]
	if !ok {
		text = strings.Clone(text) // not the whole key that it is part of
		n = uint32(len(i.texts))
		i.numbers[text] = n
		i.texts = append(i.texts, text)
	}
	return n
}

type relationKey struct {
	user, target uint32
	kind         topology.Kind
}

// relation is both sides of one relation; version 0 is "not seen".
type relation struct {
	fact, projected           uint64 // versions
	factState, projectedState topology.State
	vbucket                   uint16 // of the projected one
	factHiding                hiding
	projectedHiding           hiding
}

// hiding is a topology.Hiding in two bytes: who hides in the lowest two bits, a
// hash of the reason in the others.
type hiding uint16

func hidingOf(h topology.Hiding) hiding {
	if h == (topology.Hiding{}) {
		return 0
	}
	return hiding(xxhash.Sum64String(h.Reason)<<2) | hiding(h.By&3)
}

func (h hiding) by() topology.Hidden { return topology.Hidden(h & 3) }

// String follows a state.
func (h hiding) String() string {
	if h.by() == topology.Shown {
		return ""
	}
	return " hidden by " + h.by().String()
}

type targetKey struct {
	target uint32
	kind   topology.Kind
}

type bucketKey struct {
	target  uint32
	vbucket uint16
	kind    topology.Kind
}

// bucket is the newest count of a bucket, and beside it the relations that it
// should count.
type bucket struct {
	seq       uint64
	epoch     uint64
	count     topology.Counts
	relations [numbers]int32
}

// display is the newest snapshot of a target.
type display struct {
	seq   uint64
	count topology.Counts
	parts topology.Counts // sum of the partial counts
}

// The numbers of a kind that are compared, each by itself: relations in its
// counted state, those of them that risk and policy hide, and DISLIKED of a like.
const (
	active = iota
	disliked
	riskHidden
	policyHidden
	numbers
)

func each(c topology.Counts) [numbers]int64 {
	return [numbers]int64{active: c.Raw, disliked: c.Disliked, riskHidden: c.RiskHidden, policyHidden: c.PolicyHidden}
}

// Fact takes one fact. The same relation twice breaks I1.
func (c *Comparison) Fact(f Fact) error {
	c.rows.Facts++
	if err := errors.Join(f.Relation.Check(), f.Hiding.Check()); err != nil || f.State.Kind() != f.Relation.Kind {
		c.found.text(Unreadable, fmt.Sprintf("a fact of version %d in state %v is no relation", f.Version, f.State))
		return nil
	}
	if f.Version == 0 && f.State == f.Relation.Kind.Initial() {
		return nil // as good as no fact
	}
	key := c.key(f.Relation)
	r := c.relations[key]
	if r.factState != 0 {
		c.found.relation(Conflict, key)
	}
	r.fact, r.factState, r.factHiding = f.Version, f.State, hidingOf(f.Hiding)
	c.noteChange(key, f.ChangedAtUs)
	return c.put(key, r)
}

func (c *Comparison) key(r topology.Relation) relationKey {
	return relationKey{c.users.number(r.User), c.targets.number(r.Target), r.Kind}
}

func (c *Comparison) put(key relationKey, r relation) error {
	c.relations[key] = r
	if len(c.relations) > c.most {
		return fmt.Errorf("%w: %d; give it more memory and raise the bound", ErrTooMany, c.most)
	}
	return nil
}

// Projection takes one record of the projection table, from the partition
// where it stands.
func (c *Comparison) Projection(partition int, key string, value []byte) error {
	c.rows.Projection++
	var row tidemarkv1.ProjectionRow
	if value == nil || row.UnmarshalVT(value) != nil || row.Body == nil {
		c.found.text(Unreadable, fmt.Sprintf("projection table, partition %d, key %q: the value is no row", partition, clip(key)))
		return nil
	}
	projected := row.GetRelation()
	if projected == nil {
		c.aboutProjection(partition, key, &row)
		return nil
	}
	at, vbucket, r, err := topology.ParseCountedKey(key)
	state, hidden := topology.State(projected.State), topology.HidingOf(projected.Hidden, projected.HiddenReason)
	if err != nil || hidden.Check() != nil || state.Kind() != r.Kind || projected.Version == 0 || projected.Bucket == nil {
		c.found.text(Unreadable, fmt.Sprintf("projection table, partition %d, key %q: key and value are no relation", partition, clip(key)))
		return nil
	}
	k := c.key(r)
	if at != partition || (c.contract != nil && c.contract.VirtualBucket(r) != vbucket) {
		c.found.relation(Misplaced, k)
	}
	c.foldBucket(bucketKey{k.target, uint16(vbucket), r.Kind}, projected)
	return c.foldRelation(k, relation{projected: projected.Version, projectedState: state, projectedHiding: hidingOf(hidden), vbucket: uint16(vbucket)})
}

// aboutProjection checks a row that is not about a relation.
func (c *Comparison) aboutProjection(partition int, key string, row *tidemarkv1.ProjectionRow) {
	at, shard, ok := topology.ParseWatermarkKey(key)
	if w := row.GetWatermark(); w != nil {
		ok = ok && uint32(shard) == w.Shard
	} else {
		at, _, ok = topology.CutPartition(key)
		ok = ok && key == topology.CheckpointKey(at)
	}
	if !ok || at != partition {
		c.found.text(Unreadable, fmt.Sprintf("projection table, partition %d, key %q: key and value do not belong together", partition, clip(key)))
	}
}

// foldRelation keeps the highest version (I3).
func (c *Comparison) foldRelation(key relationKey, new relation) error {
	r := c.relations[key]
	switch {
	case new.projected < r.projected:
		return nil
	case new.projected == r.projected && (new.projectedState != r.projectedState || new.projectedHiding != r.projectedHiding):
		c.found.relation(Conflict, key)
	}
	r.projected, r.projectedState, r.projectedHiding, r.vbucket = new.projected, new.projectedState, new.projectedHiding, new.vbucket
	return c.put(key, r)
}

// foldBucket keeps the highest route epoch and sequence number.
func (c *Comparison) foldBucket(key bucketKey, p *tidemarkv1.ProjectedRelation) {
	old, seen := c.buckets[key]
	new := bucket{seq: p.Bucket.Seq, epoch: p.RouteEpoch, count: topology.CountsOfBucket(p.Bucket)}
	switch {
	case seen && (new.epoch < old.epoch || new.epoch == old.epoch && new.seq < old.seq):
		return
	case seen && new.epoch == old.epoch && new.seq == old.seq && new.count != old.count:
		c.found.bucket(Conflict, key)
	}
	c.buckets[key] = new
}

// Display takes one record of the display table.
func (c *Comparison) Display(partition int, key string, value []byte) error {
	c.rows.Display++
	var row tidemarkv1.DisplayRow
	if value == nil || row.UnmarshalVT(value) != nil || row.Body == nil {
		c.found.text(Unreadable, fmt.Sprintf("display table, partition %d, key %q: the value is no row", partition, clip(key)))
		return nil
	}
	if p := row.GetProgress(); p != nil {
		at, counted, ok := topology.ParseProgressKey(key)
		if !ok || at != partition || uint32(counted) != p.Partition {
			c.found.text(Unreadable, fmt.Sprintf("display table, partition %d, key %q: key and progress do not belong together", partition, clip(key)))
		}
		return nil
	}
	kind, target, err := topology.ParseTargetKey(key)
	if err != nil {
		c.found.text(Unreadable, fmt.Sprintf("display table, partition %d, key %q: the key is no target", partition, clip(key)))
		return nil
	}
	c.foldDisplay(targetKey{c.targets.number(target), kind}, row.GetSnapshot())
	return nil
}

func (c *Comparison) foldDisplay(key targetKey, s *tidemarkv1.DisplaySnapshot) {
	new := display{seq: s.Seq, count: topology.CountsOfSnapshot(s)}
	for _, p := range s.Partials {
		new.parts = new.parts.Plus(topology.CountsOfPartial(p))
	}
	old, seen := c.displays[key]
	switch {
	case seen && new.seq < old.seq:
		return
	case seen && new.seq == old.seq && new.count != old.count:
		c.found.target(Conflict, key)
	}
	c.displays[key] = new
}

// clip keeps foreign text short enough for a report.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
