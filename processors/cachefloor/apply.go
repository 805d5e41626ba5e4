package cachefloor

import (
	"slices"

	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// Floor is the row of a relation after a generation was told a state of a
// version; changed is false when the row stays as it is (I3). ok is false when
// the row belongs to a later generation: what comes is late, and is for nobody.
//
// A generation takes any version above its own, whatever another one holds: what
// its rebuilding reads from the shards is the truth as of then.
func Floor(old *tidemarkv1.FloorRelation, generation, version uint64, state tidemarkv1.State) (row *tidemarkv1.FloorRelation, changed, ok bool) {
	switch {
	case old.GetGeneration() > generation:
		return old, false, false
	case old.GetGeneration() == generation && old.Version >= version:
		return old, false, true
	}
	return &tidemarkv1.FloorRelation{Generation: generation, State: state, Version: version}, true, true
}

// Begin adds a generation to those that a partition writes; nil when nothing
// changes. A generation that is not above every one that was ever begun here is
// old or a duplicate: what has ended never begins again. A row has room for one
// generation of each parity, so those of its parity end here: a new generation
// never has that of the active one (control.DB.BeginCache).
func Begin(old *tidemarkv1.LiveGenerations, g *tidemarkv1.LiveGeneration) *tidemarkv1.LiveGenerations {
	if g.Generation <= old.GetNewest() {
		return nil
	}
	live := slices.DeleteFunc(slices.Clone(old.GetGenerations()), func(l *tidemarkv1.LiveGeneration) bool {
		return l.Generation%2 == g.Generation%2
	})
	return &tidemarkv1.LiveGenerations{Revision: old.GetRevision() + 1, Newest: g.Generation, Generations: append(live, g)}
}

// End takes a generation from those that a partition writes; nil when it is none
// of them.
func End(old *tidemarkv1.LiveGenerations, generation uint64) *tidemarkv1.LiveGenerations {
	at := slices.IndexFunc(old.GetGenerations(), func(g *tidemarkv1.LiveGeneration) bool { return g.Generation == generation })
	if at < 0 {
		return nil
	}
	return &tidemarkv1.LiveGenerations{
		Revision: old.Revision + 1, Newest: old.Newest,
		Generations: slices.Delete(slices.Clone(old.Generations), at, at+1),
	}
}
