package load

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// draws counts n draws per rank.
func draws(s sampler, n int) []int {
	rng := rand.New(rand.NewPCG(7, 7))
	counts := make([]int, s.n)
	for range n {
		counts[s.rank(rng)]++
	}
	return counts
}

// topShare is the share of the draws that the most drawn fraction got.
func topShare(counts []int, fraction float64) float64 {
	sorted := slices.Clone(counts)
	slices.SortFunc(sorted, func(a, b int) int { return b - a })
	var all, top float64
	for i, c := range sorted {
		all += float64(c)
		if i < int(math.Round(fraction*float64(len(counts)))) {
			top += float64(c)
		}
	}
	return top / all
}

func expectNear(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s is %.4f, want %.4f within %.4f", what, got, want, tolerance)
	}
}

// The published figures of LinkBench's writes, at the published mean of 0.25
// writes per node.
func TestLinkBenchWrites(t *testing.T) {
	const nodes = 2_000_000
	counts := draws(newSampler(Skew{Shape: LinkBenchWrites}, nodes), nodes/4)
	for fraction, share := range map[float64]float64{1e-5: 0.18, 1e-4: 0.48, 1e-3: 0.73, 1e-2: 0.91} {
		expectNear(t, "share of the top fraction", topShare(counts, fraction), share, 0.03)
	}
	slices.Sort(counts)
	quantile := func(q float64) float64 { return float64(counts[int(q*nodes)]) }
	none, _ := slices.BinarySearch(counts, 1)
	expectNear(t, "nodes without writes", float64(none)/nodes, 0.9675, 0.02)
	for _, c := range []struct{ q, want, low, high float64 }{{0.99, 2, 1, 3}, {0.999, 15, 10, 30}, {0.9999, 365, 200, 550}} {
		if got := quantile(c.q); got < c.low || got > c.high {
			t.Errorf("p%v of the writes per node is %v, published is %v", 100*c.q, got, c.want)
		}
	}
}

func TestLinkBenchReads(t *testing.T) {
	counts := draws(newSampler(Skew{Shape: LinkBenchReads}, 1_000_000), 1_000_000)
	for fraction, share := range map[float64]float64{1e-4: 0.27, 1e-3: 0.65, 1e-2: 0.90} {
		expectNear(t, "share of the top fraction", topShare(counts, fraction), share, 0.03)
	}
}

func TestZipf(t *testing.T) {
	const n, of = 10_000, 1_000_000
	for _, exponent := range []float64{0.741, 1, 1.3} {
		counts := draws(newSampler(Skew{Shape: Zipf, Exponent: exponent}, n), of)
		var norm float64
		for rank := 1; rank <= n; rank++ {
			norm += math.Pow(float64(rank), -exponent)
		}
		// The continuous law stands for the discrete one from some rank on.
		for _, ranks := range [][2]int{{10, 100}, {100, 1000}, {1000, n}} {
			var got, want float64
			for rank := ranks[0]; rank < ranks[1]; rank++ {
				got += float64(counts[rank]) / of
				want += math.Pow(float64(rank+1), -exponent) / norm
			}
			if got < 0.85*want || got > 1.15*want {
				t.Errorf("exponent %v, ranks %v: share %.4f, want %.4f", exponent, ranks, got, want)
			}
		}
	}
	if byDefault := newSampler(Skew{Shape: Zipf}, 100); byDefault.draw(0.5) != newSampler(Skew{Shape: Zipf, Exponent: 0.741}, 100).draw(0.5) {
		t.Error("the default exponent is not 0.741")
	}
}

func TestUniform(t *testing.T) {
	for _, c := range draws(newSampler(Skew{Shape: Uniform}, 10), 100_000) {
		expectNear(t, "share of a rank", float64(c)/100_000, 0.1, 0.01)
	}
}

func TestRanksAreInRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		skew := Skew{Shape: rapid.SampledFrom([]string{LinkBenchWrites, LinkBenchReads, Zipf, Uniform}).Draw(t, "shape"), Exponent: rapid.Float64Range(0, 4).Draw(t, "exponent")}
		n := rapid.IntRange(1, 1_000_000).Draw(t, "n")
		u := rapid.Float64Range(0, 1).Draw(t, "u")
		s := newSampler(skew, n)
		if got := s.draw(u); !(got > -1) || s.at(u) < 0 || s.at(u) >= n {
			t.Fatalf("%+v of %d draws %v at %v", skew, n, got, u)
		}
	})
}

func TestScatterIsABijection(t *testing.T) {
	for _, n := range []int{1, 2, 3, 10, 100, 1024, 9973, 65536} {
		for _, turn := range []uint64{0, 1, math.MaxUint64} {
			s := newScatter(n, turn)
			seen := make([]bool, n)
			for rank := range n {
				if at := s.of(rank); at < 0 || at >= n || seen[at] {
					t.Fatalf("n %d, turn %d: rank %d goes to %d, which is taken or outside", n, turn, rank, at)
				}
				seen[s.of(rank)] = true
			}
		}
	}
}

func TestHistogram(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h histogram
		values := rapid.SliceOfN(rapid.Int64Range(0, 1<<36), 1, 200).Draw(t, "values")
		for _, v := range values {
			h.add(time.Duration(v) * time.Microsecond)
		}
		slices.Sort(values)
		q := rapid.Float64Range(0.001, 1).Draw(t, "q")
		want := values[max(1, int(q*float64(len(values))+0.999999))-1]
		got := h.quantile(q).Microseconds()
		if got < want || float64(got) > float64(want)*1.008 {
			t.Fatalf("quantile %v of %v is %d, want %d", q, values, got, want)
		}
		if l := h.latency(); l.Count != int64(len(values)) || l.Max != float64(values[len(values)-1])/1000 {
			t.Fatalf("latency %+v of %v", l, values)
		}
	})
	var h histogram
	if h.latency() != (Latency{}) {
		t.Error("an empty histogram has a latency")
	}
	h.add(-time.Second)
	h.add(1 << 62)
	if h.quantile(0.5) != 0 || h.quantile(1) < 1<<60 {
		t.Errorf("extremes: %v, %v", h.quantile(0.5), h.quantile(1))
	}
}

func TestHistogramSlots(t *testing.T) {
	for slot := 1; slot < slots-1; slot++ {
		low, high := highest(slot-1)+1, highest(slot)
		if slotOf(low) != slot || slotOf(high) != slot {
			t.Fatalf("slot %d is %d..%d, which go to %d and %d", slot, low, high, slotOf(low), slotOf(high))
		}
	}
	if slotOf(most) != slots-2 || slotOf(most+1) != slots-1 {
		t.Errorf("the largest values go to %d and %d of %d", slotOf(most), slotOf(most+1), slots)
	}
}
