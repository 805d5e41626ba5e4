package display

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tidemark/tidemark/internal/quarantine"
	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

func partialUpdate(p *tidemarkv1.PartialCount) *tidemarkv1.CountUpdate {
	return &tidemarkv1.CountUpdate{Body: &tidemarkv1.CountUpdate_Partial{Partial: p}}
}

func progressUpdate(p *tidemarkv1.PartitionProgress) *tidemarkv1.CountUpdate {
	return &tidemarkv1.CountUpdate{Body: &tidemarkv1.CountUpdate_Progress{Progress: p}}
}

// deliver draws an order of updates with duplicates.
func deliver(t *rapid.T, updates []*tidemarkv1.CountUpdate) []*tidemarkv1.CountUpdate {
	var all []*tidemarkv1.CountUpdate
	for _, u := range updates {
		for range rapid.IntRange(1, 3).Draw(t, "copies") {
			all = append(all, u)
		}
	}
	return rapid.Permutation(all).Draw(t, "order")
}

// drawPartials draws what the owners of 4 count partitions say of a target: a
// rising seq, and from some point on a newer generation.
func drawPartials(t *rapid.T) []*tidemarkv1.CountUpdate {
	var updates []*tidemarkv1.CountUpdate
	for partition := range uint32(4) {
		seq, generation := uint64(0), uint64(1)
		for range rapid.IntRange(0, 6).Draw(t, "partials") {
			seq += rapid.Uint64Range(1, 5).Draw(t, "step")
			generation += uint64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "newer"))
			risk, policy := rapid.Int64Range(0, 50).Draw(t, "risk"), rapid.Int64Range(0, 50).Draw(t, "policy")
			updates = append(updates, partialUpdate(&tidemarkv1.PartialCount{
				Partition: partition, Seq: seq, Generation: generation, ManifestId: generation,
				Active: risk + policy + rapid.Int64Range(0, 100).Draw(t, "shown"), RiskHidden: risk, PolicyHidden: policy,
				Disliked:      rapid.Int64Range(0, 100).Draw(t, "disliked"),
				GeneratedAtUs: rapid.Int64Range(1, 1000).Draw(t, "generated"), CommittedAtUs: rapid.Int64Range(0, 1000).Draw(t, "committed"),
			}))
		}
	}
	return updates
}

// newest is what a snapshot must hold: of the newest generation the newest
// partial of each partition.
func newest(updates []*tidemarkv1.CountUpdate) (want []*tidemarkv1.PartialCount) {
	generation := uint64(0)
	for _, u := range updates {
		generation = max(generation, u.GetPartial().Generation)
	}
	for _, u := range updates {
		p := u.GetPartial()
		if p.Generation != generation {
			continue
		}
		at := slices.IndexFunc(want, func(q *tidemarkv1.PartialCount) bool { return q.Partition == p.Partition })
		switch {
		case at < 0:
			want = append(want, p)
		case want[at].Seq < p.Seq:
			want[at] = p
		}
	}
	slices.SortFunc(want, func(a, b *tidemarkv1.PartialCount) int { return cmp.Compare(a.Partition, b.Partition) })
	return want
}

// However partials are duplicated, delayed and reordered, the counts come out
// the same; on the way a snapshot's seq never goes back (I2, I9).
func TestAnyDeliveryGivesTheSameCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		updates := drawPartials(t)
		var row *tidemarkv1.DisplayRow
		for offset, u := range deliver(t, updates) {
			row = step(t, row, u, int64(offset))
		}
		s := row.GetSnapshot()
		want := newest(updates)
		if !slices.EqualFunc(s.GetPartials(), want, (*tidemarkv1.PartialCount).EqualVT) {
			t.Fatalf("kept %v, the newest are %v", s.GetPartials(), want)
		}
		check(t, s)
	})
}

// step applies an update and checks what holds of every single one.
func step(t *rapid.T, old *tidemarkv1.DisplayRow, u *tidemarkv1.CountUpdate, offset int64) *tidemarkv1.DisplayRow {
	before, _ := old.MarshalVT()
	next, no := Apply(old, u, offset)
	if no != nil {
		t.Fatalf("refused %v: %s", u, no.Detail)
	}
	if after, _ := old.MarshalVT(); string(after) != string(before) {
		t.Fatalf("Apply changed the old row")
	}
	if next == nil {
		return old
	}
	if a, b := old.GetSnapshot(), next.GetSnapshot(); b != nil && (b.Seq != a.GetSeq()+1 || b.InputOffset != offset) {
		t.Fatalf("seq went from %d to %d, input offset %d at %d", a.GetSeq(), b.Seq, b.InputOffset, offset)
	}
	if again, no := Apply(next, u, offset+1); again != nil || no != nil {
		t.Fatalf("the same update was taken twice: %v, %v", again, no)
	}
	return next
}

