package relations

import (
	"testing"

	"github.com/tidemark/tidemark/topology"
)

// A relation comes above a version that the shard has lost, with the state that
// it has, once.
func TestSupersedeGoesAboveALostVersion(t *testing.T) {
	urls := migrated(t, 1)
	s, o := openAt(t, urls, nil), openOutbox(t, urls)
	liked, never := relation(topology.Like, "u", "V"), relation(topology.Follow, "u", "w")
	mustSet(t, s, command("op1", liked, topology.Liked))
	before, _, err := o.Fact(t.Context(), 0, liked)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		relation topology.Relation
		version  uint64
		want     uint64
		state    topology.State
		rows     int
	}{
		{liked, 0, 1, topology.Liked, 1},      // is above already
		{liked, 5, 6, topology.Liked, 2},      // goes above
		{liked, 5, 6, topology.Liked, 2},      // is above now
		{never, 3, 4, topology.Unfollowed, 3}, // the shard has lost all of it
	} {
		if err := o.Supersede(t.Context(), 0, c.relation, c.version, "gap:e"); err != nil {
			t.Fatal(err)
		}
		f, ok, err := o.Fact(t.Context(), 0, c.relation)
		if err != nil || !ok || f.Version != c.want || f.State != c.state {
			t.Errorf("above %d: %+v, %v, %v; want version %d, %v", c.version, f, ok, err, c.want, c.state)
		}
		if c.relation == liked && !f.StateChangedAt.Equal(before.StateChangedAt) {
			t.Errorf("the state is dated %v, not %v", f.StateChangedAt, before.StateChangedAt)
		}
		if rows := outbox(t, urls[0]); len(rows) != c.rows {
			t.Errorf("the outbox has %d rows, want %d", len(rows), c.rows)
		}
	}
	if after := mustSet(t, s, command("op2", liked, topology.Unliked)); after.Current.Version != 7 {
		t.Errorf("the next command makes version %d", after.Current.Version)
	}
}
