package verify

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

const worldPartitions = 4

// world is a right history: facts, the projection table's log as one owner
// writes it, and the display table.
type world struct {
	manifest topology.Manifest
	facts    map[topology.Relation]Fact
	log      []record
	displays map[string]*tidemarkv1.DisplaySnapshot
	shown    []shown // every snapshot that was in displays before
	buckets  map[bucketName]*tidemarkv1.BucketCount
	newest   map[topology.Relation]int // index in log
}

type record struct {
	partition int
	key       string
	row       *tidemarkv1.ProjectionRow
}

// shown is a record of the display table.
type shown struct {
	key      string
	snapshot *tidemarkv1.DisplaySnapshot
}

type bucketName struct {
	kind    topology.Kind
	target  string
	vbucket uint32
}

func newWorld() *world {
	return &world{
		manifest: topology.NewManifest(1, 1, 1, topology.HashContract{Algorithm: topology.AlgorithmXXH64, Encoding: topology.EncodingLP1, Modulus: 8}, worldPartitions),
		facts:    map[topology.Relation]Fact{}, displays: map[string]*tidemarkv1.DisplaySnapshot{},
		buckets: map[bucketName]*tidemarkv1.BucketCount{}, newest: map[topology.Relation]int{},
	}
}

// set makes a transition, unless the relation is in the state already.
func (w *world) set(r topology.Relation, s topology.State) {
	old, ok := w.facts[r]
	if !ok {
		old = Fact{r, r.Kind.Initial(), 0}
	}
	if old.State == s {
		return
	}
	w.facts[r] = Fact{r, s, old.Version + 1}
	place := w.manifest.Place(r)
	name := bucketName{r.Kind, r.Target, place.VirtualBucket}
	b := &tidemarkv1.BucketCount{}
	if old := w.buckets[name]; old != nil {
		b = proto.CloneOf(old)
	}
	counts := [states]*int64{&b.Active, &b.Disliked}
	if at := slot(old.State); at >= 0 {
		*counts[at]--
	}
	if at := slot(s); at >= 0 {
		*counts[at]++
	}
	b.Seq++
	w.buckets[name] = b
	w.newest[r] = len(w.log)
	w.log = append(w.log, record{int(place.Partition), topology.CountedKey(int(place.Partition), int(place.VirtualBucket), r), relationRow(s, old.Version+1, place.RouteEpoch, b)})
	w.display(r.Kind, r.Target)
}

func relationRow(s topology.State, version, epoch uint64, b *tidemarkv1.BucketCount) *tidemarkv1.ProjectionRow {
	return &tidemarkv1.ProjectionRow{Body: &tidemarkv1.ProjectionRow_Relation{Relation: &tidemarkv1.ProjectedRelation{
		State: tidemarkv1.State(s), Version: version, RouteEpoch: epoch, Bucket: b,
	}}}
}

// display shows a target as it is counted now.
func (w *world) display(k topology.Kind, target string) {
	key := topology.TargetKey(k, target)
	old := w.displays[key]
	if old != nil {
		w.shown = append(w.shown, shown{key, old})
	}
	s := &tidemarkv1.DisplaySnapshot{Seq: old.GetSeq() + 1}
	for p := range worldPartitions {
		part := &tidemarkv1.PartialCount{Partition: uint32(p)}
		for name, b := range w.buckets {
			if name.kind == k && name.target == target && w.manifest.Routes[name.vbucket].Partition == p {
				part.Active += b.Active
				part.Disliked += b.Disliked
			}
		}
		s.Partials = append(s.Partials, part)
		s.Active += part.Active
		s.Disliked += part.Disliked
	}
	w.displays[key] = s
}

// displayRecords are the newest snapshots, and before and after them what
// stood there earlier.
func (w *world) displayRecords() []shown {
	records := slices.Clone(w.shown)
	for _, key := range slices.Sorted(maps.Keys(w.displays)) {
		records = append(records, shown{key, w.displays[key]})
	}
	return append(records, w.shown...)
}

func (s shown) marshal() ([]byte, error) {
	return (&tidemarkv1.DisplayRow{Body: &tidemarkv1.DisplayRow_Snapshot{Snapshot: s.snapshot}}).MarshalVT()
}

