package load

import (
	"fmt"
	"math"
	"math/rand/v2"
)

// Skew says how draws spread over n items, most drawn first.
type Skew struct {
	Shape    string  `json:"shape"`
	Exponent float64 `json:"exponent,omitempty"` // of Zipf; default 0.741
}

// The shapes.
const (
	// LinkBenchWrites is LinkBench's published distribution of writes over
	// nodes: 96.75 % of the nodes get none. Its top fractions are of n, so that
	// under 100,000 items the first one alone stands for the top 0.001 %.
	LinkBenchWrites = "linkbench"
	// LinkBenchReads is the same for reads.
	LinkBenchReads = "linkbench-reads"
	// Zipf is P(rank) proportional to rank^-Exponent.
	Zipf    = "zipf"
	Uniform = "uniform"
)

func (s Skew) check(field string) error {
	switch s.Shape {
	case LinkBenchWrites, LinkBenchReads, Uniform:
		return nil
	case Zipf:
		if s.Exponent < 0 || s.Exponent > 4 || math.IsNaN(s.Exponent) {
			return fmt.Errorf("load: %s: exponent %v is not in 0..4", field, s.Exponent)
		}
		return nil
	}
	return fmt.Errorf("load: %s: shape %q is not one of %s, %s, %s, %s", field, s.Shape, LinkBenchWrites, LinkBenchReads, Zipf, Uniform)
}

// knot says that the most drawn fraction top of the items takes share of the
// draws.
type knot struct{ top, share float64 }

// Between two knots the share is a power of the fraction; before the first the
// power goes on.
var (
	// The shares of the top 0.001 % to 1 % are published. The first knot is the
	// published maximum, 75,879 writes, of the 0.25 writes per node that the
	// published quantiles imply, on ten million nodes; the last is the share of
	// nodes with any write.
	writeKnots = []knot{{1e-7, 0.03}, {1e-5, 0.18}, {1e-4, 0.48}, {1e-3, 0.73}, {1e-2, 0.91}, {0.0325, 1}}
	readKnots  = []knot{{1e-6, 0.07}, {1e-4, 0.27}, {1e-3, 0.65}, {1e-2, 0.90}, {1, 1}}
)

// sampler draws ranks, 0 the most frequent, out of n.
type sampler struct {
	n    int
	draw func(u float64) float64 // from 0..1 to a rank, not yet floored
}

func newSampler(s Skew, n int) sampler {
	size := float64(n)
	switch s.Shape {
	case LinkBenchWrites:
		return sampler{n, func(u float64) float64 { return size * inverse(writeKnots, u) }}
	case LinkBenchReads:
		return sampler{n, func(u float64) float64 { return size * inverse(readKnots, u) }}
	case Zipf:
		e := s.Exponent
		if e == 0 {
			e = 0.741
		}
		return sampler{n, func(u float64) float64 { return zipf(u, size, e) }}
	}
	return sampler{n, func(u float64) float64 { return size * u }}
}

func (s sampler) rank(rng *rand.Rand) int { return s.at(rng.Float64()) }

func (s sampler) at(u float64) int { return max(0, min(int(s.draw(u)), s.n-1)) }

// inverse is the top fraction whose share of the draws is u.
func inverse(knots []knot, u float64) float64 {
	i := 1
	for i < len(knots)-1 && knots[i].share < u {
		i++
	}
	a, b := knots[i-1], knots[i]
	power := math.Log(b.top/a.top) / math.Log(b.share/a.share)
	return a.top * math.Pow(u/a.share, power)
}

// zipf is the continuous law with density x^-e, each rank r the stretch around
// r+1, as a rank from 0.
func zipf(u, n, e float64) float64 {
	low, high := 0.5, n+0.5
	if e == 1 {
		return low*math.Pow(high/low, u) - low
	}
	a, b := math.Pow(low, 1-e), math.Pow(high, 1-e)
	return math.Pow(a+u*(b-a), 1/(1-e)) - low
}

// scatter is a fixed bijection of 0..n-1, so that frequent items are not
// neighbours; another turn gives another one.
type scatter struct{ n, step, turn uint64 }

func newScatter(n int, turn uint64) scatter {
	step := max(1, int(0.6180339887*float64(n)))
	for gcd(step, n) != 1 {
		step++
	}
	return scatter{uint64(n), uint64(step), turn % uint64(n)}
}

func (s scatter) of(rank int) int { return int((uint64(rank)*s.step + s.turn) % s.n) }

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
