package verify

import (
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

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
			w.facts[r] = Fact{r, other(f.State), f.Version + 1, f.ChangedAtUs + 1, topology.Hiding{}}
		}},
		{"fact set back", RelationAbove, func(_ *rapid.T, w *world, r topology.Relation) {
			f := w.facts[r]
			w.facts[r] = Fact{r, other(f.State), f.Version - 1, f.ChangedAtUs - 1, topology.Hiding{}}
		}},
		{"fact in another state", RelationState, func(_ *rapid.T, w *world, r topology.Relation) {
			f := w.facts[r]
			w.facts[r] = Fact{r, other(f.State), f.Version, f.ChangedAtUs, topology.Hiding{}}
		}},
		{"fact never seen", RelationBelow, func(_ *rapid.T, w *world, r topology.Relation) {
			r.User = "nobody"
			w.facts[r] = Fact{r, r.Kind.Active(), 1, 1, topology.Hiding{}}
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
				p.State, p.Hidden, p.HiddenReason = tidemarkv1.State(other(topology.State(p.State))), 0, ""
			})
		}},
		{"projected hiding lost", RelationState, func(t *rapid.T, w *world, r topology.Relation) {
			r = w.hidden(t, r)
			w.change(r, func(p *tidemarkv1.ProjectedRelation) { p.Hidden, p.HiddenReason = 0, "" })
		}},
		{"projected as another's hiding", RelationState, func(t *rapid.T, w *world, r topology.Relation) {
			r = w.hidden(t, r)
			w.change(r, func(p *tidemarkv1.ProjectedRelation) { p.Hidden = 3 - p.Hidden })
		}},
		{"hidden for another reason", RelationState, func(t *rapid.T, w *world, r topology.Relation) {
			r = w.hidden(t, r)
			w.change(r, func(p *tidemarkv1.ProjectedRelation) { p.HiddenReason += "x" })
		}},
		{"fact hidden without a version", RelationState, func(t *rapid.T, w *world, r topology.Relation) {
			r = w.hidden(t, r)
			f := w.facts[r]
			f.Hiding = topology.Hiding{}
			w.facts[r] = f
		}},
		{"liker lost", LikerBelow, func(_ *rapid.T, w *world, r topology.Relation) {
			key := w.likes[w.newestLike[r]].key
			w.likes = slices.DeleteFunc(w.likes, func(x likerRecord) bool { return x.key == key })
		}},
		{"newest liker record lost", LikerBelow, func(_ *rapid.T, w *world, r topology.Relation) {
			w.likes = slices.Delete(w.likes, w.newestLike[r], w.newestLike[r]+1)
		}},
		{"liker without a fact", LikerAbove, func(_ *rapid.T, w *world, r topology.Relation) {
			r.User = "nobody"
			w.list(r, r.Kind.Active(), 1, 1)
		}},
		{"tombstone without a fact", LikerAbove, func(_ *rapid.T, w *world, r topology.Relation) {
			r.User = "nobody"
			w.list(r, r.Kind.Initial(), 2, 1)
		}},
		{"liker version ahead", LikerAbove, func(_ *rapid.T, w *world, r topology.Relation) {
			w.changeLike(r, func(l *tidemarkv1.LikerRelation) { l.Version++ })
		}},
		{"liker state wrong", LikerState, func(_ *rapid.T, w *world, r topology.Relation) {
			f := w.facts[r]
			w.changeLike(r, func(l *tidemarkv1.LikerRelation) {
				l.State, l.CurrentLikedAtUs = tidemarkv1.State(other(f.State)), 0
				if other(f.State) == r.Kind.Active() {
					l.CurrentLikedAtUs = f.ChangedAtUs
				}
			})
		}},
		{"liked at another time", LikerTime, func(t *rapid.T, w *world, r topology.Relation) {
			r.User = "lister"
			w.set(r, r.Kind.Active(), topology.Hiding{})
			by := rapid.SampledFrom([]int64{-1, 1, 1_000_000}).Draw(t, "by")
			w.changeLike(r, func(l *tidemarkv1.LikerRelation) { l.CurrentLikedAtUs += by })
		}},
		{"two liked-at times of one version", Conflict, func(_ *rapid.T, w *world, r topology.Relation) {
			r.User = "lister"
			w.set(r, r.Kind.Active(), topology.Hiding{})
			x := w.likes[w.newestLike[r]]
			forged := proto.CloneOf(x.row)
			forged.GetRelation().CurrentLikedAtUs++
			w.likes = append(w.likes, likerRecord{x.partition, x.key, forged})
		}},
		{"another reverse shard", Misplaced, func(_ *rapid.T, w *world, r topology.Relation) {
			x := &w.likes[w.newestLike[r]]
			p := w.reverse.Place(r)
			p.ReverseShard = (p.ReverseShard + 4) % 16
			x.key = topology.LikerKey(p, r.Key())
		}},
		{"another reverse generation", Misplaced, func(_ *rapid.T, w *world, r topology.Relation) {
			x := &w.likes[w.newestLike[r]]
			p := w.reverse.Place(r)
			p.Generation++
			x.key = topology.LikerKey(p, r.Key())
		}},
		{"another liker partition", Misplaced, func(_ *rapid.T, w *world, r topology.Relation) {
			x := &w.likes[w.newestLike[r]]
			x.partition = (x.partition + 1) % worldPartitions
		}},
		{"bucket counts one more", Bucket, func(t *rapid.T, w *world, r topology.Relation) {
			by := rapid.SampledFrom([]int64{-1000, -1, 1, 1000}).Draw(t, "by")
			w.changeBucket(r, func(b *tidemarkv1.BucketCount) { b.Active += by })
		}},
		{"bucket counts a dislike more", Bucket, func(_ *rapid.T, w *world, r topology.Relation) {
			w.changeBucket(r, func(b *tidemarkv1.BucketCount) { b.Disliked++ })
		}},
		{"bucket counts hidden ones wrong", Bucket, func(t *rapid.T, w *world, r topology.Relation) {
			by := rapid.SampledFrom([]int64{-1, 1}).Draw(t, "by")
			w.changeBucket(r, func(b *tidemarkv1.BucketCount) { *hiddenOf(t, &b.RiskHidden, &b.PolicyHidden) += by })
		}},
		{"bucket counts risk's as policy's", Bucket, func(t *rapid.T, w *world, r topology.Relation) {
			r = w.hidden(t, r)
			w.changeBucket(r, func(b *tidemarkv1.BucketCount) {
				b.RiskHidden++
				b.PolicyHidden--
			})
		}},
		{"bucket hides more than it has", Negative, func(t *rapid.T, w *world, r topology.Relation) {
			w.changeBucket(r, func(b *tidemarkv1.BucketCount) { *hiddenOf(t, &b.RiskHidden, &b.PolicyHidden) = b.Active + 1 })
		}},
		{"two hidden counts of one seq", Conflict, func(t *rapid.T, w *world, r topology.Relation) {
			i := w.newestOfBucket(r)
			forged := proto.CloneOf(w.log[i].row)
			b := forged.GetRelation().Bucket
			*hiddenOf(t, &b.RiskHidden, &b.PolicyHidden)++
			w.log = append(w.log, record{w.log[i].partition, w.log[i].key, forged})
		}},
		{"two hidings of one version", Conflict, func(t *rapid.T, w *world, r topology.Relation) {
			r = w.hidden(t, r)
			x := w.log[w.newest[r]]
			forged := proto.CloneOf(x.row)
			p := forged.GetRelation()
			p.Hidden = 3 - p.Hidden
			w.log = append(w.log, record{x.partition, x.key, forged})
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
			p.State, p.Hidden, p.HiddenReason = tidemarkv1.State(other(topology.State(p.State))), 0, ""
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
		{"display hides one more or less", Count, func(t *rapid.T, w *world, r topology.Relation) {
			s := w.displays[topology.TargetKey(r.Kind, r.Target)]
			by := rapid.SampledFrom([]int64{-1, 1}).Draw(t, "by")
			*hiddenOf(t, &s.RiskHidden, &s.PolicyHidden) += by
			*hiddenOf(t, &s.Partials[0].RiskHidden, &s.Partials[0].PolicyHidden) += by
		}},
		{"display hides without its parts", DisplayPartials, func(t *rapid.T, w *world, r topology.Relation) {
			s := w.displays[topology.TargetKey(r.Kind, r.Target)]
			*hiddenOf(t, &s.RiskHidden, &s.PolicyHidden)++
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

// hidden makes sure that a relation is hidden, and gives it.
func (w *world) hidden(t *rapid.T, r topology.Relation) topology.Relation {
	r.User = "hidden"
	w.set(r, r.Kind.Active(), drawHiding(t))
	if w.facts[r].Hiding.By == topology.Shown {
		w.hide(r, topology.Hiding{By: topology.HiddenByRisk, Reason: "farm"})
	}
	return r
}

// hiddenOf draws one of two hidden counts.
func hiddenOf(t *rapid.T, risk, policy *int64) *int64 {
	return rapid.SampledFrom([]*int64{risk, policy}).Draw(t, "hidden count")
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

// changeLike alters a relation's newest record of the reverse index.
func (w *world) changeLike(r topology.Relation, f func(*tidemarkv1.LikerRelation)) {
	x := &w.likes[w.newestLike[r]]
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
