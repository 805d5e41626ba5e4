package verify

import (
	"fmt"

	"github.com/tidemark/tidemark/topology"
	"github.com/tidemark/tidemark/topology/tidemarkv1"
)

// listing is a relation as the reverse index has it, beside what its fact says
// of the time. Version 0 is "not seen".
type listing struct {
	changedAtUs int64 // of the fact
	version     uint64
	state       topology.State
	likedAtUs   int64
}

// CompareLists makes the comparison take the reverse index, too, whose rows
// must lie where the generation has them. It must be called before anything is
// taken.
func (c *Comparison) CompareLists(g topology.ReverseGeneration) {
	c.reverse = &g
	c.listings = map[relationKey]listing{}
}

// Likers takes one record of the likers table, from the partition where it
// stands.
func (c *Comparison) Likers(partition int, key string, value []byte) error {
	c.rows.Likers++
	unreadable := func(why string) {
		c.found.text(Unreadable, fmt.Sprintf("likers table, partition %d, key %q: %s", partition, clip(key), why))
	}
	var row tidemarkv1.LikerRow
	if value == nil || row.UnmarshalVT(value) != nil || row.Body == nil {
		unreadable("the value is no row")
		return nil
	}
	if w := row.GetWatermark(); w != nil {
		if at, shard, ok := topology.ParseWatermarkKey(key); !ok || at != partition || uint32(shard) != w.Shard {
			unreadable("key and value do not belong together")
		}
		return nil
	}
	if row.GetClaim() != nil {
		if key != topology.ClaimKey(partition) {
			unreadable("key and value do not belong together")
		}
		return nil
	}
	place, r, err := topology.ParseLikerKey(key)
	l := row.GetRelation()
	state := topology.State(l.State)
	if err != nil || state.Kind() != r.Kind || l.Version == 0 || (l.CurrentLikedAtUs != 0) != (state == r.Kind.Active()) {
		unreadable("key and value are no relation")
		return nil
	}
	k := c.key(r)
	if int(place.Partition) != partition || !place.EqualVT(c.reverse.Place(r)) {
		c.found.relation(Misplaced, k)
	}
	return c.foldListing(k, listing{version: l.Version, state: state, likedAtUs: l.CurrentLikedAtUs})
}

// foldListing keeps the highest version (I3, I14).
func (c *Comparison) foldListing(key relationKey, new listing) error {
	old := c.listings[key]
	switch {
	case new.version < old.version:
		return nil
	case new.version == old.version && (new.state != old.state || new.likedAtUs != old.likedAtUs):
		c.found.relation(Conflict, key)
	}
	new.changedAtUs = old.changedAtUs
	c.listings[key] = new
	return c.put(key, c.relations[key])
}

// noteChange keeps what a fact says of its time.
func (c *Comparison) noteChange(key relationKey, changedAtUs int64) {
	if c.listings == nil {
		return
	}
	l := c.listings[key]
	l.changedAtUs = changedAtUs
	c.listings[key] = l
}

// compareListing compares, both ways, a relation's fact with what the reverse
// index has of it: who is in the list, since when, by which version.
func compareListing(key relationKey, r relation, l listing, found *findings) {
	switch {
	case l.version < r.fact:
		found.relation(LikerBelow, key)
	case l.version > r.fact:
		found.relation(LikerAbove, key)
	case l.state != r.factState:
		found.relation(LikerState, key)
	case l.likedAtUs != 0 && l.likedAtUs != l.changedAtUs:
		found.relation(LikerTime, key)
	}
}

// String says what the reverse index has.
func (l listing) String() string {
	text := fmt.Sprintf("the reverse index version %d %s", l.version, stateText(l.state))
	if l.likedAtUs != 0 {
		text += fmt.Sprintf(" since %d µs, the fact changed at %d µs", l.likedAtUs, l.changedAtUs)
	}
	return text
}
