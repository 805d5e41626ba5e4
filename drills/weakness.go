package drills

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tidemark/tidemark/internal/gokakit"
)

// weaknesses are the mechanisms that can be switched off, by name.
var weaknesses = map[string]gokakit.Weakness{
	"gate":       gokakit.WithoutGate,
	"atomicity":  gokakit.WithoutAtomicity,
	"barrier":    gokakit.WithoutBarrier,
	"order":      gokakit.WithoutOrder,
	"duplicates": gokakit.WithoutDuplicateCheck,
	"fence":      gokakit.WithoutFence,
	"version":    gokakit.WithoutVersion,
	"repair":     gokakit.WithoutRepair,
	"ownership":  gokakit.WithoutOwnership,
	"log-check":  gokakit.WithoutLogCheck,
	"rebuild":    gokakit.WithoutRebuild,
	"whole-list": gokakit.WithoutWholeList,
	"popping":    gokakit.WithoutPopping,
	"operation":  gokakit.WithoutOperation,
	"floor":      gokakit.WithoutFloor,
	"generation": gokakit.WithoutEnded,
	"stamp":      gokakit.WithoutStamp,
	"one-writer": gokakit.WithoutOneWriter,
	"minimum":    gokakit.WithoutLeast,
	"hiding":     gokakit.WithoutHiding,
}

// weakenArgs are the arguments with which `tidemark run` switches mechanisms
// off.
func weakenArgs(w gokakit.Weakness) (args []string) {
	for _, name := range slices.Sorted(maps.Keys(weaknesses)) {
		if w.Has(weaknesses[name]) {
			args = append(args, "--weaken", name)
		}
	}
	return args
}

// ParseWeakness reads names of mechanisms to switch off.
func ParseWeakness(names []string) (w gokakit.Weakness, err error) {
	for _, name := range names {
		one, ok := weaknesses[name]
		if !ok {
			return 0, fmt.Errorf("mechanism %q is not one of %s", name, strings.Join(slices.Sorted(maps.Keys(weaknesses)), ", "))
		}
		w |= one
	}
	return w, nil
}