// compare is what verification says about the world.
func (w *world) compare(t require) result {
	c := NewComparison(&w.manifest.Contract, 1000)
	for _, r := range w.log {
		value, err := r.row.MarshalVT()
		if err == nil {
			err = c.Projection(r.partition, r.key, value)
		}
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	for _, f := range w.facts {
		if err := c.Fact(f); err != nil {
			t.Fatalf("%v", err)
		}
	}
	for _, s := range w.displayRecords() {
		value, err := s.marshal()
		if err == nil {
			err = c.Display(0, s.key, value)
		}
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	return c.compare(20)
}

type require interface {
	Fatalf(format string, args ...any)
}

func drawWorld(t *rapid.T) *world {
	w := newWorld()
	for range rapid.IntRange(1, 60).Draw(t, "commands") {
		r := topology.Relation{
			Kind:   rapid.SampledFrom(topology.Kinds()).Draw(t, "kind"),
			User:   fmt.Sprint("u", rapid.IntRange(0, 4).Draw(t, "user")),
			Target: fmt.Sprint("V", rapid.IntRange(0, 2).Draw(t, "target")),
		}
		w.set(r, drawState(t, r.Kind))
	}
	return w
}

func drawState(t *rapid.T, k topology.Kind) topology.State {
	all := []topology.State{k.Initial(), k.Active()}
	if k == topology.Like {
		all = append(all, topology.Disliked)
	}
	return rapid.SampledFrom(all).Draw(t, "state")
}

// other is another state of the same kind.
func other(s topology.State) topology.State {
	if s == s.Kind().Initial() {
		return s.Kind().Active()
	}
	return s.Kind().Initial()
}

func sortedRelations(w *world) []topology.Relation {
	var all []topology.Relation
	for r := range w.facts {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b topology.Relation) int { return strings.Compare(a.Key(), b.Key()) })
	return all
}

// haunt appends what paused owners write late: copies of earlier records, in
// any order. They never change what stands.
func (w *world) haunt(t *rapid.T) {
	for range rapid.IntRange(0, 10).Draw(t, "zombies") {
		if len(w.log) > 0 {
			w.log = append(w.log, w.log[rapid.IntRange(0, len(w.log)-1).Draw(t, "copy")])
		}
	}
}

// I3: a right history is equal, also with zombies' records in the log and
// after compaction has dropped any record that is not its key's winner.
func TestI3RightHistoriesAreEqual(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)
		w.haunt(t)
		if rapid.Bool().Draw(t, "compacted") {
			winners := map[string]int{}
			for i, r := range w.log {
				if have, ok := winners[r.key]; !ok || w.log[have].row.GetRelation().Version <= r.row.GetRelation().Version {
					winners[r.key] = i
				}
			}
			var kept []record
			for i, r := range w.log {
				if winners[r.key] == i {
					kept = append(kept, r)
				}
			}
			w.log = kept
		}
		if got := w.compare(t); len(got.counts) != 0 {
			t.Fatalf("differences %v: %+v", got.counts, got.differences)
		}
	})
}

