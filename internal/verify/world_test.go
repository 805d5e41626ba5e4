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

	reverse    topology.ReverseGeneration
	likes      []likerRecord             // the likers table's log
	newestLike map[topology.Relation]int // index in likes
	now        int64
}

// likerRecord is a record of the likers table.
type likerRecord struct {
	partition int
	key       string
	row       *tidemarkv1.LikerRow
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
		reverse: topology.NewReverseGeneration(1, worldPartitions, 16), newestLike: map[topology.Relation]int{}, now: 1_000_000,
	}
}

// set makes a transition, unless the relation is in the state already.
func (w *world) set(r topology.Relation, s topology.State, h topology.Hiding) {
	old, ok := w.facts[r]
	if !ok {
		old = Fact{Relation: r, State: r.Kind.Initial()}
	}
	if old.State == s {
		return
	}
	if s != r.Kind.Active() {
		h = topology.Hiding{}
	}
	w.now++
	w.write(old, Fact{r, s, old.Version + 1, w.now, h})
}

// hide hides a relation, or shows it.
func (w *world) hide(r topology.Relation, h topology.Hiding) {
	old := w.facts[r]
	if next := old; old.State == r.Kind.Active() && old.Hiding != h {
		next.Version, next.Hiding = old.Version+1, h
		w.write(old, next)
	}
}

// write brings a fact to every place.
func (w *world) write(old, f Fact) {
	r := f.Relation
	w.facts[r] = f
	w.list(r, f.State, f.Version, f.ChangedAtUs)
	place := w.manifest.Place(r)
	name := bucketName{r.Kind, r.Target, place.VirtualBucket}
	b := &tidemarkv1.BucketCount{}
	if old := w.buckets[name]; old != nil {
		b = proto.CloneOf(old)
	}
	counts := topology.CountsOfBucket(b).Plus(topology.Counted(f.State, f.Hiding.By)).Minus(topology.Counted(old.State, old.Hiding.By))
	b.Active, b.RiskHidden, b.PolicyHidden, b.Disliked = counts.Raw, counts.RiskHidden, counts.PolicyHidden, counts.Disliked
	b.Seq++
	w.buckets[name] = b
	w.newest[r] = len(w.log)
	w.log = append(w.log, record{int(place.Partition), topology.CountedKey(int(place.Partition), int(place.VirtualBucket), r), relationRow(f, place.RouteEpoch, b)})
	w.display(r.Kind, r.Target)
}

// list writes a relation to the reverse index.
func (w *world) list(r topology.Relation, s topology.State, version uint64, at int64) {
	place := w.reverse.Place(r)
	w.newestLike[r] = len(w.likes)
	if s != r.Kind.Active() {
		at = 0
	}
	w.likes = append(w.likes, likerRecord{int(place.Partition), topology.LikerKey(place, r.Key()), likerRow(s, version, at)})
}

func likerRow(s topology.State, version uint64, likedAt int64) *tidemarkv1.LikerRow {
	return &tidemarkv1.LikerRow{Body: &tidemarkv1.LikerRow_Relation{Relation: &tidemarkv1.LikerRelation{
		State: tidemarkv1.State(s), Version: version, CurrentLikedAtUs: likedAt,
	}}}
}

func relationRow(f Fact, epoch uint64, b *tidemarkv1.BucketCount) *tidemarkv1.ProjectionRow {
	return &tidemarkv1.ProjectionRow{Body: &tidemarkv1.ProjectionRow_Relation{Relation: &tidemarkv1.ProjectedRelation{
		State: tidemarkv1.State(f.State), Version: f.Version, RouteEpoch: epoch, Bucket: b,
		Hidden: tidemarkv1.Hidden(f.Hiding.By), HiddenReason: f.Hiding.Reason,
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
				part.RiskHidden += b.RiskHidden
				part.PolicyHidden += b.PolicyHidden
				part.Disliked += b.Disliked
			}
		}
		s.Partials = append(s.Partials, part)
		s.Active += part.Active
		s.RiskHidden += part.RiskHidden
		s.PolicyHidden += part.PolicyHidden
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
	c.CompareLists(w.reverse)
	if err := w.eachLike(c.Likers); err != nil {
		t.Fatalf("%v", err)
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
		if rapid.IntRange(0, 3).Draw(t, "hides") == 0 {
			w.hide(r, drawHiding(t))
			continue
		}
		w.set(r, drawState(t, r.Kind), drawHiding(t))
	}
	return w
}

func drawHiding(t *rapid.T) topology.Hiding {
	by := rapid.SampledFrom([]topology.Hidden{topology.Shown, topology.HiddenByRisk, topology.HiddenByPolicy}).Draw(t, "hidden by")
	if by == topology.Shown {
		return topology.Hiding{}
	}
	return topology.Hiding{By: by, Reason: rapid.SampledFrom([]string{"farm", "rules.25"}).Draw(t, "reason")}
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
			w.likes = append(w.likes, w.likes[rapid.IntRange(0, len(w.likes)-1).Draw(t, "liker copy")])
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

func (w *world) eachLike(each func(int, string, []byte) error) error {
	for _, r := range w.likes {
		value, err := r.row.MarshalVT()
		if err == nil {
			err = each(r.partition, r.key, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
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
		Likers:   func(_ context.Context, each func(int, string, []byte) error) error { return w.eachLike(each) },
		Reverse:  w.reverse,
		Contract: &w.manifest.Contract,
	}
}
