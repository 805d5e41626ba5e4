package drills

import (
	"hash/fnv"
	"math/rand/v2"
)

// schedule lists what a lane injects: each of its injections in turn, so many
// rounds of all, or as many at random. The same seed gives the same list.
func schedule(lane []string, random bool, rounds int, rnd *rand.Rand) []string {
	if len(lane) == 0 {
		return nil
	}
	var plan []string
	if !random {
		for range rounds {
			plan = append(plan, lane...)
		}
		return plan
	}
	for range rounds {
		plan = append(plan, lane[rnd.IntN(len(lane))])
	}
	return plan
}

// source is the randomness of one use of a drill's seed: each lane, and
// whatever else draws, has its own, so that none disturbs another.
func source(seed uint64, use string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(use))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// between draws from lo to hi.
func between[T ~int64 | ~int](rnd *rand.Rand, lo, hi T) T {
	return lo + T(rnd.Int64N(int64(hi-lo)+1))
}