// Any single corruption of a right history is reported.
func TestAnyCorruptionIsReported(t *testing.T) {
	corruptions := []struct {
		name  string
		class Class
		do    func(t *rapid.T, w *world, r topology.Relation)
	}{
		{"fact lost", RelationAbove, func(_ *rapid.T, w *world, r topology.Relation) { delete(w.facts, r) }},
		{"fact ahead", RelationBelow, func(_ *rapid.T, w *world, r topology.Relation) {
			f := w.facts[r]
			w.facts[r] = Fact{r, other(f.State), f.Version + 1}
		}},
		{"fact set back", RelationAbove, func(_ *rapid.T, w *world, r topology.Relation) {
			f := w.facts[r]
			w.facts[r] = Fact{r, other(f.State), f.Version - 1}
		}},
		{"fact in another state", RelationState, func(_ *rapid.T, w *world, r topology.Relation) {
			f := w.facts[r]
			w.facts[r] = Fact{r, other(f.State), f.Version}
		}},
		{"fact never seen", RelationBelow, func(_ *rapid.T, w *world, r topology.Relation) {
			r.User = "nobody"
			w.facts[r] = Fact{r, r.Kind.Active(), 1}
		}},
		{"projected relation lost", RelationBelow, func(_ *rapid.T, w *world, r topology.Relation) {
			key := w.log[w.newest[r]].key
			w.log = slices.DeleteFunc(w.log, func(x record) bool { return x.key == key })
		}},
		{"newest record lost", RelationBelow, func(_ *rapid.T, w *world, r topology.Relation) {
			w.log = slices.Delete(w.log, w.newest[r], w.newest[r]+1)
		}},
		{"projected version ahead", RelationAbove, func(_ *rapid.T, w *world, r topology.Relation) {
			w.change(r, func(p *tidemarkv1.ProjectedRelation) { p.Version++ })
		}},
		{"projected state wrong", RelationState, func(_ *rapid.T, w *world, r topology.Relation) {
			w.change(r, func(p *tidemarkv1.ProjectedRelation) {
				p.State = tidemarkv1.State(other(topology.State(p.State)))
			})
		}},
		{"bucket counts one more", Bucket, func(t *rapid.T, w *world, r topology.Relation) {
			by := rapid.SampledFrom([]int64{-1000, -1, 1, 1000}).Draw(t, "by")
			w.changeBucket(r, func(b *tidemarkv1.BucketCount) { b.Active += by })
		}},
		{"bucket counts a dislike more", Bucket, func(_ *rapid.T, w *world, r topology.Relation) {
			w.changeBucket(r, func(b *tidemarkv1.BucketCount) { b.Disliked++ })
		}},
		{"two bucket counts of one seq", Conflict, func(_ *rapid.T, w *world, r topology.Relation) {
			i := w.newestOfBucket(r)
			forged := proto.CloneOf(w.log[i].row)
			forged.GetRelation().Bucket.Active += 5
			w.log = append(w.log, record{w.log[i].partition, w.log[i].key, forged})
		}},
		{"two states of one version", Conflict, func(_ *rapid.T, w *world, r topology.Relation) {
			x := w.log[w.newest[r]]
			forged := proto.CloneOf(x.row)
			p := forged.GetRelation()
			p.State = tidemarkv1.State(other(topology.State(p.State)))
			w.log = append(w.log, record{x.partition, x.key, forged})
		}},
		{"another bucket", Misplaced, func(_ *rapid.T, w *world, r topology.Relation) {
			x := &w.log[w.newest[r]]
			v := int(w.manifest.Place(r).VirtualBucket)
			x.key = topology.CountedKey(x.partition, (v+1)%8, r)
		}},
		{"another partition", Misplaced, func(_ *rapid.T, w *world, r topology.Relation) {
			x := &w.log[w.newest[r]]
			x.partition = (x.partition + 1) % worldPartitions
		}},
		{"displayed one more", Count, func(t *rapid.T, w *world, r topology.Relation) {
			s := w.displays[topology.TargetKey(r.Kind, r.Target)]
			by := rapid.SampledFrom([]int64{-1, 1, 12345}).Draw(t, "by")
			s.Active += by
			s.Partials[0].Active += by
		}},
		{"displayed without its parts", DisplayPartials, func(_ *rapid.T, w *world, r topology.Relation) {
			w.displays[topology.TargetKey(r.Kind, r.Target)].Active++
		}},
		{"display of an unknown target", Count, func(_ *rapid.T, w *world, r topology.Relation) {
			w.displays[topology.TargetKey(r.Kind, "V99")] = &tidemarkv1.DisplaySnapshot{Active: 1, Seq: 1, Partials: []*tidemarkv1.PartialCount{{Active: 1}}}
		}},
	}
	for _, c := range corruptions {
		t.Run(c.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := drawWorld(t)
				relations := sortedRelations(w)
				if len(relations) == 0 {
					t.Skip("nothing happened")
				}
				c.do(t, w, rapid.SampledFrom(relations).Draw(t, "victim"))
				got := w.compare(t)
				if got.counts[c.class] == 0 {
					t.Fatalf("reported %v, not %s: %+v", got.counts, c.class, got.differences)
				}
				described := slices.ContainsFunc(got.differences, func(d Difference) bool { return d.Class == c.class && d.Reason != "" })
				if !described || got.proven+got.unproven != sum(got.counts) {
					t.Fatalf("%v, %d proven and %d not: %+v", got.counts, got.proven, got.unproven, got.differences)
				}
			})
		})
	}
}

func sum(counts map[Class]int64) (n int64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// change alters a relation's newest record, leaving its bucket.
func (w *world) change(r topology.Relation, f func(*tidemarkv1.ProjectedRelation)) {
	x := &w.log[w.newest[r]]
	x.row = proto.CloneOf(x.row)
	f(x.row.GetRelation())
}

// newestOfBucket is the record that has the newest count of r's bucket.
func (w *world) newestOfBucket(r topology.Relation) int {
	v := w.manifest.Place(r).VirtualBucket
	at := -1
	for i, x := range w.log {
		_, vbucket, other, err := topology.ParseCountedKey(x.key)
		if err == nil && other.Kind == r.Kind && other.Target == r.Target && uint32(vbucket) == v {
			at = i
		}
	}
	return at
}

func (w *world) changeBucket(r topology.Relation, f func(*tidemarkv1.BucketCount)) {
	x := &w.log[w.newestOfBucket(r)]
	x.row = proto.CloneOf(x.row)
	f(x.row.GetRelation().Bucket)
}

// config makes the world readable as Run reads it.
func (w *world) config() Config {
	return Config{
		Facts: func(_ context.Context, yield func(Fact) error) error {
			for _, r := range sortedRelations(w) {
				if err := yield(w.facts[r]); err != nil {
					return err
				}
			}
			return nil
		},
		Projection: func(_ context.Context, each func(int, string, []byte) error) error {
			for _, r := range w.log {
				value, err := r.row.MarshalVT()
				if err == nil {
					err = each(r.partition, r.key, value)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		Display: func(_ context.Context, each func(int, string, []byte) error) error {
			for _, s := range w.displayRecords() {
				value, err := s.marshal()
				if err == nil {
					err = each(0, s.key, value)
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		Contract: &w.manifest.Contract,
	}
}