// check computes a snapshot's figures from its partials.
func check(t *rapid.T, s *tidemarkv1.DisplaySnapshot) {
	want := &tidemarkv1.DisplaySnapshot{Partials: s.GetPartials(), Seq: s.GetSeq(), InputOffset: s.GetInputOffset(), Generation: s.GetGeneration()}
	for _, p := range s.GetPartials() {
		want.Active += p.Active
		want.RiskHidden += p.RiskHidden
		want.PolicyHidden += p.PolicyHidden
		want.Disliked += p.Disliked
		want.GeneratedAtUs = max(want.GeneratedAtUs, p.GeneratedAtUs)
		want.CommittedAtUs = max(want.CommittedAtUs, p.CommittedAtUs)
		want.ManifestId = max(want.ManifestId, p.ManifestId)
		if p.Generation != s.Generation {
			t.Fatalf("a partial of generation %d in a snapshot of %d", p.Generation, s.Generation)
		}
	}
	if s != nil && !s.EqualVT(want) {
		t.Fatalf("snapshot %v, its partials give %v", s, want)
	}
	if counts := topology.CountsOfSnapshot(s); !counts.Possible() {
		t.Fatalf("C5: a snapshot of %v", counts)
	}
}

// A partition's progress comes out as its newest one, whatever comes twice,
// late or out of order; no watermark goes back.
func TestAnyDeliveryGivesTheSameProgress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var updates []*tidemarkv1.CountUpdate
		seals := make([]uint64, 3)
		for seq := range rapid.Uint64Range(1, 8).Draw(t, "records") {
			p := &tidemarkv1.PartitionProgress{Partition: 5, Seq: seq + 1}
			for shard := range seals {
				if seals[shard] += rapid.Uint64Range(0, 2).Draw(t, "seals"); seals[shard] > 0 {
					p.Watermarks = append(p.Watermarks, &tidemarkv1.SourceWatermark{Shard: uint32(shard), Seal: seals[shard], SealedAtUs: int64(seals[shard])})
				}
			}
			updates = append(updates, progressUpdate(p))
		}
		var row *tidemarkv1.DisplayRow
		for offset, u := range deliver(t, updates) {
			next := step(t, row, u, int64(offset))
			for _, w := range row.GetProgress().GetWatermarks() {
				if seal(next.GetProgress(), w.Shard) < w.Seal {
					t.Fatalf("the watermark of shard %d went back: %v, then %v", w.Shard, row, next)
				}
			}
			row = next
		}
		if want := updates[len(updates)-1].GetProgress(); !row.GetProgress().EqualVT(want) {
			t.Fatalf("progress %v, the newest is %v", row.GetProgress(), want)
		}
	})
}

func seal(p *tidemarkv1.PartitionProgress, shard uint32) uint64 {
	for _, w := range p.GetWatermarks() {
		if w.Shard == shard {
			return w.Seal
		}
	}
	return 0
}

// Even a newer progress that says less takes no watermark back.
func TestAWatermarkNeverFalls(t *testing.T) {
	mark := func(shard uint32, seal uint64) *tidemarkv1.SourceWatermark {
		return &tidemarkv1.SourceWatermark{Shard: shard, Seal: seal}
	}
	first := progressUpdate(&tidemarkv1.PartitionProgress{Seq: 1, Watermarks: []*tidemarkv1.SourceWatermark{mark(2, 7), mark(0, 5)}})
	second := progressUpdate(&tidemarkv1.PartitionProgress{Seq: 2, Watermarks: []*tidemarkv1.SourceWatermark{mark(1, 1), mark(2, 6)}})
	row, _ := Apply(nil, first, 0)
	row, _ = Apply(row, second, 1)
	want := &tidemarkv1.PartitionProgress{Seq: 2, Watermarks: []*tidemarkv1.SourceWatermark{mark(0, 5), mark(1, 1), mark(2, 7)}}
	if got := row.GetProgress(); !got.EqualVT(want) {
		t.Errorf("progress %v, want %v", got, want)
	}
}

// C5: two owners that say the same seq say the same hidden counts.
func TestTwoHiddenCountsForOneSeqAreRefused(t *testing.T) {
	part := func(risk, policy int64) *tidemarkv1.CountUpdate {
		return partialUpdate(&tidemarkv1.PartialCount{Seq: 1, Generation: 1, Active: 3, RiskHidden: risk, PolicyHidden: policy})
	}
	row, _ := Apply(nil, part(1, 1), 0)
	for _, other := range []*tidemarkv1.CountUpdate{part(2, 1), part(1, 0), part(0, 0)} {
		if next, no := Apply(row, other, 1); next != nil || no == nil || no.Reason != quarantine.MalformedRecord {
			t.Errorf("took %v, %v", next, no)
		}
	}
}

func TestASumThatDoesNotFitIsRefused(t *testing.T) {
	part := func(partition uint32, active, disliked int64) *tidemarkv1.CountUpdate {
		return partialUpdate(&tidemarkv1.PartialCount{Partition: partition, Seq: 1, Generation: 1, Active: active, Disliked: disliked})
	}
	for name, second := range map[string]*tidemarkv1.CountUpdate{"active": part(1, 1, 0), "disliked": part(1, 0, 1)} {
		row, _ := Apply(nil, part(0, math.MaxInt64, math.MaxInt64), 0)
		if next, no := Apply(row, second, 1); next != nil || no == nil || no.Reason != quarantine.MalformedRecord {
			t.Errorf("%s: took %v, %v", name, next, no)
		}
	}
}
