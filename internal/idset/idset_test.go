package idset

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var anyID = rapid.Int64Range(1, 400)

func drawIDs(t *rapid.T, name string) []int64 {
	return rapid.SliceOfN(anyID, 0, 120).Draw(t, name)
}

// model is the same set, plainly.
func model(ids []int64) map[int64]bool {
	m := map[int64]bool{}
	for _, id := range ids {
		m[id] = true
	}
	return m
}

func wellFormed(t *rapid.T, r Ranges) {
	for i, one := range r {
		if one.From > one.To || i > 0 && one.From <= r[i-1].To+1 {
			t.Fatalf("%v is not ascending or touches", r)
		}
	}
}

func TestRangesAreSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawIDs(t, "a"), drawIDs(t, "b")
		ra, rb := Of(a...), Of(b...)
		ma, mb := model(a), model(b)
		from, to := anyID.Draw(t, "from"), anyID.Draw(t, "to")
		union, without, within := ra.Union(rb), ra.Without(rb), ra.Within(from, to)
		for _, r := range []Ranges{ra, union, without, within} {
			wellFormed(t, r)
		}
		for id := int64(1); id <= 401; id++ {
			if ra.Contains(id) != ma[id] || union.Contains(id) != (ma[id] || mb[id]) ||
				without.Contains(id) != (ma[id] && !mb[id]) || within.Contains(id) != (ma[id] && from <= id && id <= to) {
				t.Fatalf("id %d of %v and %v", id, ra, rb)
			}
		}
		if int64(len(ma)) != ra.Count() || len(ra.Ids(1000)) != len(ma) || len(ra.Ids(3)) > 3 {
			t.Fatalf("%v counts %d of %d", ra, ra.Count(), len(ma))
		}
	})
}

func TestRangesSurviveEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Of(drawIDs(t, "ids")...)
		b, _ := r.MarshalBinary()
		var back Ranges
		if err := back.UnmarshalBinary(b); err != nil || !slices.Equal(r, back) {
			t.Fatalf("%v came back as %v, %v", r, back, err)
		}
		if back, err := ParseMultirange(r.Multirange()); err != nil || !slices.Equal(r, back) {
			t.Fatalf("%s came back as %v, %v", r.Multirange(), back, err)
		}
	})
}

func TestCoarseCoversAndIsExactWhenItSaysSo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Of(drawIDs(t, "ids")...)
		limit := rapid.IntRange(1, 40).Draw(t, "limit")
		c, exact := r.Coarse(limit)
		wellFormed(t, c)
		if len(c) > limit || len(r.Without(c)) > 0 || exact != slices.Equal(r, c) {
			t.Fatalf("%v in %d ranges is %v, exact %v", r, limit, c, exact)
		}
	})
}

func TestSetIsASet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := rapid.SampledFrom([]int64{1, 65500, 1 << 40}).Draw(t, "base")
		s := NewSet(1 << 20)
		m := map[int64]bool{}
		for _, id := range drawIDs(t, "ids") {
			id += base
			added, fits := s.Add(id)
			if added == m[id] || !fits {
				t.Fatalf("adding %d: %v, %v", id, added, fits)
			}
			m[id] = true
		}
		absent := s.Absent(base, base+500)
		wellFormed(t, absent)
		for id := base; id <= base+500; id++ {
			if s.Has(id) != m[id] || absent.Contains(id) == m[id] {
				t.Fatalf("id %d", id)
			}
		}
		again := NewSet(1 << 20)
		if !again.Fill(base, s.Highest(), s.Absent(base, s.Highest())) {
			t.Fatal("it does not fit again")
		}
		for id := base; id <= base+500; id++ {
			if again.Has(id) != m[id] {
				t.Fatalf("id %d after Fill", id)
			}
		}
	})
}

func TestFullChunksCostNothingAndMemoryIsBounded(t *testing.T) {
	s := NewSet(2 * 8192)
	for id := int64(1); id < 10*chunkIDs; id++ {
		if _, fits := s.Add(id); !fits {
			t.Fatalf("id %d does not fit", id)
		}
	}
	if s.bitmaps != 1 { // the first, which lacks id 0
		t.Errorf("%d bitmaps", s.bitmaps)
	}
	if _, fits := s.Add(100 * chunkIDs); !fits {
		t.Error("there is room for a second bitmap")
	}
	if _, fits := s.Add(200 * chunkIDs); fits {
		t.Error("a third bitmap is over the limit")
	}
	s.DropTo(chunkIDs - 1)
	if _, fits := s.Add(200 * chunkIDs); !fits || s.Has(1) || !s.Has(chunkIDs) {
		t.Error("dropping makes room, and only below")
	}
}

func FuzzRanges(f *testing.F) {
	seed, _ := Of(1, 2, 3, 9, 1<<40).MarshalBinary()
	f.Add(seed)
	f.Fuzz(func(t *testing.T, b []byte) {
		var r Ranges
		if r.UnmarshalBinary(b) != nil {
			return
		}
		again, _ := r.MarshalBinary()
		var back Ranges
		if err := back.UnmarshalBinary(again); err != nil || !slices.Equal(r, back) {
			t.Fatalf("%v came back as %v, %v", r, back, err)
		}
	})
}
