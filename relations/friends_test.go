package relations

import (
	"slices"
	"testing"

	"github.com/tidemark/tidemark/topology"
)

// Friends follow each other, as it is now, whichever shards they are on.
func TestFriends(t *testing.T) {
	s := open(t, 2, nil)
	follow := func(id, user, other string, state topology.State) {
		mustSet(t, s, command(id, relation(topology.Follow, user, other), state))
	}
	others := []string{"both", "only-i", "only-they", "neither", "ended", "both"}
	for _, o := range others[:5] {
		if o != "neither" && o != "only-they" {
			follow("to-"+o, "u7", o, topology.Following)
		}
		if o != "neither" && o != "only-i" {
			follow("from-"+o, o, "u7", topology.Following)
		}
	}
	follow("end", "ended", "u7", topology.Unfollowed)
	got, err := s.Friends(t.Context(), "u7", others)
	if want := []bool{true, false, false, false, false, true}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := s.Friends(t.Context(), "u7", nil); err != nil || len(got) != 0 {
		t.Errorf("of nobody: %v, %v", got, err)
	}
}
